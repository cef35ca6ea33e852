"""F1, ROUGE and METEOR of what a trained model answers in dialogues about documents, drawn from a nucleus and greedily.

python -m tools.measurements.dialogue RUN [--split test] [--dialogues 0] [--max-tokens 64]
"""

from __future__ import annotations

import sys
from typing import Any

from memjax import config as configs
from memjax.tasks.dialogue import GREEDY, NUCLEUS, answer_turns, score_answers
from memjax.training.restoring import LoadedRun
from tools.measurements.of_run import measure_command

SAMPLINGS = {"nucleus": NUCLEUS, "greedy": GREEDY}


def measure(
    run: LoadedRun, split: str, *, rows: int, dialogues: int = 0, max_tokens: int = 64, seed: int = 0
) -> dict[str, Any]:
    """Answers every utterance of a split, or of its first `dialogues`, and scores the answers."""
    experiment = run.experiment
    source = experiment.config.data.source
    if not isinstance(source, configs.Dialogues):
        raise ValueError(f"run: given one of {type(source).__name__}, allowed: a model of dialogues")
    documents: Any = experiment.documents(split)
    facts: dict[str, Any] = {"split": split, "max_tokens": max_tokens, "seed": seed, "numbers": {}}
    for name, sampling in SAMPLINGS.items():
        answers = list(
            answer_turns(
                experiment.model,
                run.variables,
                documents,
                segment_length=experiment.config.data.segment_length,
                sampling=sampling,
                rows=rows,
                max_dialogues=dialogues,
                max_tokens=max_tokens,
                seed=seed,
            )
        )
        said, wanted = (
            [experiment.tokenizer.decode(ids) for ids in side]
            for side in ([answer.tokens for answer in answers], [answer.reference for answer in answers])
        )
        scores = score_answers(said, wanted)
        means = {"F1": scores.f1, "ROUGE-1": scores.rouge_1, "ROUGE-L": scores.rouge_l, "METEOR": scores.meteor}
        facts["numbers"] |= {f"{split} {measure}, {name}": number for measure, number in means.items()}
        facts["numbers"][f"{split} utterances"] = len(answers)
        facts["signature"] = scores.signature
        facts[name] = [{"answer": one, "reference": other} for one, other in list(zip(said, wanted, strict=True))[:20]]
    return facts


def main(arguments: list[str] | None = None) -> int:
    options = {"split": "test", "rows": 16, "dialogues": 0, "max_tokens": 64, "seed": 0}
    return measure_command(measure, __doc__, arguments, **options)


if __name__ == "__main__":
    sys.exit(main())
