"""The command `memjax report`, which writes a page about runs."""

import sys
from pathlib import Path

from memjax.cli.over import add_over, read_over
from memjax.cli.parser import Parser, make_reader
from memjax.cli.places import check_file, check_folder
from memjax.durable_files import replace_file
from memjax.settings.overrides import UsageError
from memjax.settings.ranges import Count, Number

SPLITS = ("train", "validation", "test")


def run(arguments: list[str]) -> int:
    """Writes an HTML page about one or several runs: figures and examples of their memories, data and tasks.

    The page needs no network and no other file. Of an unfinished run it shows what exists so far. Of several runs,
    damaged ones are left out, with a line for each. `--over` draws the mean of all runs that differ only in the fields
    that it names, with its interval, and shows no single runs.
    """
    options = _make_parser().read(arguments)
    if options.datastore and len(options.runs) > 1:
        raise UsageError("--datastore: given with several runs, allowed: with the run whose store it is")
    if options.out:
        check_file("--out", options.out)
    if options.figures:
        check_folder("--figures", options.figures)
    if options.datastore:
        from memjax.datastore.store import Store

        Store(Path(options.datastore).expanduser())  # refuses what is no store
    check_installed()
    from memjax.report.build import make_report
    from memjax.report.comparison import RunRecord, split_readable
    from memjax.report.page import make_page
    from memjax.report.panel import OpenedRun
    from memjax.report.pictures import write_figures

    looked = {name: getattr(options, name) for name in ("rows", "segments", "tokens", "split", "datastore")}
    over = read_over(options)
    only = [name for part in options.only.split(",") if (name := part.strip())]
    readable, left_out = split_readable(map(RunRecord, options.runs))
    if not readable:
        raise UsageError(next(iter(left_out.values())))
    for line in left_out.values():
        print(f"left out: {line}", file=sys.stderr)
    runs = [OpenedRun(path, **looked, record=record) for path, record in readable.items()]
    say = lambda line: print(f"report: {line} ...", file=sys.stderr, flush=True)
    report = make_report(runs, only=only, over=over, say=say)
    for path in readable:
        names = ("finished.json", "versions.json")
        if absent := [name for name in names if not Path(path).expanduser().joinpath(name).exists()]:
            print(f"{path} has no {' and no '.join(absent)}; the page shows what there is", file=sys.stderr)
    out = Path(options.out).expanduser() if options.out else _beside(runs)
    if options.out:
        out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, make_page(report).encode())
    print(f"{out}: {sum(len(section.panels) for section in report.sections)} panels, {len(report.figures)} figures")
    if options.figures:
        print(f"{options.figures}: {len(write_figures(report.figures, options.figures))} files")
    for section in report.sections:
        for line in section.left:
            print(f"left out: {line}", file=sys.stderr)
    return 0


def _make_parser() -> Parser:
    parser = Parser("report", run.__doc__, reads="runs")
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a run directory")
    add("--out", default="", metavar="FILE", help="file to write (default: report.html in the run, here for several)")
    add("--figures", default="", metavar="DIR", help="folder into which all figures are also written as SVG and PNG")
    add(
        "--rows",
        type=make_reader(Count),
        default=2,
        metavar="N",
        help="number of texts that are read side by side (default: 2)",
    )
    add(
        "--segments",
        type=make_reader(Count),
        default=8,
        metavar="N",
        help="number of successive segments that are read of each text (default: 8)",
    )
    add(
        "--tokens",
        type=make_reader(Number),
        default=16384,
        metavar="N",
        help="approximate number of tokens that are scored; 0 = all (default: 16384)",
    )
    add("--split", default="validation", choices=SPLITS, help="split of the data that is read (default: validation)")
    add("--only", default="", metavar="NAMES", help="write only these parts, such as curves,scores,gains")
    add_over(parser)
    add("--datastore", default="", metavar="DIR", help="datastore of the run, to show its neighbours too (kNN-LM)")
    return parser


def check_installed() -> None:
    """Raises `ModuleNotFoundError` where a package that makes pictures or pages (Matplotlib, Jinja) is missing, before
    anything is read.

    Raises:
      ModuleNotFoundError: Matplotlib or Jinja is not installed.
    """
    import jinja2
    import matplotlib

    del jinja2, matplotlib


def _beside(runs: list) -> Path:
    """Returns the default path of the page."""
    return runs[0].directory / "report.html" if len(runs) == 1 else Path("report.html")
