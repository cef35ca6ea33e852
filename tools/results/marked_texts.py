"""Makes the texts between markers in the README and in `docs/`: numbers of the results with links to their tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

import numpy as np

from memjax.report.verdicts import LEAST_UNITS
from tools.recipes import RECIPES
from tools.results import streams, survey
from tools.results.ledger import apart
from tools.results.plan_tables import plan_cells
from tools.results.speed_tables import Record, grid
from tools.texts import which
from tools.texts.known import Known, describe_neighbors, link

_GOLDEN = "outputs as of [another implementation](tests/golden/README.md)"
_LEARNED = link("learns")
_MODEL = "knn_lm_wikitext_default"


def _transformer_xl(known: Known) -> str:
    nats = known.facts("spalm", _MODEL)["rows"]
    alone, none = (math.exp(nats[name]["test"]) for name in ("transformer_xl", "no_memory"))
    recall = known.describe_memory_effect("Transformer-XL")
    return (
        f"recall over segments: {recall} against an empty memory ({_LEARNED}); WikiText-2, one seed: "
        f"perplexity {alone:.1f}, without {none:.1f} ({link('knn_lm')}); {_GOLDEN}"
    )


def _compressive(known: Known) -> str:
    nats = known.facts("spalm", _MODEL)["rows"]
    compressive, without = (math.exp(nats[name]["test"]) for name in ("compressive", "transformer_xl"))
    speed = known.speed_ratio("compressive", "memjax Compressive", "train")
    recall = known.describe_memory_effect("Compressive", "not_compressed")
    return (
        f"recall from compressed slots: against empty ones {recall} ({_LEARNED}); WikiText-2, one seed: "
        f"{compressive:.1f}, without {without:.1f} ({link('knn_lm')}); trains {speed:.2f} times "
        f"as fast as a peer ({link('bench')})"
    )


def _knn_lm(known: Known) -> str:
    facts = known.facts("knn_lm", _MODEL)
    best = min(facts["knn_lm"], key=lambda row: row["validation"])
    before, after = (math.exp(nats["test"]) for nats in (facts["base"], best))
    return (
        f"WikiText-2, one model: test perplexity {before:.1f} without and {after:.1f} with its store and "
        f"{describe_neighbors(facts)} ({link('knn_lm')})"
    )


def _continuous_cache(known: Known) -> str:
    rows = known.facts("both", _MODEL)["rows"]
    cache, with_store = (math.exp(rows[name]["test"]) for name in ("cache", "both"))
    return f"the same model: test perplexity {cache:.1f}, with kNN-LM over it {with_store:.1f} ({link('knn_lm')})"


def _spalm(known: Known) -> str:
    difference = known.against("wikitext2_spalm", "SPALM, by halves", "goes on without", "test perplexity")
    where = link("wikitext2_spalm")
    return (
        f"WikiText-2, a quarter: test perplexity with neighbours by halves against none {difference}; seeds of "
        f"dropout, one trained model ({where})"
    )


def _memorizing(known: Known) -> str:
    recipe, number = "memory_gain_controls", "test bits per byte"
    cache, longer = (
        known.against(recipe, "Memorizing", control, number, 3)
        for control in ("local cache only", "cache of 544 tokens")
    )
    return (
        f"Python, bits per byte: against its cache {cache}, one of as many tokens in every layer {longer}; novels: not "
        f"searched ({link(recipe)})"
    )


def _attention_programs(known: Known) -> str:
    records = apart(known.facts("attention_programs", "layer"))
    moved = {(r["chip"], r["positions"], r["program"]): r["hbm_bytes"] for r in records}
    times = lambda positions, program: moved["v5e", positions, "reference"] / moved["v5e", positions, program]
    return (
        f"Compiled for a v5e, one layer moves {times('rotary', 'fused'):.0f} times fewer bytes through the HBM with "
        f"rotary positions (`fused`), {times('relative positions', 'blocks'):.1f} times fewer with relative ones and "
        f"{times('distance buckets', 'blocks'):.1f} times fewer with buckets (`blocks`) ({link('plans')})."
    )


def _product_keys(known: Known) -> str:
    records = [r for r in apart(known.facts("product_key_steps", "one_memory")) if r["form"] == "lazy"]
    most = max(records, key=lambda r: r["slots"])
    recipe = "fact_table"
    over = known.against(recipe, "product keys", "network of equal cost", "test accuracy")
    return (
        f"9,216 facts, 64 wide: {over} against equal cost ({link(recipe)}); {most['slots'] >> 20} M slots cost "
        f"{most['times_the_smallest']['value']:.2f} steps of {records[0]['slots']:,} ({link('product_key_steps')})"
    )


def _resm(known: Known) -> str:
    reached = []
    for task, measure in (("CoLA", "matthews"), ("SST-2", "accuracy"), ("QNLI", "accuracy")):
        plain, memory = (
            100 * known.mean("bert_glue", f"{task}, MiniLM, then {stage}", measure)
            for stage in ("MLM", "MLM with ResM")
        )
        reached.append(f"{task} {memory:.1f}, without {plain:.1f}")
    row = "product keys beside the network (ResM)"
    over = known.against("fact_table", row, "network of equal cost", "test accuracy")
    return (
        f"9,216 facts, 64 wide: {over} against equal cost ({link('fact_table')}); from MiniLM, one seed: "
        f"{'; '.join(reached)} ({link('bert_glue')})"
    )


def _linear(row: str, contender: str) -> Callable[[Known], str]:
    def cell(known: Known) -> str:
        records = apart(known.facts("decode_speed", "linear_states"))
        longest = max(r["length"] for r in records)
        rates = {r["contender"]: r["tokens_per_second"] for r in records if r["length"] == longest}
        times = statistics.median(rates[contender]) / statistics.median(rates["softmax"])
        recipe, text, alone = "associative_recall", "linear_states_wikitext2", "softmax, one segment"
        reached, without = (known.mean(text, name, "test perplexity") for name in (row, alone))
        over = ""
        if known.count_runs(recipe, row) >= LEAST_UNITS:
            difference = known.against(recipe, row, alone, "test accuracy")
            over = f"24 pairs: against one segment {difference} ({link(recipe)}); "
        return (
            f"{over}WikiText-2, one seed: perplexity {reached:.1f}, softmax over 64 tokens {without:.1f} "
            f"({link(text)}); decodes {times:.0f} times as fast at {longest:,}"
            f"{' (without the gate)' if 'gate' in row else ''} ({link('decode_speed')})"
        )

    return cell


def _memory_tokens(known: Known) -> str:
    recipe, number = "multi30k_memory_tokens", "test perplexity"
    rows = ("10 memory tokens", "10 memory tokens, bottleneck")
    over, narrow = (known.against(recipe, row, "no memory tokens", number) for row in rows)
    copy = known.describe_memory_effect("memory tokens, bottleneck")
    return (
        f"copy: {copy} against empty ones ({_LEARNED}); Multi30k, perplexity against none: "
        f"{over}, alone {narrow} ({link(recipe)})"
    )


def _memformer(known: Known) -> str:
    records = apart(known.facts("replay", "memformer"))
    most = max(r["segments"] for r in records)
    form = {r["form"]: r for r in records if r["segments"] == most}
    share = form["mrbp"]["temp_size"] / form["none"]["temp_size"]
    row, recipe, text = "16 slots", "memformer_recall", "memformer_slots"
    over = known.against(recipe, row, "no slots", "accuracy")
    words = known.against(text, row, "Transformer-XL, 16 tokens", "test bits per byte", 3)
    return (
        f"recall {over} against no slots ({link(recipe)}); bits per byte {words} against Transformer-XL "
        f"({link(text)}); {most} segments in {share:.3f} of the temporaries ({link('replay')})"
    )


def _infinity_former(known: Known) -> str:
    events, sorting = (
        known.against(recipe, "infinity-former", "no signal", name)
        for recipe, name in (("events_signals", "test accuracy"), ("sorting_signals", "test, 1,000 accuracy"))
    )
    return (
        f"against no signal: events {events}; sorting {sorting} "
        f"({link('events_signals')}, {link('gpt2_memories', 'GPT-2')})"
    )


def _plans(known: Known) -> str:
    records = [
        r
        for name in ("200m", "200m_512_rows", "200m_512_rows_changed", "1b", "8b")
        for r in apart(known.facts("plan", name))
    ]
    heads = ["Memorizing Transformer", "slots", "slice", "rows", "GiB of a chip: state, temporaries, in all", "limit"]
    return f"\n{grid([*heads, 'estimate of a step'], plan_cells(records))}\n"


def _llama_plans(known: Known) -> str:
    names = [
        f"llama3_8b_{how}_{chip}_{slots}" for how in ("lora", "full") for chip in ("v5p", "v6e") for slots in SLOTS
    ]
    plans = filter(None, (known.find_measurement("plan", name) for name in names))
    records = [record for plan in plans for record in apart(plan.facts)]
    rows = [
        [_describe_trained(record), *cells[1:], _name_bound(record)]
        for record, cells in zip(records, plan_cells(records), strict=True)
    ]
    heads = ["trained", "slots", "slice", "rows", "GiB of a chip: state, temporaries, in all", "limit"]
    return f"\n{grid([*heads, 'estimate of a step', 'bound by'], rows)}\n"


SLOTS = ("8k", "64k")


def _describe_trained(record: Record) -> str:
    """Describes the parameters that a step of a plan changes: all of them, or how many there are in adapters."""
    number = record["trained"]
    return "all" if number == record["parameters"] else f"adapters, {number / 1e6:.0f} M"


def _name_bound(record: Record) -> str:
    """Returns what bounds the estimated time of a step: 'compute', 'hbm' or 'ici'. '' for a plan that does not fit."""
    return record["estimate"]["bound"] if record["fits"] else ""


def _searches(index: str, level: float | None) -> Callable[[Known], str]:
    def cell(known: Known) -> str:
        shown = []
        for entries in ("100000", "500000"):
            records = known.facts("search", entries)["records"]
            record = next(r for r in records if (r["index"], r["level"]) == (index, level))
            shown.append(f"{record['ratio']['value']:.1f} times ({int(entries):,} keys)")
        return " and ".join(shown)

    return cell


def _rematerialization(known: Known) -> str:
    records = apart(known.facts("rematerialization", "slots"))
    most = max(r["segments"] for r in records)
    form = {r["policy"]: r for r in records if r["segments"] == most and not r["segments_per_checkpoint"]}
    plain, nested = form["none"], form["segment_nested"]
    return (
        f"{most} segments of a slot memory need {nested['temp_size'] / 2**20:.0f} MiB instead of more than "
        f"{plain['wanted'] / 2**30:.0f} GiB for {nested['flops'] / plain['flops']:.2f} times the operations"
    )


def _same_job(known: Known) -> str:
    """Returns a table of the same job with memjax and with another library."""
    lines = known.find_measurement("job_lines", "split_mnist")
    assert lines is not None
    jobs = [known.find_measurement("same_job", library) for library in lines.facts]
    return f"\n{streams.job_lines(lines, [*filter(None, jobs)])}\n"


def _streams(known: Known) -> str:
    """Returns a table of the average accuracy of every method on streams of tasks. See `_tabulate_averages`."""
    tables = {
        "lifelong_mnist": "split MNIST",
        "lifelong_vectors_2000": "2,000 texts each",
        "lifelong_vectors_fourteen": "fourteen tasks",
        "lifelong_meta": "2,000 texts each, batches of 4",
        "lifelong_last_two": "500 texts each, two layers of MiniLM trained",
        "lifelong_relations_small": "relations",
        "lifelong_relation_pairs": "pairs of sentence and relation",
    }
    return _tabulate_averages(known, tables)


def _adapters(known: Known) -> str:
    """Returns a table of the average accuracy of adapters of a language model. See `_tabulate_averages`."""
    return _tabulate_averages(known, {"lifelong_adapters": "five sets, SmolLM2"})


def _tabulate_averages(known: Known, tables: Mapping[str, str]) -> str:
    """Returns a table of the average accuracy of every row of some recipes, in percent, and a line with the verdicts.

    A cell has the average over tasks at the end and, in parentheses, the average of each task right after it was
    learned. It is empty where the row was not run.

    Args:
      known: Runs and measurements.
      tables: Recipe -> head of its column.
    """
    cells_by_row: dict[str, dict[str, str]] = {}
    counts = {}
    for name in tables:
        recipe, runs = RECIPES[name], known.runs(name)
        texts = known.find_measurement("texts", recipe.texts)
        counted_tasks = streams.kept_tasks(runs, texts)
        is_part = texts and counted_tasks and len(counted_tasks) < len(streams.alone(runs, texts))
        counts[name] = f", mean over {len(counted_tasks)} of them" if is_part else ""
        for row in recipe.variants:
            average, learned = (
                np.nanmean(scores) if (~np.isnan(scores)).any() else np.nan
                for scores in (
                    streams.scores(runs, recipe, row, measure, counted_tasks)
                    for measure in (streams.AVERAGE, streams.LEARNED)
                )
            )
            if not np.isnan(average):
                average = learned if row == streams.ALONE else average
                beside = "" if np.isnan(learned) or row == streams.ALONE else f" ({learned:.1f})"
                orders = streams.name_orders(runs, recipe, row)
                cells_by_row.setdefault(row, {})[name] = f"{average:.1f}{beside}{orders and f', {orders}'}"
    heads = [
        "accuracy in % at the end (after its own task)",
        *(f"{link(name, text)}{counts[name]}" for name, text in tables.items()),
    ]
    rows = [[row, *(cells.get(name, "") for name in tables)] for row, cells in cells_by_row.items()]
    said = ", ".join(f"{count} {verdict}" for verdict, count in known.count_verdicts(tables).items())
    return f"\n{grid(heads, rows)}\n\nVerdicts of the compared rows of these tables: {said}.\n"


LANGUAGE_MODEL = "SmolLM2-135M-Instruct"


def _llm_memories(known: Known) -> str:
    """Returns a table of the perplexity of a language model with memories that were not trained."""
    rows = apart(known.facts("llm_memories", LANGUAGE_MODEL))
    cells = [[row["memory"], f"{row['perplexity']:.1f}"] for row in rows]
    return f"\n{grid(['memory', 'perplexity'], cells)}\n"


def _llm_recall(known: Known) -> str:
    """Describes the recall of a language model with adapters and a trained memory, and with adapters alone."""
    rows = apart(known.facts("llm_recall", LANGUAGE_MODEL))
    mean = lambda name, task: np.mean([100 * row[task] for row in rows if row["contender"] == name])
    tasks = ("passkey", "keys and values")
    said = [f"{task} {mean('memory', task):.0f} % (without {mean('adapters', task):.0f} %)" for task in tasks]
    return " and ".join(said)


def _llm_speed(known: Known) -> str:
    """Describes the speed of a language model as a multiple of its speed in the library transformers."""
    rows = apart(known.facts("llm_speed", LANGUAGE_MODEL))
    return "; ".join(f"{row['what']}: {row['times_as_fast']:.2f} times" for row in rows)


MAKERS: dict[str, Callable[[Known], str]] = {
    "transformer_xl": _transformer_xl,
    "compressive": _compressive,
    "knn_lm": _knn_lm,
    "continuous_cache": _continuous_cache,
    "spalm": _spalm,
    "memorizing": _memorizing,
    "product_keys": _product_keys,
    "resm": _resm,
    "linear_transformer": _linear("Linear Transformer (ELU)", "Linear Transformer"),
    "rfa": _linear("RFA with a gate", "RFA"),
    "t2r": _linear("T2R, from scratch", "T2R"),
    "memsizer": _linear("MemSizer, 32 slots", "MemSizer"),
    "memory_tokens": _memory_tokens,
    "memformer": _memformer,
    "infinity_former": _infinity_former,
    "plans": _plans,
    "llama_plans": _llama_plans,
    "searches": _searches("memjax ScaNN", 0.99),
    "exact_searches": _searches("memjax exact", None),
    "rematerialization": _rematerialization,
    "attention_programs": _attention_programs,
    "streams": _streams,
    "same_job": _same_job,
    "adapters": _adapters,
    "llm_memories": _llm_memories,
    "llm_recall": _llm_recall,
    "llm_speed": _llm_speed,
    "which": which.table,
    **survey.cells(),
}
"""Marker -> function that makes the text behind it"""


def marked_text(name: str, known: Known) -> str:
    """Returns the text behind the marker `name`, made from runs and measurements.

    Raises:
      ValueError: No marker has this name.
    """
    if name not in MAKERS:
        raise ValueError(f"result: given {name!r}, allowed: {', '.join(MAKERS)}")
    return MAKERS[name](known)
