"""Writes images that a run has learned to draw, side by side in one PNG file.

memjax train --config memformer_mnist --data.source.path DIR --name digits --workdir runs
python -m tools.measurements.digits runs/digits --out digits.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memjax.data.images import png_grid
from memjax.inference.images import sample_images
from memjax.inference.sampling import Sampling
from memjax.training.loaded_runs import load_run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.digits", description="Images that a run draws, in one PNG."
    )
    parser.add_argument("run", help="run directory")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--height", type=int, default=28)
    parser.add_argument("--width", type=int, default=28)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    loaded = load_run(args.run)
    images = sample_images(
        loaded.experiment.model,
        loaded.variables,
        args.count,
        (args.height, args.width),
        segment_length=loaded.experiment.config.data.segment_length,
        sampling=Sampling(temperature=args.temperature),
        seed=args.seed,
        block=args.width,
    )
    args.out.write_bytes(png_grid(images, args.columns))
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
