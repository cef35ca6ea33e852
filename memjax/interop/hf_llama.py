"""Llama of Hugging Face `transformers`, and what its kin inherit: import of weights and configuration, and export.

    model_config, params = load_pretrained("folder with config.json and model.safetensors")
    model = make_language_model(model_config, vocab_size(params))

The imported model reads segments with a memory of keys and values (`config.Rotary`). A document up to the length of the
memory and one segment gets the logits of `LlamaForCausalLM` in evaluation mode, which read it at once. Matrices of
queries and keys are in the order of transformers, whose rotation pairs entries half a head apart. Nothing here imports
torch or transformers.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memjax import config
from memjax.functional.rotary import longrope_attention_factor, yarn_attention_factor
from memjax.interop import config_keys as keys
from memjax.interop import state_dicts as hf
from memjax.interop.config_keys import Described
from memjax.interop.family import ModelFamily
from memjax.interop.parameters import is_tied, vocab_size
from memjax.settings.checks import require

__all__ = ["LLAMA", "Llama", "vocab_size"]

LONGEST = 2048
"""largest number of tokens that memory and segment of an imported model hold together, unless its settings change"""
SINKS = 4
"""number of first tokens of a document that the memory of an imported model keeps, since attention of every later token
leans on them (attention sinks, Xiao et al. 2023); a model with windows of its own was trained to do without"""
PARTS = ("q", "k", "v", "o")
"""projections of attention in transformers: queries, keys, values, output"""
KINDS: Mapping[str, tuple[type[config.RotaryPositions], Mapping[str, str]]] = {
    "default": (config.RotaryPositions, {}),
    "linear": (config.LinearPositions, {"factor": "factor"}),
    "llama3": (
        config.Llama3Positions,
        {
            "factor": "factor",
            "low_frequency_factor": "low_freq_factor",
            "high_frequency_factor": "high_freq_factor",
            "original_length": "original_max_position_embeddings",
        },
    ),
    "yarn": (
        config.YarnPositions,
        {
            "factor": "factor",
            "original_length": "original_max_position_embeddings",
            "fast_periods": "beta_fast",
            "slow_periods": "beta_slow",
            "whole_pairs": "truncate",
            "attention_factor": "attention_factor",
        },
    ),
    "longrope": (
        config.LongRopePositions,
        {
            "divisors": "short_factor",
            "attention_factor": "attention_factor",
            "original_length": "original_max_position_embeddings",
        },
    ),
}
"""`rope_type` -> its settings, and (field of them, key of transformers)"""
NORMS: Mapping[str, Mapping[str, str]] = {
    "pre": {"attention/layer_norm": "input_layernorm", "feed_forward/layer_norm": "post_attention_layernorm"},
    "after": {
        "attention/layer_norm": "post_attention_layernorm",
        "feed_forward/layer_norm": "post_feedforward_layernorm",
    },
    "both": {
        "attention/layer_norm": "input_layernorm",
        "attention/output_norm": "post_attention_layernorm",
        "feed_forward/layer_norm": "pre_feedforward_layernorm",
        "feed_forward/output_norm": "post_feedforward_layernorm",
    },
}
"""place of the norms of a layer -> (path of a norm, name of transformers)"""
ARCHITECTURE = (
    *("attention.bias", "attention.output_bias", "attention.query_key_norm", "attention.norm", "attention.norm_kind"),
    *("attention.window", "attention.local_layers", "attention.score_scale", "attention.score_cap"),
    *("scale_embeddings", "embedding_scale", "residual_scale", "logit_divisor", "logit_cap", "feed_forward.bias"),
    "head_dim",
)
"""paths of settings that a family shares unless a key of its `config.json` sets them"""
OPTIONAL = {"yarn": ("beta_fast", "beta_slow", "truncate", "attention_factor")}
"""`rope_type` -> keys that an export leaves out at their defaults"""
LONGROPE_NAMES = ("longrope", "su", "yarn")
"""names of LongRoPE where there are two lists of divisors; the later ones are Phi's earlier ones"""


class Llama(ModelFamily):
    """The family of Llama (Touvron et al. 2023), SmolLM2 and models of the same architecture, which imports and exports
    their weights. Its subclasses are in `memjax.interop.hf_llama_kin`.

    Attributes:
      classes: Start of the names of transformers' classes.
      attention: Fields of `config.Rotary` that all models of the family share and `config.json` has no key for.
      scales_embeddings: Whether input embeddings are multiplied by sqrt(dim).
      theta: Base of rotary positions where `config.json` has none.
      local_theta: Base of rotary positions of layers with a window. None for that of all layers.
      positions_by_kind: Whether layers with a window have rotary positions of their own, without a factor.
      has_layer_types: Whether the key `layer_types` names layers with a window, `sliding_attention`.
      rotates_in_part: Whether only a share of the entries of a head may be rotated, `partial_rotary_factor`.
      is_fused: Whether one matrix holds queries, keys and values, and another one both halves of the feed-forward part.
      set_by_finish: Paths of settings that `finish` sets, besides those of `fields`.
    """

    name, model_type, classes = "Llama", "llama", "Llama"
    prefix, layer, head_parts = "model.", "layers.0.", ("lm_head.",)
    constants = (".rotary_emb.inv_freq",)  # frequencies, which older files hold
    gated = True
    attention: Mapping[str, Any] = {}
    theta = 10_000.0
    scales_embeddings = False
    local_theta: float | None = None
    positions_by_kind = False
    has_layer_types = False
    rotates_in_part = False
    is_fused = False
    set_by_finish: tuple[str, ...] = ()
    fields = (
        keys.Field("hidden_size", 4096, "dim"),
        keys.Field("num_hidden_layers", 32, "num_layers"),
        keys.Field("num_attention_heads", 32, "num_heads"),
        keys.key_heads_key("num_key_value_heads", None, "num_attention_heads"),
        keys.head_dim_key("head_dim", None, "hidden_size", "num_attention_heads"),
        keys.hidden_size_key("intermediate_size", 11008, "hidden_size"),
        keys.gated_activation_key("hidden_act", "silu"),
        keys.Field("max_position_embeddings", 2048, "attention.trained_length"),
        keys.epsilon_key("rms_norm_eps", 1e-6, 1e-6),
        keys.Field("attention_bias", False, "attention.bias"),
        keys.Field("attention_bias", False, "attention.output_bias"),
        keys.Field("mlp_bias", False, "feed_forward.bias"),
        keys.Field("attention_dropout", 0.0, "attention_dropout"),
        keys.Field("tie_word_embeddings", False, "output.tied"),
    )

    def base(self) -> config.Model:
        """Returns the settings that all models of the family share: rotary attention, gated feed-forward parts without
        biases, and embeddings that are not scaled.
        """
        return config.Model(
            scale_embeddings=self.scales_embeddings,
            attention=config.Rotary(**self.attention),
            feed_forward=config.Dense(activation="swiglu", bias=False),
            output=config.Softmax(tied=False, bias=False),
        )

    def finish(self, model: config.Model, described: Described) -> None:
        """Sets, in `model`, the kinds of layers, their rotary positions, and a memory that holds at most `LONGEST`
        tokens together with a segment. In a model without windows it also keeps the first `SINKS` tokens of a document.

        Raises:
          ValueError: A kind of rotary positions or of layers that is not known.
        """
        attention = rotary_attention(model)
        attention.rotary = read_positions(described, "full_attention", self.theta)
        share, name = attention.rotary.fraction, "hf_config['partial_rotary_factor']"
        require(share == 1 or self.rotates_in_part, name, share, f"1.0 in a Hugging Face {self.name}")
        if self.has_layer_types:
            attention.local_layers = read_local_layers(described, self.layer_types(described), model.num_layers)
        if attention.local_layers is not None:
            attention.local_window = described["sliding_window"] or 0
            attention.local_rotary = self.local_positions(described)
        attention.sinks = 0 if attention.window or attention.local_layers is not None else SINKS
        attention.memory_length = _longest(attention) - _segment_length(attention) - attention.sinks

    def choices(self, described: Described) -> tuple[str, ...]:
        """Returns a line for LongRoPE, whose divisors are fixed by the length that memory and segment hold."""
        lists = _longrope_lists(described)
        if lists is None or lists["short_factor"] == lists["long_factor"]:
            return ()
        original, length = lists["original_max_position_embeddings"], _used_length(described)
        which, than = ("long_factor", "above") if length > original else ("short_factor", "up to")
        kind = f"given LongRoPE for texts {than} {original:,} tokens"
        fixed = f"{which} is taken for all texts, since memory and segment hold {length:,} tokens"
        return (f"hf_config[{_rope_key(described)!r}]: {kind}; {fixed}",)

    def layer_types(self, described: Described) -> list[str]:
        """Returns the kinds of the layers where the configuration `described` has no `layer_types`: by default all
        layers are `full_attention`.
        """
        return ["full_attention"] * described["num_hidden_layers"]

    def local_positions(self, described: Described) -> config.RotaryPositions | None:
        """Returns the rotary positions of the layers with a window: by default those of all layers. With
        `positions_by_kind` they have no factor.
        """
        if not self.positions_by_kind:
            return read_positions(described, "sliding_attention", self.theta)
        rope = (described.get("rope_parameters") or {}).get("sliding_attention") or {}
        theta = described.get("rope_local_base_freq") or self.local_theta or described.get("rope_theta") or self.theta
        return read_positions({"rope_parameters": rope}, theta=theta)

    def tensors(self, model: config.Model, task: config.TaskKind | None) -> Iterator[hf.WeightMapping]:
        """Yields a `WeightMapping` for each group of the family's parameters. `task` has no effect."""
        del task
        attention, dim = rotary_attention(model), model.dim
        head_dim, hidden = model.head_dim or dim // model.num_heads, model.feed_forward.dim or 4 * dim
        yield from hf.embeddings("model.embed_tokens.weight", "lm_head.weight", dim, is_tied(model))
        yield hf.map_unchanged("layer_norm/scale", "model.norm.weight", dim)
        for index in range(model.num_layers):
            ours, theirs = f"stack/layer_{index:02d}", f"model.layers.{index}"
            part = f"{ours}/attention"
            yield from _attention_tensors(part, f"{theirs}.self_attn", attention, model, head_dim, self.is_fused)
            part, names = f"{ours}/feed_forward", [f"{theirs}.mlp.{name}_proj" for name in ("gate", "up", "down")]
            for path, name in NORMS[attention.norm].items():
                yield hf.map_unchanged(f"{ours}/{path}/scale", f"{theirs}.{name}.weight", dim)
            if self.is_fused:
                yield hf.matrix(f"{part}/wide/kernel", f"{theirs}.mlp.gate_up_proj.weight", (dim, 2 * hidden))
            else:
                matrices = [hf.matrix("", f"{name}.weight", (dim, hidden)) for name in names[:2]]
                yield hf.stack_tensors(f"{part}/wide/kernel", matrices, axis=1, shape=(dim, 2 * hidden))
            yield hf.matrix(f"{part}/narrow/kernel", f"{names[2]}.weight", (hidden, dim))
            if model.feed_forward.bias:
                biases = [hf.map_unchanged("", f"{name}.bias", hidden) for name in names[:2]]
                yield hf.stack_tensors(f"{part}/wide/bias", biases, axis=0, shape=(2 * hidden,))
                yield hf.map_unchanged(f"{part}/narrow/bias", f"{names[2]}.bias", dim)

    def heads(self, described: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, None]:
        """Returns the names of transformers' classes that can be imported, each mapped to None, since all are imported
        as language models.
        """
        del described, weights
        return {f"{self.classes}ForCausalLM": None, f"{self.classes}Model": None}

    def data(self, model: config.Model, task: config.TaskKind | None, dialogues: bool) -> config.Data:
        """Returns the settings of the data that a run reads by default: text files, in segments of a quarter of the
        tokens that memory and segment hold.
        """
        del task, dialogues
        length = _segment_length(rotary_attention(model))
        return config.Data(source=config.TextFiles(), tokenizer=config.BytePairs(), segment_length=length)

    def class_name(self, model: config.Model, task: config.TaskKind | None) -> str:
        """Returns the name of the class of transformers with a head for the next token, such as "LlamaForCausalLM"."""
        del model, task
        return f"{self.classes}ForCausalLM"

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns the keys of `config.json` for the rotary positions, with the names of transformers 5 and of earlier
        versions.
        """
        del task
        attention = rotary_attention(model)
        described = write_positions(attention.rotary)
        if self.positions_by_kind:
            local = write_positions(attention.local_rotary)["rope_parameters"]
            by_kind = {"full_attention": described["rope_parameters"], "sliding_attention": local}
            described["rope_parameters"] = by_kind
            if self.local_theta:
                described["rope_local_base_freq"] = local["rope_theta"]
        if self.has_layer_types:
            kinds = {index: "sliding_attention" for index in attention.local_layers or ()}
            described["layer_types"] = [kinds.get(index, "full_attention") for index in range(model.num_layers)]
            if kinds:
                described["sliding_window"] = attention.local_window
        return described

    def check(self, model: config.Model) -> None:
        """Raises `ValueError` for a model that the family's class in transformers cannot express. Its memory is not
        checked.
        """
        rotary_attention(model)
        super().check(model)

    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns (name, value, allowed value) of each setting that the family's `config.json` has no key for."""
        attention, softmax, base = rotary_attention(model), type(model.output.softmax).__name__, self.base()
        keyed = {field.path for field in self.fields} | {*self.set_by_finish}
        shared = [path for path in ARCHITECTURE if path not in keyed]
        if "attention.output_bias" in keyed:
            yield "model.attention.output_bias", attention.output_bias, attention.bias
        yield "model.output", softmax, "Softmax"
        yield "model.output.bias", model.output.softmax.bias, False
        rotary = attention.local_rotary if attention.rotary is None else attention.rotary
        if not self.rotates_in_part and rotary is not None:
            yield "model.attention.rotary.fraction", rotary.fraction, 1.0
        for path in shared:
            yield f"model.{path}", operator.attrgetter(path)(model), operator.attrgetter(path)(base)


def read_positions(
    described: Described, layer_kind: str = "full_attention", theta: float = 10_000.0
) -> config.RotaryPositions:
    """Returns the settings of the rotary positions that a configuration describes for a kind of layers: by
    `rope_parameters`, which may have an entry for each kind, or by `rope_theta` and `rope_scaling` of earlier versions
    of transformers.

    Args:
      described: The configuration, completed by the defaults of its class.
      layer_kind: Kind of layers, as `layer_types` names it.
      theta: Base where the configuration has none.

    Raises:
      ValueError: A kind of positions that is not known, or one without its factor.
    """
    name, rope = _rope_key(described), _rope_keys(described, layer_kind)
    common = {"theta": float(rope.get("rope_theta") or described.get("rope_theta") or theta)}
    common["fraction"] = float(rope.get("partial_rotary_factor") or described.get("partial_rotary_factor") or 1.0)
    kind = rope["rope_type"]
    if kind not in KINDS:
        varies = "; it changes with the running length" if kind == "dynamic" else ""
        allowed = f"{', '.join(map(repr, KINDS))}{varies}"
        raise ValueError(f"hf_config[{name!r}]: given type {kind!r}, allowed: {allowed}")
    settings, names = KINDS[kind]
    if kind == "longrope":
        lists = _longrope_lists(described, layer_kind)
        require(lists is not None, f"hf_config[{name!r}]", rope, "with short_factor and long_factor, two lists")
        rope |= _fixed_longrope(lists or {}, described)
    require(not names or kind == "longrope" or bool(rope.get("factor")), f"hf_config[{name!r}]", rope, "with a factor")
    if kind == "yarn" and rope.get("attention_factor") is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        rope["attention_factor"] = yarn_attention_factor(rope["factor"], rope["mscale"], rope["mscale_all_dim"])
    values = {ours: rope[theirs] for ours, theirs in names.items() if rope.get(theirs) is not None}
    return settings(**common, **values)


def _rope_key(described: Described) -> str:
    """Returns the key of a configuration that describes its rotary positions."""
    return "rope_scaling" if described.get("rope_scaling") else "rope_parameters"


def _rope_keys(described: Described, layer_kind: str) -> dict[str, Any]:
    """Returns the keys of the rotary positions of a kind of layers, with their `rope_type` and the length of the texts
    of the pre-training.
    """
    rope = dict(described.get(_rope_key(described)) or {})
    rope = dict(rope[layer_kind]) if isinstance(rope.get(layer_kind), Mapping) else rope
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    if rope["rope_type"] in LONGROPE_NAMES and "short_factor" in rope:
        rope["rope_type"] = "longrope"
    lengths = (described.get(name) for name in ("original_max_position_embeddings", "max_position_embeddings"))
    rope.setdefault("original_max_position_embeddings", next(filter(None, lengths), None))
    return rope


def _longrope_lists(described: Described, layer_kind: str = "full_attention") -> dict[str, Any] | None:
    """Returns the keys of LongRoPE with its two lists of divisors. None for other positions, or without the lists."""
    rope = _rope_keys(described, layer_kind)
    has_lists = all(isinstance(rope.get(name), list) for name in ("short_factor", "long_factor"))
    return rope if rope["rope_type"] == "longrope" and has_lists else None


def _fixed_longrope(rope: Mapping[str, Any], described: Described) -> dict[str, Any]:
    """Returns the divisors of LongRoPE for the length that memory and segment hold, under the key `short_factor`, and
    the factor of queries and keys.
    """
    original, longest = rope["original_max_position_embeddings"], described.get("max_position_embeddings")
    factor = rope.get("factor") or (longest or original) / original
    attention_factor = rope.get("attention_factor") or longrope_attention_factor(factor, original)
    divisors = rope["long_factor" if _used_length(described) > original else "short_factor"]
    return {"short_factor": tuple(divisors), "attention_factor": attention_factor}


def _used_length(described: Described) -> int:
    """Returns the number of tokens that memory and segment of an imported model hold together."""
    return min(LONGEST, described.get("max_position_embeddings") or LONGEST)


def read_local_layers(described: Described, default: list[str], num_layers: int) -> tuple[int, ...] | None:
    """Returns the numbers of the layers with a window, `sliding_attention` among the `layer_types` of a configuration
    or of `default`. None for no such layers.

    Raises:
      ValueError: Another kind of layers, or another number of them than `num_layers`.
    """
    kinds = described.get("layer_types") or default
    fits = len(kinds) == num_layers and {*kinds} <= {"full_attention", "sliding_attention"}
    allowed = f"{num_layers} names, 'full_attention' or 'sliding_attention'"
    require(fits, "hf_config['layer_types']", kinds, allowed)
    return tuple(index for index, kind in enumerate(kinds) if kind == "sliding_attention") or None


def write_positions(positions: config.RotaryPositions | None) -> dict[str, Any]:
    """Returns the keys of `config.json` for rotary positions: `rope_parameters`, and for earlier versions of
    transformers `rope_theta` and `rope_scaling`.

    Raises:
      ValueError: There are no positions, or they are of a kind that `KINDS` lacks.
    """
    kind = next((kind for kind, (settings, _) in KINDS.items() if type(positions) is settings), "")
    class_name = "None" if positions is None else type(positions).__name__
    require(
        bool(kind), "model.attention.rotary", class_name, f"{', '.join(kind.__name__ for kind, _ in KINDS.values())}"
    )
    assert positions is not None  # refused above
    default = type(positions)()
    rope: dict[str, Any] = {"rope_type": kind}
    for ours, theirs in KINDS[kind][1].items():
        if theirs not in OPTIONAL.get(kind, ()) or getattr(positions, ours) != getattr(default, ours):
            rope[theirs] = getattr(positions, ours)
    if kind == "longrope":
        rope["short_factor"] = rope["long_factor"] = [*rope["short_factor"]]
    if positions.fraction != 1:
        rope["partial_rotary_factor"] = positions.fraction
    earlier = {"rope_theta": positions.theta, "rope_scaling": rope if len(rope) > 1 else None}
    return {"rope_parameters": {**rope, "rope_theta": positions.theta}, **earlier}


def rotary_attention(model: config.Model) -> config.Rotary:
    """Returns the settings of the rotary attention of a model.

    Raises:
      ValueError: The model has another attention.
    """
    if isinstance(model.attention, config.Rotary):
        return model.attention
    raise ValueError(f"model.attention: given {model.attention_kind}, allowed: Rotary")


def _attention_tensors(
    part: str, theirs: str, attention: config.Rotary, model: config.Model, head_dim: int, is_fused: bool
) -> Iterator[hf.WeightMapping]:
    """Yields the mappings of the projections, biases and norms of one layer's attention. With `is_fused` one matrix
    holds queries, keys and values.
    """
    dim, heads = model.dim, (model.num_heads, head_dim)
    key_heads, (q, k, v, o) = (attention.key_heads or model.num_heads, head_dim), (f"{theirs}.{p}_proj" for p in PARTS)
    if is_fused:
        yield hf.fused(part, f"{theirs}.qkv_proj.weight", dim, heads, key_heads)
    else:
        yield hf.matrix(f"{part}/query", f"{q}.weight", (dim, *heads))
        matrices = [hf.matrix("", f"{name}.weight", (dim, *key_heads)) for name in (k, v)]
        yield hf.stack_tensors(f"{part}/key_value", matrices, axis=1, shape=(dim, 2, *key_heads))
    yield hf.matrix(f"{part}/output", f"{o}.weight", (*heads, dim), 2)
    if attention.bias:
        yield hf.vector(f"{part}/query_bias", f"{q}.bias", *heads)
        biases = [hf.vector("", f"{name}.bias", *key_heads) for name in (k, v)]
        yield hf.stack_tensors(f"{part}/key_value_bias", biases, axis=0, shape=(2, *key_heads))
    if attention.output_bias:
        yield hf.map_unchanged(f"{part}/output_bias", f"{o}.bias", dim)
    if attention.query_key_norm != "none":
        for ours, name, shape in (("query_norm", "q", heads), ("key_norm", "k", key_heads)):
            shape = shape[1:] if attention.query_key_norm == "head" else shape
            yield hf.vector(f"{part}/{ours}", f"{theirs}.{name}_norm.weight", *shape)


def _longest(attention: config.Rotary) -> int:
    """Number of tokens that memory and segment hold together."""
    return min(LONGEST, attention.trained_length or LONGEST)


def _segment_length(attention: config.Rotary) -> int:
    """Number of tokens of a segment: a quarter of those that memory and segment hold."""
    return max(1, _longest(attention) // 4)


LLAMA = Llama()
"""the family, whose methods are the functions of this module too"""
model_config, read_model, find_task = LLAMA.model_config, LLAMA.read_model, LLAMA.find_task
import_params, export_params = LLAMA.import_params, LLAMA.export_params
load_pretrained, save_pretrained = LLAMA.load_pretrained, LLAMA.save_pretrained
export_config, entries, differences = LLAMA.export_config, LLAMA.entries, LLAMA.differences
