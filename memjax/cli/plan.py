"""The command `memjax plan`, which compiles steps for TPUs that the machine does not have."""

import shlex
import sys

from memjax.cli.parser import Parser, make_reader, parse_with_config
from memjax.settings.ranges import Number


def run(arguments: list[str]) -> int:
    """Compiles steps for TPUs without having them: memory of a device, operations, collectives, estimated time."""
    parser = Parser("plan", run.__doc__, reads="config", json=" per step")
    topology = "TPU topology, such as v5e:4x4 or v5p-128; several separated by commas"
    parser.add_argument("--topology", required=True, metavar="NAME", help=topology)
    steps = ["train", "eval", "decode"]
    what = "kind of step; train plans every kind of update and its larger parts (default: train)"
    parser.add_argument("--what", default="train", choices=steps, help=what)
    copies = "also find how many queries with adapted parameters fit side by side (compiles several times)"
    parser.add_argument("--widest", action="store_true", help=copies)
    values = "plan a row for each value of a field, which is named in full or by its last part"
    parser.add_argument("--sweep", default="", metavar="FIELD=A,B", help=values)
    ids = "number of ids of the vocabulary, where only the data tells it"
    parser.add_argument("--vocab-size", type=make_reader(Number), default=0, metavar="N", help=ids)
    options, config = parse_with_config(parser, arguments)
    from memjax.planning.plan_cases import check_topologies, plan
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
