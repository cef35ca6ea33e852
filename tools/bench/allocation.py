"""A model of `tools.bench.models` in a process that has set some parameters of glibc's malloc by `mallopt`.

python -m tools.bench.allocation arena_max,mmap_threshold transformer_xl '{"memory_length": 512}'
"""

import sys

from memjax.allocation import HUGE_PAGES, advise_huge_pages, set_parameters


def main(argv: list[str]) -> int:
    """Sets the parameters before JAX is imported and other threads are there, then serves the model."""
    names = argv[0].split(",")
    done = set_parameters([name for name in names if name != HUGE_PAGES])
    if HUGE_PAGES in names and advise_huge_pages():
        done.append(HUGE_PAGES)
    if refused := set(names) - set(done):
        raise SystemExit(f"malloc: the system refuses {', '.join(sorted(refused))}")
    from tools.bench import models

    return models.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
