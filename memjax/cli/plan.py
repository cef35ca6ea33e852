"""`memjax plan`."""

import shlex
import sys

from memjax.cli.parser import Parser, make_reader, with_config
from memjax.settings.ranges import Number


def run(arguments: list[str]) -> int:
    """Compiles steps for TPUs that are not here: memory per device, work, collectives, an estimate of the time."""
    parser = Parser("plan", run.__doc__, reads="config", json=" per step")
    named = "v5e:4x4 or v5p-128; several separated by commas"
    parser.add_argument("--topology", required=True, metavar="NAME", help=named)
    steps = ["train", "eval", "decode"]
    what = "train (the default): every kind of update, and pieces of it that count"
    parser.add_argument("--what", default="train", choices=steps, help=what)
    copies = "also find how many queries with adapted parameters fit side by side (compiles several times)"
    parser.add_argument("--widest", action="store_true", help=copies)
    values = "FIELD=A,B: a row for each value; FIELD in full or by its last part"
    parser.add_argument("--sweep", default="", metavar="FIELD=A,B", help=values)
    ids = "ids, where only the data knows how many"
    parser.add_argument("--vocab-size", type=make_reader(Number), default=0, metavar="N", help=ids)
    options, config = with_config(parser, arguments)
    from memjax.planning.cases import check_topologies, plan
    from memjax.planning.report import describe_shapes, make_cases, report

    names = options.topology.split(",")
    cases = make_cases(config, names, options.what, options.sweep)
    for line in describe_shapes(names):
        print(line, file=sys.stderr)
    slices = {case.topology.name: case.topology for case in cases}
    if len(slices) > 1:  # one alone is asked for when it is compiled
        check_topologies(slices.values())
    facts_of = lambda case: plan(case, vocab_size=options.vocab_size, widest=options.widest)
    command = ["memjax", "plan", *arguments]
    return 0 if report(cases, facts_of, as_json=options.json, command=shlex.join(command)) else 3
