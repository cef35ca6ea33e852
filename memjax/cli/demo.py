"""The command `memjax demo`, which shows how much a memory helps."""

import dataclasses

from memjax.cli.parser import Parser
from memjax.cli.places import check_folder


def run(arguments: list[str]) -> int:
    """Shows how much a memory helps: on a task that needs one, and added to a small trained model of source code."""
    parser = Parser("demo", run.__doc__)
    parser.add_argument("--workdir", default="", metavar="DIR", help="folder of its runs (default: runs/demo)")
    parser.add_argument("--smoke", action="store_true", help="run a miniature of it in less than a minute")
    options = parser.read(arguments)
    if options.workdir:
        check_folder("--workdir", options.workdir)
    from memjax.cli.demonstration import SMOKE, Plan, run_demo

    plan = SMOKE if options.smoke else Plan()
    run_demo(dataclasses.replace(plan, workdir=options.workdir or plan.workdir))
    return 0
