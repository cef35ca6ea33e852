"""Runs `transformers` for `tools.measurements.beside_transformers`, and answers JSON lines on standard input.

It runs as a file in an environment with torch and transformers, and needs nothing else of this repository.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import transformers


class Worker:
    """A model that is read from a folder, in float32.

    Attributes:
      model: The model, of the class that the folder names.
    """

    def __init__(self, folder: str, threads: int):
        torch.set_num_threads(threads)
        self.folder = folder
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.static: Any = None

    @torch.no_grad()
    def windows(self, ids: list[int], window: int) -> dict[str, Any]:
        """Returns the nats of every token but the first, read at once by the Mistral class with a sliding window.

        Args:
          ids: Ids of all tokens.
          window: Number of keys of the window.
        """
        described = self.model.config.to_dict()
        names = ("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path")
        settings = {name: value for name, value in described.items() if name not in names}
        config = transformers.MistralConfig(
            **{**settings, "sliding_window": window, "max_position_embeddings": len(ids)}
        )
        mistral = transformers.MistralForCausalLM(config).eval()
        mistral.load_state_dict(self.model.state_dict())
        tokens = torch.tensor([ids])
        hidden = mistral.model(tokens).last_hidden_state[0, :-1]
        logits = [mistral.lm_head(part).log_softmax(-1) for part in hidden.split(512)]
        nats = [-part.gather(1, to[:, None])[:, 0] for part, to in zip(logits, tokens[0, 1:].split(512), strict=True)]
        return {"nats": torch.cat(nats).tolist()}

    @torch.no_grad()
    def score(self, rows: list[list[int]]) -> dict[str, Any]:
        """Returns the seconds of a forward pass with the log-probabilities of all tokens."""
        tokens = torch.tensor(rows)
        start = time.perf_counter()
        self.model(tokens, use_cache=False).logits.log_softmax(-1)
        return {"seconds": time.perf_counter() - start}

    @torch.no_grad()
    def generate(self, rows: list[list[int]], count: int, static: bool) -> dict[str, Any]:
        """Returns the seconds that new tokens after the prompts take, prompts included, and the new tokens.

        Args:
          rows: Ids of the prompts.
          count: Number of new tokens of each row. Every token is the most probable one.
          static: Whether to use a static cache and a compiled step.
        """
        options: dict[str, Any] = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        if static:  # generate() then compiles the step of a token
            options["cache_implementation"] = "static"
        tokens = torch.tensor(rows)
        start = time.perf_counter()
        outputs = self.model.generate(tokens, attention_mask=torch.ones_like(tokens), pad_token_id=0, **options)
        return {"seconds": time.perf_counter() - start, "tokens": outputs[:, tokens.shape[1] :].tolist()}


def main() -> None:
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps(versions), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("what"))(**request)
        except Exception as error:  # the other side says it and goes on
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
