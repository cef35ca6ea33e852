"""Which tokens a memory helps: a text shaded by what its words gain, the largest gains, and neighbours of a store."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.inspection.token_nats import TokenNats
from memjax.report.panel import OpenedRun, Panel, Paragraph, Table
from memjax.report.segments import printable_words, token_texts

__all__ = ["panels"]

TOKENS = 1000
"""of the document that is shown, its last ones: there the memory is full"""

FULL = 2.0
"""nats that have the full colour"""

MOST = 15
"""gains in a table; losses are a third of it"""

CONTEXT = 24
"""tokens before a token that are shown with it"""

NEIGHBORS = 3
"""of each target of a store that are shown"""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Gains of a run with a memory, and of a run with a store."""
    if run.datastore:
        yield _store(run)
    if run.has_memory:
        yield _memory(run)


def _memory(run: OpenedRun) -> Panel:
    """The text of a document, and the tokens that gain most."""
    kept, cleared = run.nats_with_memory, run.nats_without_memory
    gains = cleared.nats - kept.nats
    words = token_texts(run, kept.tokens.tolist())
    number, where = longest_document(kept)
    of_text = where[-TOKENS:]
    grouped = [[of_text[index] for index in group] for group in group_words([words[index] for index in of_text])]
    pieces = tuple("".join(words[index] for index in group) for group in grouped)
    sums = [float(gains[group].sum()) for group in grouped]
    notes = tuple(_note(kept, cleared, group) for group in grouped)
    caption = (
        f"The last {len(of_text):,} of the {len(where):,} tokens that were scored of document {number + 1} of those "
        f"that were read of the {run.split} split, the longest: nats that each word costs without the memory less "
        f"those with it; {FULL:g} nats have the full colour. Their sum is {sum(sums):+.1f}."
    )
    values = tuple(max(-1.0, min(1.0, value / FULL)) for value in sums)
    order = np.argsort(-gains, kind="stable")
    chosen = [*order[:MOST].tolist(), *order[::-1][: MOST // 3][::-1].tolist()]
    rows = tuple(_row(run, kept, cleared, words, index) for index in chosen)
    heads = ("before it", "token", "without", "with", "gain", "last there, tokens ago")
    of_table = (
        f"Of {len(gains):,} tokens, the {min(MOST, len(gains))} that the memory helps most, then the {MOST // 3} that "
        "it harms most; nats with the memory, and where every segment finds the one that a document begins with."
    )
    text = (
        "Which tokens does the memory help? Names that come back after long, as Wu et al. 2022 found for the "
        "Memorizing Transformer, or something else. A word that is easier with the memory has the colour of a gain."
    )
    parts = (
        Paragraph("gains_text", "A text with what its words gain", caption, pieces, values, notes),
        Table("gains_largest", "Largest gains and losses", of_table, heads, rows),
    )
    return Panel("gains", "Which tokens the memory helps", text, parts)


def longest_document(found: TokenNats) -> tuple[int, list[int]]:
    """The number of the document with most scored tokens, the first of those with as many, and where those are."""
    sizes = np.bincount(found.document) if len(found.document) else np.zeros(1, int)
    number = int(np.argmax(sizes))
    return number, np.flatnonzero(found.document == number).tolist()


def group_words(pieces: Sequence[str]) -> list[list[int]]:
    """Indices of the pieces of each word: a word begins where white space begins, or has ended.

    Example:
      >>> group_words(["de", "f ", "go", "(", ")", "\\n", "  re", "turn"])
      [[0, 1], [2, 3, 4], [5, 6, 7]]
      >>> group_words([" the", " cat", "s", " sat"])
      [[0], [1, 2], [3]]
    """
    groups: list[list[int]] = []
    space = True
    for index, piece in enumerate(pieces):
        begins = piece[:1].isspace()
        if not groups or (begins and not space) or (space and not begins):
            groups.append([])
        groups[-1].append(index)
        space = piece[-1:].isspace() if piece else space
    return groups


def _note(kept: TokenNats, cleared: TokenNats, group: list[int]) -> str:
    """What is said of a word that is pointed at."""
    tokens = f"{len(group)} tokens, " if len(group) > 1 else ""
    ago = int(kept.since[group[0]])
    last = f"last there {ago:,} tokens ago" if ago else "not there before"
    with_it, without = float(kept.nats[group].sum()), float(cleared.nats[group].sum())
    return f"{tokens}{with_it:.2f} nats with the memory, {without:.2f} without; {last}"


def _row(run: OpenedRun, kept: TokenNats, cleared: TokenNats, words: Sequence[str], index: int) -> tuple[Any, ...]:
    before = [i for i in range(max(index - CONTEXT, 0), index) if kept.document[i] == kept.document[index]]
    context = "".join(printable_words([words[i] for i in before])).strip()
    nats = round(float(cleared.nats[index]), 3), round(float(kept.nats[index]), 3)
    ago = int(kept.since[index])
    gain = round(float(cleared.nats[index] - kept.nats[index]), 3)
    return (context, _visible(words[index]), *nats, gain, ago or None)


def _visible(word: str) -> str:
    """A token of a table.

    Example:
      >>> _visible(" the"), _visible("  "), _visible("\\n")
      (' the', '␣␣', '⏎')
    """
    (token,) = printable_words([word])
    return token if token.strip() else token.replace(" ", "␣")


def _store(run: OpenedRun) -> Panel:
    """Targets that the neighbours of a store helped most, and those neighbours."""
    from memjax.data.annotations import AnnotatedDocuments
    from memjax.datastore.store import Store
    from memjax.retrieval.building import check_not_in_store, check_store
    from memjax.retrieval.interpolation import NEIGHBORS as FOUND
    from memjax.retrieval.interpolation import (
        InterpolationWeights,
        load_interpolation,
        neighbors_in_store,
        open_exact_index,
    )
    from memjax.retrieval.keys import TAP, make_key_source
    from memjax.retrieval.retrieved import largest_gains, read_retrieved
    from memjax.retrieval.tuning import score_mixture, tune_interpolation

    store = Store(Path(run.datastore).expanduser())
    experiment = run.loaded_run.experiment
    limited = dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, evaluation=run.evaluation))
    loaded = dataclasses.replace(run.loaded_run, experiment=limited)
    source = make_key_source(loaded, str(store.header.protocol.get("key", TAP)))
    check_store(source, store)
    check_not_in_store(source, store, run.split)
    index = open_exact_index(store)
    try:
        mixing = load_interpolation(source, store, index)
    except ValueError:  # nobody has tuned it yet
        mixing = None
    alone, found = neighbors_in_store(
        source, store, index, source.evaluator(run.split), mixing.neighbors if mixing else FOUND
    )
    if mixing is None:
        best = tune_interpolation(found.targets, found.neighbors)
        mixing = InterpolationWeights(best.interpolation_weight, best.temperature, FOUND, "the text that is shown")
    score, mixed = score_mixture(found.targets, found.neighbors, mixing.weight, mixing.temperature)
    split = store.header.data.partition("/")[0]
    numbers = source.numbers(split, rows=store.header.rows, num_shards=store.header.num_shards)
    texts = {name: AnnotatedDocuments(experiment.documents(name)) for name in {split, run.split}}
    chosen = largest_gains(found.targets, mixed, MOST)
    helped = read_retrieved(
        chosen,
        found.targets,
        found.neighbors,
        before_target=lambda number: texts[run.split].before(number, CONTEXT),
        before_entry=lambda entry: texts[split].before(int(numbers[entry]), CONTEXT),
        decode=lambda ids: "".join(printable_words(token_texts(run, ids))),
        temperature=mixing.temperature,
        mixed=mixed,
        count=NEIGHBORS,
    )
    rows = []
    for one in helped:
        gain = math.log(one.mixed) - math.log(one.probability) if one.mixed and one.probability else None
        rows.append(
            (
                "target",
                one.context,
                _visible(one.token),
                round(one.probability, 4),
                None if one.mixed is None else round(one.mixed, 4),
                gain,
                None,
            )
        )
        for number, near in enumerate(one.neighbors, start=1):
            rows.append(
                (f"neighbour {number}", near.context, _visible(near.token), None, None, near.weight, near.distance)
            )
    caption = (
        f"{store.entries:,} entries of the {split} split; {mixing.neighbors} neighbours a token, weight "
        f"{mixing.weight:g}, temperature {mixing.temperature:g}"
        + (f", tuned on {mixing.tuned_on}" if mixing.tuned_on else "")
        + ". "
        f"{score.targets:,} tokens of the {run.split} split: {alone.nats_per_token:.4f} nats a token without the "
        f"store, {score.nats / score.targets:.4f} with it."
    )
    heads = ("", "before it", "token", "probability", "with the store", "gain in nats, or weight", "distance")
    table = Table("store_gains", "What the store helped most", caption, heads, tuple(rows))
    text = (
        "Which neighbours helped (kNN-LM, Khandelwal et al. 2020)? Below each target its nearest keys: the text before "
        "them, the token that followed there, its share of the neighbours' vote, and the distance of its key."
    )
    return Panel("store", "What the datastore helped", text, (table,))
