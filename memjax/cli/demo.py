"""`memjax demo`."""

import dataclasses

from memjax.cli.parser import Parser
from memjax.cli.places import check_folder


def run(arguments: list[str]) -> int:
    """What a memory is worth: on a task that needs one, and added to a small model of real code after its training."""
    parser = Parser("demo", run.__doc__)
    parser.add_argument("--workdir", default="", metavar="DIR", help="its directory (default: runs/demo)")
    parser.add_argument("--smoke", action="store_true", help="the same in miniature, in less than a minute")
    options = parser.read(arguments)
    if options.workdir:
        check_folder("--workdir", options.workdir)
    from memjax.demo import SMOKE, Plan, run_demo

    plan = SMOKE if options.smoke else Plan()
    run_demo(dataclasses.replace(plan, workdir=options.workdir or plan.workdir))
    return 0
