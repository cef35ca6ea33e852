"""`memjax demo`."""

import dataclasses

from memjax.cli.parser import Parser


def run(arguments: list[str]) -> int:
    """Trains with and without memory on real code and on a task that needs one, and prints what came out."""
    parser = Parser("demo", run.__doc__)
    parser.add_argument("--workdir", default="", metavar="DIR", help="its directory (default: runs/demo)")
    parser.add_argument("--smoke", action="store_true", help="the same in miniature, in less than a minute")
    parser.add_argument("--bytes", action="store_true", help="UTF-8 bytes instead of subwords (learns slower)")
    options = parser.read(arguments)
    from memjax.demo import SMOKE, Plan, run_demo

    plan = SMOKE if options.smoke else Plan(bytes=options.bytes)
    run_demo(dataclasses.replace(plan, workdir=options.workdir or plan.workdir))
    return 0
