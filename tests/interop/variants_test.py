"""Options of the families against the classes of transformers: equal logits, and not with a switch flipped."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.interop.families import FAMILIES
from memjax.interop.family import ModelFamily
from memjax.models.factory import make_language_model, make_text_encoder
from memjax.tasks import make_task
from tests.interop import variants

GOLDEN = Path(__file__).parent.parent / "golden" / "interop.npz"
LIMIT = 1e-5
"""largest difference of logits over the largest logit"""


def make(name: str) -> tuple[ModelFamily, dict[str, Any], dict[str, np.ndarray]]:
    """Returns the family, config.json and weights of a variant."""
    described = variants.describe(name)
    family = FAMILIES[described["model_type"]]
    model = family.model_config(described)
    class_name = described["architectures"][0]
    task: Any = None
    if class_name.endswith("ForMaskedLM"):
        task = config.MaskedLanguageModeling()
    elif class_name.endswith("ForSequenceClassification"):
        task = config.Classification(num_classes=3)
    elif class_name.endswith("ForQuestionAnswering"):
        task = config.QuestionAnswering()
    if isinstance(model.attention, config.Bidirectional) and not isinstance(task, config.Classification):
        model.attention.pooler = False  # those classes have none
    shapes = {
        name: tuple(variants.VOCAB if size == -1 else size for size in shape)
        for entry in family.tensors(model, task)
        for name, shape in entry.tensors.items()
    }
    return family, described, variants.weights(shapes)


def logits_of(
    model: config.Model, params: Any, task: Any, length: int = variants.LENGTH, compiled: bool = True
) -> np.ndarray:
    """Logits of the inputs that all variants share, texts of `length` tokens."""
    ids, mask = variants.inputs(length)
    tokens, visible = jnp.asarray(ids, jnp.int32), jnp.asarray(mask)
    if model.attention.is_causal:
        module: Any = make_language_model(model, variants.VOCAB)
        options: dict[str, Any] = {"start_of_document": jnp.ones(2, bool)}
    else:
        module = make_text_encoder(model, make_task(config.Config(task=task, model=model)).head(), variants.VOCAB)
        options = {"extras": {}}

    def apply(params):
        output, _, _ = module.apply({"params": params}, tokens, module.init_state(2), mask=visible, **options)
        if model.attention.is_causal:
            return module.apply({"params": params}, output, method=lambda m, h: m.vocabulary.logits(h))
        if isinstance(task, config.MaskedLanguageModeling):
            return module.apply({"params": params}, output, method="logits")
        return output.swapaxes(1, 2) if isinstance(task, config.QuestionAnswering) else output

    return np.asarray((jax.jit(apply) if compiled else apply)(params))


def difference(name: str, logits: np.ndarray, length: int = variants.LENGTH) -> float:
    """Returns the largest difference of logits from the published ones, over the largest of those."""
    with np.load(GOLDEN) as file:
        expected = file[variants.golden_name(name, length)]
    real = variants.inputs(length)[1] if expected.shape[1] == length else slice(None)
    expected, logits = expected[real], logits.reshape(expected.shape)[real]
    assert expected.max() - expected.min() >= 3
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_logits_are_those_of_transformers_and_come_back(name):
    family, described, weights = make(name)
    read = family.read_model(described, weights)
    assert difference(name, logits_of(read.model, read.params, read.task)) <= LIMIT
    written = family.export_params(read.params, read.model, read.task)
    again = family.read_model(family.export_config(read.model, variants.VOCAB, read.task), written)
    assert (again.model, again.task) == (read.model, read.task)
    jax.tree.map(np.testing.assert_array_equal, again.params, read.params)
    fixed = variants.FIXED_AT_IMPORT.get(name, ())
    expected = {key: value for key, value in described.items() if key not in fixed}
    assert family.export_config(read.model, variants.VOCAB, read.task).items() >= expected.items()


ROTARY = [name for name in variants.VARIANTS if len(variants.lengths(name)) > 1]


@pytest.mark.laws
@pytest.mark.parametrize("length", [length for length in variants.LENGTHS if length != variants.LENGTH])
@pytest.mark.parametrize("name", ROTARY)
def test_logits_of_other_lengths_are_those_of_transformers(name, length):
    family, described, weights = make(name)
    read = family.read_model(described, weights)
    assert difference(name, logits_of(read.model, read.params, None, length, compiled=False), length) <= LIMIT


FLIPPED: dict[str, dict[str, Any]] = {
    "bert_epsilon": {"norm_epsilon": None},
    "bert_relu": {"feed_forward.activation": "gelu_exact"},
    "bert_silu_one_type": {"feed_forward.activation": "gelu"},
    "bert": {"task.activation": "relu"},
    "gpt2_epsilon": {"norm_epsilon": None},
    "gpt2_relu2": {"feed_forward.activation": "relu"},
    "gpt2_tanh": {"feed_forward.activation": "gelu"},
    "roberta": {"task.activation": "relu"},
    "llama": {"attention.rotary.theta": 20_000.0},
    "llama_3": {"attention.rotary.high_frequency_factor": 3.0},
    "llama_biases": {"feed_forward.activation": "swiglu"},
    "mistral": {"attention.window": 5},
    "qwen2": {"attention.rotary.attention_factor": 1.0},
    "qwen3": {"norm_epsilon": 1e-2},
    "qwen2_windows": {"attention.local_layers": (0,)},
    "gemma3": {"attention.local_rotary.theta": 120.0},
    "gemma2": {"attention.score_cap": 2.5},
    "olmo2": {"norm_epsilon": 0.11},
    "olmo3": {"attention.window": 4},
    "smollm3": {"attention.local_layers": (1,)},
    "granite": {"residual_scale": 0.6},
    "phi3": {"attention.rotary.attention_factor": 1.0},
    "phi3_short": {"attention.rotary.divisors": (1.0, 1.3, 2.0, 3.5)},
}


def replace_at(settings: Any, path: str, value: Any) -> Any:
    """A copy of settings with another value at a dotted path."""
    name, _, inner = path.partition(".")
    return dataclasses.replace(
        settings, **{name: replace_at(getattr(settings, name), inner, value) if inner else value}
    )


@pytest.mark.parametrize("name, flip", FLIPPED.items(), ids=FLIPPED)
def test_a_flipped_switch_is_another_model(name, flip):
    family, described, weights = make(name)
    read = family.read_model(described, weights)
    model, task = read.model, read.task
    for path, value in flip.items():
        if path == "task.activation":
            task = config.MaskedLanguageModeling(activation=value)
        else:
            model = replace_at(model, path, value)
    assert difference(name, logits_of(model, read.params, task)) > 10 * LIMIT


def other_theta(positions: Any) -> float | None:
    """Another base of rotary positions, if there are any."""
    return positions and 1.2 * positions.theta


def head_dim(model: config.Model) -> int:
    """Width of a head."""
    return model.head_dim or model.dim // model.num_heads


POSITIONS = config.RotaryPositions
FACTORS = config.LinearPositions | config.Llama3Positions | config.YarnPositions
SCALED = config.YarnPositions | config.LongRopePositions
SWITCHES: dict[str, Any] = {
    "attention.bias": lambda m: False if m.attention.bias else None,
    "attention.output_bias": lambda m: False if m.attention.output_bias else None,
    "feed_forward.bias": lambda m: False if m.feed_forward.bias else None,
    "attention.query_key_norm": lambda m: "none" if m.attention.query_key_norm != "none" else None,
    "attention.norm": lambda m: {"pre": "after", "after": "pre", "both": "pre"}[m.attention.norm],
    "attention.norm_kind": lambda m: "rms" if m.attention.norm_kind == "rms_offset" else "rms_offset",
    "feed_forward.activation": lambda m: {"swiglu": "geglu", "geglu": "swiglu"}[m.feed_forward.activation],
    "attention.rotary": lambda m: dataclasses.replace(m.attention.local_rotary) if not m.attention.rotary else None,
    "attention.rotary.theta": lambda m: other_theta(m.attention.rotary),
    "attention.local_rotary.theta": lambda m: m.attention.local_layers and other_theta(m.attention.local_rotary),
    "attention.rotary.fraction": lambda m: 4 / head_dim(m) if type(m.attention.rotary) is POSITIONS else None,
    "attention.rotary.factor": lambda m: 3.0 if isinstance(m.attention.rotary, FACTORS) else None,
    "attention.rotary.attention_factor": lambda m: 1.1 if isinstance(m.attention.rotary, SCALED) else None,
    "attention.window": lambda m: None if m.attention.local_layers == (0, 1) else m.attention.window + 3,
    "attention.local_window": lambda m: m.attention.local_layers and m.attention.local_window + 2,
    "attention.local_layers": lambda m: m.attention.local_layers and tuple(1 - i for i in m.attention.local_layers),
    "attention.score_cap": lambda m: 0.0 if m.attention.score_cap else 2.0,
    "attention.score_scale": lambda m: 1.1 * (m.attention.score_scale or head_dim(m) ** -0.5),
    "logit_cap": lambda m: 0.0 if m.logit_cap else 20.0,
    "logit_divisor": lambda m: 1.1 * m.logit_divisor,
    "residual_scale": lambda m: 1.1 * m.residual_scale,
    "scale_embeddings": lambda m: None if m.embedding_scale else not m.scale_embeddings,
    "embedding_scale": lambda m: 1.1 * m.embedding_scale if m.embedding_scale else None,
    "norm_epsilon": lambda m: (m.norm_epsilon or 0.0) + 0.01,
    "output.tied": lambda m: None if m.output.tied else True,
}
"""path of a switch of a family -> another value for a model. None where the model has no such switch"""


@pytest.mark.laws
@pytest.mark.parametrize("name", ROTARY)
def test_every_flipped_switch_is_another_model(name):
    family, described, weights = make(name)
    read = family.read_model(described, weights)
    number, equal = 0, []
    for path, flip in SWITCHES.items():
        value = flip(read.model)
        if value in (None, ()):
            continue
        model = replace_at(read.model, path, value)
        number += 1
        logits = logits_of(model, read.params, None, compiled=False)  # many programs, each run once
        if difference(name, logits) <= 10 * LIMIT:
            equal.append(path)
    assert not equal
    assert number >= 10


def test_rows_of_padding_are_no_positions():
    family, described, weights = make("roberta")
    table = "roberta.embeddings.position_embeddings.weight"
    rolled = {**weights, table: np.roll(weights[table], 1, axis=0)}
    read = family.read_model(described, rolled)
    assert difference("roberta", logits_of(read.model, read.params, read.task)) > 10 * LIMIT
