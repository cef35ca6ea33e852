"""Makes the table of memories to choose from: their costs in one decoder, their gradients, and our measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from tools.results.ledger import apart
from tools.results.speed_tables import grid
from tools.texts.known import Known, describe_neighbors, link

MODEL = "knn_lm_wikitext_default"
NONE = "no memory"


class Choice(NamedTuple):
    """A memory to choose, one row of the table.

    Attributes:
      memory: Name of the memory in the measurement `memory_costs`.
      gradients: Description of the parts of the memory that are differentiable.
      measured: Function that makes the cell with our own measurements of the memory.
    """

    memory: str
    gradients: str
    measured: Callable[[Known], str]


def _perplexity(known: Known, kind: str, row: str) -> float:
    return math.exp(known.facts(kind, MODEL)["rows"][row]["test"])


def _describe_effect(
    known: Known, memory: str, what: str, control: str = "an empty memory", without: str = "cleared"
) -> str:
    return f"{what}: {known.describe_memory_effect(memory, without)} against {control} ({link('learns')})"


def _transformer_xl(known: Known) -> str:
    perplexity, without = (_perplexity(known, "spalm", row) for row in ("transformer_xl", "no_memory"))
    recall = _describe_effect(known, "Transformer-XL", "recall over segments")
    return (
        f"{recall}; WikiText-2 perplexity, one seed: {perplexity:.1f}, without memory {without:.1f} ({link('knn_lm')})"
    )


def _compressive(known: Known) -> str:
    perplexity, without = (_perplexity(known, "spalm", row) for row in ("compressive", "transformer_xl"))
    recall = _describe_effect(
        known, "Compressive", "recall of what has left the positions", "empty slots", "not_compressed"
    )
    return (
        f"{recall}; WikiText-2 perplexity, one seed: {perplexity:.1f}, Transformer-XL {without:.1f} ({link('knn_lm')})"
    )


def _memorizing(known: Known) -> str:
    recipe = "memory_gain_controls"
    difference = known.against(recipe, "Memorizing", "cache of 544 tokens", "test bits per byte", 3)
    recall = _describe_effect(known, "Memorizing", "recall beyond its cache")
    return f"{recall}; Python, bits per byte: {difference} against a cache as long in every layer ({link(recipe)})"


def _infinity_former(known: Known) -> str:
    return _describe_effect(known, "infinity-former", "when events were")


def _linear(row: str, contender: str) -> Callable[[Known], str]:
    def make_cell(known: Known) -> str:
        records = apart(known.facts("decode_speed", "linear_states"))
        longest = max(record["length"] for record in records)
        rates = {r["contender"]: statistics.median(r["tokens_per_second"]) for r in records if r["length"] == longest}
        text = "linear_states_wikitext2"
        perplexity, softmax = (known.mean(text, name, "test perplexity") for name in (row, "softmax, one segment"))
        return (
            f"decodes {rates[contender] / rates['softmax']:.0f} times as fast as softmax over {longest:,} tokens"
            f"{' (without the gate)' if 'gate' in row else ''} ({link('decode_speed')}); WikiText-2 perplexity, one "
            f"seed: {perplexity:.0f}, softmax over a segment of 64: {softmax:.0f} ({link(text)})"
        )

    return make_cell


def _memory_tokens(known: Known) -> str:
    recipe = "multi30k_memory_tokens"
    difference = known.against(recipe, "10 memory tokens", "no memory tokens", "test perplexity")
    learned = _describe_effect(known, "memory tokens, bottleneck", "a text through ten tokens", "empty ones")
    text = "linear_states_wikitext2"
    with_tokens, without = (
        known.mean(text, row, "test perplexity") for row in ("Transformer-XL, 20 memory tokens", "Transformer-XL")
    )
    return (
        f"{learned}; translation: {difference} ({link(recipe)}); WikiText-2, one seed: "
        f"{with_tokens:.0f}, without {without:.0f} ({link(text)})"
    )


def _memformer(known: Known) -> str:
    recipe, number = "memformer_slots", "test bits per byte"
    difference = known.against(recipe, "16 slots", "Transformer-XL, 16 tokens", number, 3)
    recall = _describe_effect(known, "Memformer", "recall over long noise", "empty slots")
    return f"{recall}; WikiText-2, bits per byte: {difference} against Transformer-XL of as many bytes ({link(recipe)})"


def _facts(row: str) -> Callable[[Known], str]:
    def make_cell(known: Known) -> str:
        difference = known.against("fact_table", row, "network of equal cost", "test accuracy")
        return f"facts: {difference} against a network of equal cost ({link('fact_table')})"

    return make_cell


def _spalm(known: Known) -> str:
    recipe, number = "wikitext2_spalm", "test perplexity"
    by_halves, oracle = (
        known.against(recipe, row, "goes on without", number) for row in ("SPALM, by halves", "SPALM, oracle")
    )
    shares = [
        run.evaluations["test"]["metrics"]["output_memory/spalm/target_among"]
        for run in known.runs(recipe)
        if run.row == "SPALM, by halves"
    ]
    return (
        f"the next token is among the neighbours of {statistics.fmean(shares):.0%} of the test: perplexity {by_halves} "
        f"against none; oracle, of all of it: {oracle}; one trained model ({link(recipe)})"
    )


def _continuous_cache(known: Known) -> str:
    perplexity, without = _perplexity(known, "both", "cache"), _perplexity(known, "spalm", "transformer_xl")
    return f"needs no training; one model: perplexity {perplexity:.1f}, without {without:.1f} ({link('knn_lm')})"


def _knn_lm(known: Known) -> str:
    facts = known.facts("knn_lm", MODEL)
    best = min(facts["knn_lm"], key=lambda row: row["validation"])
    perplexity, without = (math.exp(nats["test"]) for nats in (best, facts["base"]))
    return (
        f"needs no training, but a store; one model: perplexity {perplexity:.1f}, without {without:.1f}; "
        f"{describe_neighbors(facts)} ({link('knn_lm')})"
    )


CHOICES = (
    Choice("Transformer-XL", "nothing remembered", _transformer_xl),
    Choice("Compressive", "the compression, by a loss of its own", _compressive),
    Choice("Memorizing", "queries and gate; nothing stored", _memorizing),
    Choice("infinity-former", "densities and gate; nothing stored", _infinity_former),
    Choice("Linear Transformer", "all, over segments", _linear("Linear Transformer (ELU)", "Linear Transformer")),
    Choice("RFA", "all, over segments", _linear("RFA with a gate", "RFA")),
    Choice("T2R", "all, over segments", _linear("T2R, from scratch", "T2R")),
    Choice("MemSizer", "all, over segments", _linear("MemSizer, 32 slots", "MemSizer")),
    Choice("memory tokens", "all, in a segment", _memory_tokens),
    Choice("Memformer", "all, over segments, also by replay", _memformer),
    Choice("product keys", "keys and values, of the slots read", _facts("product keys")),
    Choice("ResM", "keys and values, of the slots read", _facts("product keys beside the network (ResM)")),
    Choice("SPALM", "the gate; nothing stored", _spalm),
    Choice("continuous cache", "nothing", _continuous_cache),
    Choice("kNN-LM", "nothing", _knn_lm),
)


def table(known: Known) -> str:
    """Returns the table of memories: bytes of state for a row of the batch, FLOPs of a token as a multiple of those
    without memory, gradients, and our own measurements.
    """
    records = {record["memory"]: record for record in known.facts("memory_costs", "decoder")["records"]}
    none = records[NONE]
    heads = ["memory", "state a row", "FLOPs a token", "differentiable", "in our own measurements"]
    rows = [[NONE, "0", f"{none['flops_per_token'] / 1e6:.0f} M", "", ""]]
    for choice in CHOICES:
        record = records[choice.memory]
        share = f"x {record['flops_per_token'] / none['flops_per_token']:.2f}"
        rows.append([choice.memory, size(record["state_bytes"]), share, choice.gradients, choice.measured(known)])
    return f"\n{grid(heads, rows)}\n"


def size(number: int) -> str:
    """Returns a number of bytes in KiB or MiB, as text.

    Example:
      >>> size(0), size(132353), size(12589056)
      ('0', '129 KiB', '12.0 MiB')
    """
    if number >= 2**20:
        return f"{number / 2**20:.1f} MiB"
    return f"{number / 2**10:.0f} KiB" if number else "0"
