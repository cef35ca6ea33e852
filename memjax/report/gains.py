"""Panels of the tokens that a memory helps: a text shaded by gain, the largest gains, and neighbours of a datastore."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memjax.inspection.token_nats import TokenNats
from memjax.report.panel import OpenedRun, Panel, Paragraph, Table
from memjax.report.run_text import printable_words, token_texts

if TYPE_CHECKING:  # these files are imported by the reports of runs with a datastore only
    from memjax.datastore.index import Index
    from memjax.datastore.store import Store
    from memjax.retrieval.interpolation import InterpolationWeights, StoreNeighbors
    from memjax.retrieval.keys import KeyExtractor
    from memjax.retrieval.retrieved import TargetWithNeighbors

TOKENS = 1000
"""Largest number of tokens of the shaded text. The last tokens of a document are shown, where the memory is full."""

FULL = 2.0
"""Gain or loss in nats that is drawn in full colour."""

MOST = 15
"""Largest number of gains in a table. A third as many losses are shown."""

CONTEXT = 24
"""Number of tokens before a token that are shown with it."""

NEIGHBORS = 3
"""Number of neighbours in the datastore that are shown for each target."""


def panels(run: OpenedRun) -> Iterator[Panel]:
    """Yields a panel of the targets that the run's datastore helps, if one was given, and a panel of the tokens that
    its memory helps, if it has one.

    Both evaluate the run when they are made.
    """
    if run.datastore:
        yield _store_panel(run)
    if run.has_memory:
        yield _memory_panel(run)


def _memory_panel(run: OpenedRun) -> Panel:
    """Makes the panel with a shaded document and the tokens whose nats fall most with the memory."""
    with_memory, without_memory = run.nats_with_memory, run.nats_without_memory
    gains = without_memory.nats - with_memory.nats
    words = token_texts(run, with_memory.tokens.tolist())
    number, where = _longest_document(with_memory)
    of_text = where[-TOKENS:]
    grouped = [[of_text[index] for index in group] for group in _group_words([words[index] for index in of_text])]
    pieces = tuple("".join(words[index] for index in group) for group in grouped)
    sums = [float(gains[group].sum()) for group in grouped]
    notes = tuple(_note(with_memory, without_memory, group) for group in grouped)
    caption = (
        f"The last {len(of_text):,} of the {len(where):,} scored tokens of the longest document that was read in the "
        f"{run.split} split (number {number + 1}). The colour of a word shows its loss without the memory minus its "
        f"loss with the memory. {FULL:g} nats have the full colour. The sum over all words is {sum(sums):+.1f} nats."
    )
    values = tuple(max(-1.0, min(1.0, value / FULL)) for value in sums)
    order = np.argsort(-gains, kind="stable")
    chosen = [*order[:MOST].tolist(), *order[::-1][: MOST // 3][::-1].tolist()]
    rows = tuple(_row(run, with_memory, without_memory, words, index) for index in chosen)
    heads = ("text before", "token", "without", "with", "gain", "last occurrence, tokens ago")
    of_table = (
        f"The {min(MOST, len(gains))} of {len(gains):,} tokens that the memory helps most, then the {MOST // 3} that "
        "it harms most: their losses in nats without memory (it is reset before every segment) and with it."
    )
    text = (
        "Which tokens does the memory help? Wu et al. 2022 found for the Memorizing Transformer that it helps with "
        "names that return after a long time. A word that is easier with the memory has the colour of a gain."
    )
    parts = (
        Paragraph("gains_text", "A text shaded by the gain of its words", caption, pieces, values, notes),
        Table("gains_largest", "Largest gains and losses", of_table, heads, rows),
    )
    return Panel("gains", "Tokens that the memory helps", text, parts)


def _longest_document(found: TokenNats) -> tuple[int, list[int]]:
    """Finds the document with most scored tokens, the first one if several have equally many.

    Args:
      found: Scored tokens.

    Returns:
      The number of the document, and the indices of its tokens in `found`.
    """
    sizes = np.bincount(found.document) if len(found.document) else np.zeros(1, int)
    number = int(np.argmax(sizes))
    return number, np.flatnonzero(found.document == number).tolist()


def _group_words(pieces: Sequence[str]) -> list[list[int]]:
    """Groups the pieces of a text into words and returns the indices of the pieces of each word.

    A word begins where white space begins, or where it has ended inside a piece.

    Args:
      pieces: Texts of tokens, in order.

    Example:
      >>> _group_words(["de", "f ", "go", "(", ")", "\\n", "  re", "turn"])
      [[0, 1], [2, 3, 4], [5, 6, 7]]
      >>> _group_words([" the", " cat", "s", " sat"])
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


def _note(with_memory: TokenNats, without_memory: TokenNats, group: list[int]) -> str:
    """Makes the note of a word: its losses with and without the memory, and its last occurrence."""
    tokens = f"{len(group)} tokens, " if len(group) > 1 else ""
    ago = int(with_memory.since[group[0]])
    last = f"last occurrence {ago:,} tokens ago" if ago else "first occurrence"
    with_it, without = float(with_memory.nats[group].sum()), float(without_memory.nats[group].sum())
    return f"{tokens}{with_it:.2f} nats with the memory, {without:.2f} without; {last}"


def _row(
    run: OpenedRun, with_memory: TokenNats, without_memory: TokenNats, words: Sequence[str], index: int
) -> tuple[Any, ...]:
    before = [
        i for i in range(max(index - CONTEXT, 0), index) if with_memory.document[i] == with_memory.document[index]
    ]
    context = "".join(printable_words([words[i] for i in before])).strip()
    nats = round(float(without_memory.nats[index]), 3), round(float(with_memory.nats[index]), 3)
    ago = int(with_memory.since[index])
    gain = round(float(without_memory.nats[index] - with_memory.nats[index]), 3)
    return (context, _visible(words[index]), *nats, gain, ago or None)


def _visible(word: str) -> str:
    """Replaces white space in a token by visible signs, for a table.

    Example:
      >>> _visible(" the"), _visible("  "), _visible("\\n")
      (' the', '␣␣', '⏎')
    """
    (token,) = printable_words([word])
    return token if token.strip() else token.replace(" ", "␣")


def _store_panel(run: OpenedRun) -> Panel:
    """Makes the panel of the targets that a datastore helped most, with their neighbours."""
    from memjax.data.annotations import AnnotatedDocuments
    from memjax.datastore.store import Store
    from memjax.retrieval.building import check_not_in_store, check_store
    from memjax.retrieval.interpolation import NEIGHBORS as FOUND
    from memjax.retrieval.interpolation import neighbors_in_store, open_exact_index
    from memjax.retrieval.keys import TAP, make_key_extractor
    from memjax.retrieval.retrieved import largest_gains, read_retrieved
    from memjax.retrieval.tuning import score_mixture

    store = Store(Path(run.datastore).expanduser())
    experiment = run.loaded_run.experiment
    limited = dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, evaluation=run.evaluation))
    loaded = dataclasses.replace(run.loaded_run, experiment=limited)
    source = make_key_extractor(loaded, str(store.header.protocol.get("key", TAP)))
    check_store(source, store)
    check_not_in_store(source, store, run.split)
    index = open_exact_index(store)
    saved = _saved_interpolation(source, store, index)
    alone, searched = neighbors_in_store(
        source, store, index, source.evaluator(run.split), saved.neighbors if saved else FOUND
    )
    mixing = saved or _tuned_interpolation(searched)
    score, mixed = score_mixture(searched.targets, searched.neighbors, mixing.weight, mixing.temperature)
    split = store.header.data.partition("/")[0]
    numbers = source.numbers(split, rows=store.header.rows, num_shards=store.header.num_shards)
    texts = {name: AnnotatedDocuments(experiment.documents(name)) for name in {split, run.split}}
    helped = read_retrieved(
        largest_gains(searched.targets, mixed, MOST),
        searched.targets,
        searched.neighbors,
        before_target=lambda number: texts[run.split].before(number, CONTEXT),
        before_entry=lambda entry: texts[split].before(int(numbers[entry]), CONTEXT),
        decode=lambda ids: "".join(printable_words(token_texts(run, ids))),
        temperature=mixing.temperature,
        mixed=mixed,
        count=NEIGHBORS,
    )
    tuned_on = f", tuned on {mixing.tuned_on}" if mixing.tuned_on else ""
    caption = (
        f"{store.entries:,} entries of the {split} split, {mixing.neighbors} neighbours a token, weight "
        f"{mixing.weight:g}, temperature {mixing.temperature:g}{tuned_on}. "
        f"{score.targets:,} tokens of the {run.split} split: {alone.nats_per_token:.4f} nats a token without the "
        f"store, {score.nats / score.targets:.4f} with it."
    )
    heads = ("", "text before", "token", "probability", "with the store", "gain in nats, or weight", "distance")
    table = Table("store_gains", "Targets that the datastore helped most", caption, heads, _store_rows(helped))
    text = (
        "Which neighbours helped (kNN-LM, Khandelwal et al. 2020)? Below each target are its nearest entries: the text "
        "before them, the token that followed, its share of the neighbours' weight, and the distance of its key."
    )
    return Panel("store", "Targets that the datastore helps", text, (table,))


def _saved_interpolation(source: KeyExtractor, store: Store, index: Index) -> InterpolationWeights | None:
    """Loads the interpolation that was tuned for a run and a datastore. None if it has not been tuned yet."""
    from memjax.retrieval.interpolation import load_interpolation

    try:
        return load_interpolation(source, store, index)
    except ValueError:
        return None


def _tuned_interpolation(searched: StoreNeighbors) -> InterpolationWeights:
    """Tunes the interpolation on the targets that are shown."""
    from memjax.retrieval.interpolation import NEIGHBORS as FOUND
    from memjax.retrieval.interpolation import InterpolationWeights
    from memjax.retrieval.tuning import tune_interpolation

    best = tune_interpolation(searched.targets, searched.neighbors)
    return InterpolationWeights(best.interpolation_weight, best.temperature, FOUND, "the text that is shown")


def _store_rows(helped: Sequence[TargetWithNeighbors]) -> tuple[tuple[Any, ...], ...]:
    """Makes the rows of the table of targets that a datastore helped: each target, and its neighbours below it."""
    rows: list[tuple[Any, ...]] = []
    for target in helped:
        mixed = None if target.mixed is None else round(target.mixed, 4)
        gain = math.log(target.mixed) - math.log(target.probability) if target.mixed and target.probability else None
        rows.append(("target", target.context, _visible(target.token), round(target.probability, 4), mixed, gain, None))
        for number, near in enumerate(target.neighbors, start=1):
            rows.append(
                (f"neighbour {number}", near.context, _visible(near.token), None, None, near.weight, near.distance)
            )
    return tuple(rows)
