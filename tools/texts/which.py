"""Which memory to use: what each costs in one decoder, what of it is differentiable, what it was good for here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from tools.results.ledger import apart
from tools.results.speed_tables import grid
from tools.texts.known import Known, link

MODEL = "knn_lm_wikitext_default"
NONE = "no memory"


class Choice(NamedTuple):
    """A row.

    Attributes:
      memory: as the measurement of costs names it.
      gradients: what of it is differentiable.
      good_for: what was measured.
    """

    memory: str
    gradients: str
    good_for: Callable[[Known], str]


def _perplexity(known: Known, kind: str, row: str) -> float:
    return math.exp(known.facts(kind, MODEL)["rows"][row]["test"])


def _transformer_xl(known: Known) -> str:
    own, none = (_perplexity(known, "spalm", row) for row in ("transformer_xl", "no_memory"))
    return f"text, to begin with: WikiText-2 perplexity {own:.1f}, without memory {none:.1f} ({link('knn_lm')})"


def _compressive(known: Known) -> str:
    gain = known.learned("Compressive", "not_compressed")
    return f"recall of what has left the positions: {gain} over none ({link('learns')})"


def _memorizing(known: Known) -> str:
    recipe = "memory_gain_controls"
    gain = known.against(recipe, "Memorizing", "cache of 544 tokens", "test bits per byte", 3)
    return f"names in code, bits per byte: {gain} over a cache of as many bytes ({link(recipe)})"


def _infinity_former(known: Known) -> str:
    gain = known.against("events_signals", "infinity-former", "no signal", "test accuracy")
    return f"when events were, at a fixed cost: {gain} over no signal ({link('events_signals')})"


def _linear(row: str, contender: str) -> Callable[[Known], str]:
    def said(known: Known) -> str:
        records = apart(known.facts("decode_speed", "linear_states"))
        longest = max(record["length"] for record in records)
        rates = {r["contender"]: statistics.median(r["tokens_per_second"]) for r in records if r["length"] == longest}
        text = "linear_states_wikitext2"
        own, softmax = (known.mean(text, name, "test perplexity") for name in (row, "softmax, one segment"))
        return (
            f"decodes {rates[contender] / rates['softmax']:.0f} times as fast at {longest:,} tokens "
            f"({link('decode_speed')}); perplexity {own:.0f}, softmax {softmax:.0f} ({link(text)})"
        )

    return said


def _memory_tokens(known: Known) -> str:
    gain = known.learned("memory tokens, bottleneck", "cleared")
    recipe = "multi30k_memory_tokens"
    level = known.against(recipe, "10 memory tokens", "no memory tokens", "test perplexity")
    return f"a text through ten tokens: {gain} over none ({link('learns')}); translation: {level} ({link(recipe)})"


def _memformer(known: Known) -> str:
    recipe = "memformer_recall"
    gain = known.against(recipe, "16 slots", "no slots", "accuracy")
    return f"recall over long noise, in the smallest state: {gain} over none ({link(recipe)})"


def _facts(row: str) -> Callable[[Known], str]:
    def said(known: Known) -> str:
        gain = known.against("fact_table", row, "network of equal cost", "test accuracy")
        return f"facts: {gain} over a network of equal cost ({link('fact_table')})"

    return said


def _spalm(known: Known) -> str:
    recipe = "wikitext2_spalm"
    found = known.against(recipe, "SPALM, by halves", "goes on without", "test perplexity")
    return f"nothing that we measured: WikiText-2 perplexity, {found} over none ({link(recipe)})"


def _continuous_cache(known: Known) -> str:
    own, without = _perplexity(known, "both", "cache"), _perplexity(known, "spalm", "transformer_xl")
    return f"any trained model, untouched: perplexity {own:.1f} instead of {without:.1f} ({link('knn_lm')})"


def _knn_lm(known: Known) -> str:
    facts = known.facts("knn_lm", MODEL)
    best = min(facts["knn_lm"], key=lambda row: row["validation"])
    own, without = (math.exp(nats["test"]) for nats in (best, facts["base"]))
    return f"any trained model, and a corpus: perplexity {own:.1f} instead of {without:.1f} ({link('knn_lm')})"


CHOICES = (
    Choice("Transformer-XL", "nothing remembered", _transformer_xl),
    Choice("Compressive", "the compression, by a loss of its own", _compressive),
    Choice("Memorizing", "queries and gate; nothing stored", _memorizing),
    Choice("infinity-former", "densities and gate; nothing stored", _infinity_former),
    Choice("Linear Transformer", "all, over segments", _linear("Linear Transformer (ELU)", "Linear Transformer")),
    Choice("RFA", "all, over segments", _linear("RFA", "RFA")),
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
    """The table: state of a row, and FLOPs of a token as a multiple of those without memory."""
    records = {record["memory"]: record for record in known.facts("memory_costs", "decoder")["records"]}
    none = records[NONE]
    heads = ["memory", "state a row", "FLOPs a token", "differentiable", "in our own measurements"]
    rows = [[NONE, "0", f"{none['flops_per_token'] / 1e6:.0f} M", "", ""]]
    for choice in CHOICES:
        own = records[choice.memory]
        share = f"x {own['flops_per_token'] / none['flops_per_token']:.2f}"
        rows.append([choice.memory, size(own["state_bytes"]), share, choice.gradients, choice.good_for(known)])
    return f"\n{grid(heads, rows)}\n"


def size(number: int) -> str:
    """Bytes for people.

    Example:
      >>> size(0), size(132353), size(12589056)
      ('0', '129 KiB', '12.0 MiB')
    """
    if number >= 2**20:
        return f"{number / 2**20:.1f} MiB"
    return f"{number / 2**10:.0f} KiB" if number else "0"
