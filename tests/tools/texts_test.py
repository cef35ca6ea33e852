"""What texts for people say of the book."""

import xml.etree.ElementTree as ElementTree

import jax
import pytest

from tools.measurements import memory_costs
from tools.results import marked_texts, pages
from tools.results.ledger import Book, Measurement
from tools.texts import pictures, which

SIZES = {"dim": 16, "layers": 4, "heads": 2, "hidden": 16, "vocab": 23, "length": 8}


def test_the_picture_has_a_bar_for_each_mean():
    records = [{"found": {"kept": kept, "cleared": 0.25}} for kept in (0.5, 1.0)]
    facts = {"unit": "accuracy", "chance": 0.125, "records": records}
    learned = Measurement("learns", "a < b", "", "", "", "", "", facts)
    other = Measurement("learns", "nats", "", "", "", "", "", {**facts, "unit": "nats"})
    picture = ElementTree.fromstring(pictures.worth([learned, other]))
    bars = [e for e in picture if e.tag.endswith("rect") and float(e.get("x")) == pictures.LEFT]
    whole = pictures.WIDTH - pictures.LEFT - pictures.RIGHT
    assert [float(bar.get("width")) / whole for bar in bars] == pytest.approx([0.75, 0.25], abs=1e-3)
    texts = ["".join(e.itertext()) for e in picture if e.tag.endswith("text")]
    assert "a < b" in texts and "75 %" in texts and "nats" not in texts


def test_costs_are_counted_of_every_memory_that_one_may_choose():
    found = memory_costs.memories()
    assert list(found) == [which.NONE, *(choice.memory for choice in which.CHOICES)]
    none, linear = (memory_costs.measure(found[name][1], SIZES) for name in (which.NONE, "Linear Transformer"))
    assert none["state_bytes"] == 0 < linear["state_bytes"] and none["flops_per_token"] > 0
    # Keys and values of 2,000 positions: no; hidden states and ids of them, the last hidden state, flags.
    cache = memory_costs.measure(found["continuous cache"][1], SIZES)
    assert cache["state_bytes"] == 2000 * (16 * 4 + 4 + 1) + 16 * 4 + 4 + 1
    assert cache["parameter_bytes"] == none["parameter_bytes"]
    jax.clear_caches()


def test_links_of_a_cell_begin_where_the_text_stands():
    text = "<!-- result: system_ewc --><!-- end -->"
    assert "](tools/results/tables/lifelong_mnist.md)" in pages.marked(text, Book())
    assert "](../../tools/results/tables/lifelong_mnist.md)" in pages.marked(text, Book(), "../../")


def test_every_cell_stands_somewhere():
    said = "".join(file.read_text() for file in pages.TEXTS)
    assert [name for name in marked_texts.MAKERS if f"<!-- result: {name} -->" not in said] == []
