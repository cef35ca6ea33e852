"""The command `memjax plan`, which compiles steps for TPUs that the machine does not have."""

import argparse
import shlex
import sys

from memjax.cli.parser import Parser, make_reader, parse_with_config
from memjax.config import Config
from memjax.settings.overrides import UsageError
from memjax.settings.ranges import Count, Number


def run(arguments: list[str]) -> int:
    """Compiles steps for TPUs without having them: memory of a device, operations, collectives, estimated time."""
    parser = Parser("plan", run.__doc__, reads="config", json=" per step")
    topology = "TPU topology, such as v5e:4x4 or v5p-128; several separated by commas"
    parser.add_argument("--topology", required=True, metavar="NAME", help=topology)
    steps = ["train", "eval", "decode"]
    step = "kind of step; train plans every kind of update and its larger parts (default: train)"
    parser.add_argument("--what", default="train", choices=steps, help=step)
    mesh = (
        "sizes of the mesh, data x fsdp x model, as 4x2x1; auto = search the mesh, the rows and training.remat with "
        "most tokens a second"
    )
    parser.add_argument("--mesh", metavar="SIZES", help=mesh)
    most = "largest number of candidates that --mesh auto compiles (default: 6)"
    parser.add_argument("--candidates", type=make_reader(Count), metavar="N", help=most)
    copies = "also find how many queries with adapted parameters fit side by side (compiles several times)"
    parser.add_argument("--widest", action="store_true", help=copies)
    values = "plan a row for each value of a field, which is named in full or by its last part"
    parser.add_argument("--sweep", default="", metavar="FIELD=A,B", help=values)
    ids = "number of ids of the vocabulary, where only the data tells it"
    parser.add_argument("--vocab-size", type=make_reader(Number), default=0, metavar="N", help=ids)
    options, config = parse_with_config(parser, arguments, check=_check)
    command = shlex.join(["memjax", "plan", *arguments])
    if options.mesh == "auto":
        return _search(options, config, command)
    return _plan(options, config, command)


def _check(options: argparse.Namespace, config: Config) -> None:
    """Raises an error for options that do not go together."""
    if options.mesh != "auto":
        if options.candidates is not None:
            raise UsageError(f"--candidates: given {options.candidates} without --mesh auto, allowed: with it")
        return
    others = {"--sweep": options.sweep, "--widest": options.widest, "--what": options.what != "train" and options.what}
    for name, value in others.items():
        if value:
            option = name if value is True else f"{name} {value}"
            raise UsageError(f"--mesh: given auto with {option}, allowed: auto for the training step alone")


def _plan(options: argparse.Namespace, config: Config, command: str) -> int:
    from memjax.planning.mesh_candidates import with_mesh
    from memjax.planning.plan_cases import check_topologies, plan
    from memjax.planning.report import describe_shapes, make_cases, report

    names = options.topology.split(",")
    config = with_mesh(config, options.mesh) if options.mesh else config
    cases = make_cases(config, names, options.what, options.sweep)
    for line in describe_shapes(names):
        print(line, file=sys.stderr)
    slices = {case.topology.name: case.topology for case in cases}
    if len(slices) > 1:  # one alone is asked for when it is compiled
        check_topologies(slices.values())
    facts_of = lambda case: plan(case, vocab_size=options.vocab_size, widest=options.widest)
    return 0 if report(cases, facts_of, as_json=options.json, command=command) else 3


def _search(options: argparse.Namespace, config: Config, command: str) -> int:
    """Searches a mesh for each slice and prints the candidates. Returns 0 if one fits on every slice, else 3."""
    from memjax.planning.mesh_candidates import Candidate, apply_candidate, candidates_of
    from memjax.planning.mesh_report import report_search
    from memjax.planning.mesh_search import search_meshes
    from memjax.planning.plan_cases import Case, check_topologies, plan
    from memjax.planning.report import describe_shapes
    from memjax.planning.topologies import parse_topology

    tell = lambda line: print(line, file=sys.stderr, flush=True)
    names = options.topology.split(",")
    slices = [parse_topology(name) for name in names]
    for line in describe_shapes(names):
        tell(line)
    for topology in slices:
        candidates_of(config, topology)
    check_topologies(slices)
    fits = True
    for topology in slices:

        def compile_candidate(candidate: Candidate, topology=topology):
            case = Case(apply_candidate(config, candidate), topology)
            return plan(case, vocab_size=options.vocab_size)[0]

        ranked = search_meshes(config, topology, compile_candidate, most=options.candidates or 6, tell=tell)
        fits &= report_search(config, topology, ranked, as_json=options.json, command=command)
    return 0 if fits else 3
