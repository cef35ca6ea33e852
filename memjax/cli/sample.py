"""The command `memjax sample`, which generates images."""

import re
from pathlib import Path

from memjax.cli.parser import GENERATION_FIELDS, Parser, make_reader, open_run, parse_with_config, print_result
from memjax.cli.places import check_file
from memjax.config import Evaluation
from memjax.durable_files import replace_file
from memjax.settings.overrides import UsageError
from memjax.settings.ranges import Count, Number, Probability, Seed, Temperature


def run(arguments: list[str]) -> int:
    """Generates images pixel by pixel with the newest checkpoint of a run, and writes them into a PNG file."""
    parser = Parser("sample", run.__doc__, reads="run", json="")
    add = parser.add_argument
    add("--to", required=True, metavar="FILE", help="PNG file to write")
    add("--count", type=make_reader(Count), default=8, metavar="N", help="number of images (default: 8)")
    columns = "number of images in a row of the file (default: 8)"
    add("--columns", type=make_reader(Count), default=8, metavar="N", help=columns)
    add("--size", default="", metavar="HEIGHTxWIDTH", help="size of an image in pixels (default: that of the data)")
    temperature = "sampling temperature; 0 = greedy (default: 1)"
    add("--temperature", type=make_reader(Temperature), default=1.0, help=temperature)
    top_k = "draw from the K most probable pixel values; 0 = from all (default: 0)"
    add("--top-k", type=make_reader(Number), default=0, metavar="K", help=top_k)
    top_p = "draw from the most probable pixel values whose probabilities add up to P (default: 1)"
    add("--top-p", type=make_reader(Probability), default=1.0, metavar="P", help=top_p)
    add(
        "--seed", type=make_reader(Seed), default=0, help="seed of sampling; equal seeds give equal images (default: 0)"
    )
    options, config = parse_with_config(parser, arguments, only=GENERATION_FIELDS)
    size, path = read_size(options.size), Path(options.to).expanduser()
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--to: given {options.to!r}, allowed: a file in a folder that is there")
    check_file("--to", path)
    from memjax.data.images import png_grid
    from memjax.inference import Sampling, sample_images
    from memjax.tasks import make_task
    from memjax.training.experiment import make_evaluation_model

    make_task(config).require("sample")
    sampling = Sampling(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    loaded = open_run(options.run, config, is_data_named=options.is_data_named)
    shape = size or loaded.experiment.documents("train").shape
    model = make_evaluation_model(loaded.experiment, Evaluation(cache=config.evaluation.cache))
    settings = {"segment_length": config.data.segment_length, "sampling": sampling, "seed": options.seed}
    images = sample_images(model, loaded.variables, options.count, shape, **settings)
    replace_file(path, png_grid(images, options.columns))
    facts = {
        "run": options.run,
        **loaded.checkpoint.facts(),
        "images": len(images),
        "height": shape[0],
        "width": shape[1],
        "file": str(path),
    }
    return print_result(facts, lambda f: f"{f['file']}: {f['images']} images of {f['height']} x {f['width']}", options)


def read_size(text: str) -> tuple[int, int] | None:
    """Converts the text of `--size`, HEIGHTxWIDTH, to height and width in pixels. None for an empty text.

    Raises:
      UsageError: The text is not of the form HEIGHTxWIDTH.

    Example:
      >>> read_size("28x20"), read_size("")
      ((28, 20), None)
    """
    if not text:
        return None
    if not (match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)):
        raise UsageError(f"--size: given {text!r}, allowed: HEIGHTxWIDTH, as 28x28")
    return int(match[1]), int(match[2])
