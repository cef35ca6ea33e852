"""kNN-LM with six inner tensors as keys, each with a store of its own.

    python -m tools.results.knn_lm.key_positions RUN --data.source.path DIR --evaluation.max-segments 10

The positions are those of the paper's table of key functions: input of the last layer's self-attention and of its
feed-forward part, before and after the norm, and the model's output before and after its last norm. Search is exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memjax.data.documents import ArrayDocuments
from memjax.datastore.index import open_index
from memjax.training.datastores import build_datastore
from tools.results.knn_lm import experiment

POSITIONS = {
    "layer_-1/attention_input": "input of self-attention",
    "layer_-1/attention_input_normed": "input of self-attention after its norm",
    "layer_-1/feed_forward_input": "input of the feed-forward part",
    "layer_-1/feed_forward_input_normed": "input of the feed-forward part after its norm",
    "output": "output of the model",
    "output_normed": "output of the model after its norm",
}


def measure(run: str, config: Any, workdir: Path, tokens: int) -> dict[str, Any]:
    """Every number of the table."""
    rows, found, protocol = [], {}, {}
    for tap in POSITIONS:
        source = experiment.open_source(run, config, tap)
        documents = source.run.experiment.documents
        texts = {split: documents(split) for split in experiment.SPLITS}
        train = ArrayDocuments([experiment.all_tokens(documents("train"))[:tokens]])
        source, protocol = experiment.with_documents(source, {"train": train, **texts}), source.protocol()
        store = build_datastore(source, workdir / f"{tap.replace('/', '_')}_{tokens}")
        index = open_index(store, "exact")
        name = f"exact_{tap.rpartition('/')[2]}"
        found = {split: experiment.find(source, store, index, split, workdir, name=name) for split in experiment.SPLITS}
        rows.append({"key": tap, "entries": store.entries, **experiment.tuned(*found.values())})
    return {
        "base": experiment.base(found),
        "targets": {split: len(one.targets) for split, one in found.items()},
        "rows": rows,
        "protocol": {**protocol, "key": "one of six"},
    }


def main() -> None:
    tokens = ("--tokens", {"type": int, "default": 250_000, "help": "of the training split, in every store"})
    options, config = experiment.parse("key_positions", __doc__, tokens)
    facts = measure(options.run, config, options.workdir, options.tokens)
    base = facts["base"]
    table = [["none", "", "", *map(experiment.perplexity, base.values()), ""]]
    for row in facts["rows"]:
        nats = [experiment.perplexity(row[split]) for split in experiment.SPLITS]
        cells = [f"{POSITIONS[row['key']]} (`{row['key']}`)", row["weight"], f"{row['temperature']:g}", *nats]
        table.append([*cells, experiment.change(row["test"], base["test"])])
    experiment.write(
        f"key_positions_{Path(options.run).name}",
        "key_positions",
        facts,
        "kNN-LM: positions of the keys",
        f"A store of the first {facts['rows'][0]['entries']:,} tokens of the training split for each position, exact "
        f"search, {experiment.NEIGHBORS} neighbours; {experiment.protocol_text(facts, config)}",
        experiment.as_table(["key", "weight", "temperature", "validation", "test", "change"], table),
    )


if __name__ == "__main__":
    main()
