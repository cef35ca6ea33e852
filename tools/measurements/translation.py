"""BLEU of a trained translation model: tokenised and detokenised, with sacrebleu's signature.

python -m tools.measurements.translation RUN [--split test] [--beam 5] [--length-penalty 1.0]
"""

from __future__ import annotations

import sys
from typing import Any

from memjax import config as configs
from memjax.data.opening import open_source
from memjax.inference.beam import detokenized_bleu, tokenized_bleu, translate
from memjax.training.restoring import LoadedRun
from tools.measurements.of_run import measure_command


def measure(
    run: LoadedRun, split: str, *, beam: int, length_penalty: float, rows: int, pairs: int = 0
) -> dict[str, Any]:
    """Translates a split and scores it; all pairs that are short enough count, or the first `pairs`."""
    experiment = run.experiment
    source = experiment.config.data.source
    if not isinstance(source, configs.Translation):
        raise ValueError(f"run: given one of {type(source).__name__}, allowed: a translation model")
    documents, tokenizer = experiment.documents(split), experiment.tokenizer
    count = min(pairs or len(documents), len(documents))
    references = list(open_source(experiment.config.data, split)[1])
    references = [text[1] if isinstance(text, tuple) else text for text in references]
    chosen: Any = documents
    found = translate(
        experiment.model,
        run.variables,
        [chosen.source(i).tolist() for i in range(count)],
        rows=rows,
        source_length=source.max_length,
        begin_token=experiment.begin_token,
        end_token=tokenizer.end_id,
        beam_size=beam,
        max_length=source.max_length,
        length_penalty=length_penalty,
        segment_length=experiment.config.data.segment_length,
    )
    texts = [tokenizer.decode(ids) for ids in found]
    wanted = [references[int(i)] for i in chosen.kept[:count]]
    plain, tokenized = detokenized_bleu(texts, wanted), tokenized_bleu(texts, wanted)
    return {
        "split": split,
        "beam": beam,
        "length_penalty": length_penalty,
        "numbers": {
            f"{split} BLEU": plain.score,
            f"{split} BLEU of words": tokenized.score,
            f"{split} pairs": count,
            f"{split} pairs too long": len(references) - len(documents),
        },
        "signature": plain.signature,
        "tokenized_signature": f"lower-cased words|{tokenized.signature}",
        "first": [{"translation": text, "reference": one} for text, one in list(zip(texts, wanted, strict=True))[:5]],
    }


def main(arguments: list[str] | None = None) -> int:
    options = {"split": "test", "beam": 5, "length_penalty": 1.0, "rows": 32, "pairs": 0}
    return measure_command(measure, __doc__, arguments, **options)


if __name__ == "__main__":
    sys.exit(main())
