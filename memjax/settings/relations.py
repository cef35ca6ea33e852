"""What a config may hold: `validate` raises one line, `warnings` names what is allowed but rarely meant."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

from memjax.config import (
    GPT2,
    LSTM,
    AdaptiveSoftmax,
    Bidirectional,
    Classification,
    Compressive,
    Config,
    ContinuousCache,
    Dialogues,
    EncoderDecoder,
    FullAttention,
    Glue,
    InfinityFormer,
    KeyValueRecall,
    LanguageModeling,
    LinearTransformer,
    MaskedLanguageModeling,
    Memformer,
    Memorizing,
    Mnist,
    Model,
    ProductKey,
    QuestionAnswering,
    SeqioTask,
    Softmax,
    Sorting,
    Spalm,
    Squad,
    TableAdam,
    Templates,
    TransformerXL,
    Translation,
    WordPiece,
    softmax_of,
)


def validate(config: Config) -> None:
    """Raises `ValueError` with one line that names the field, what was given and what is allowed."""
    model, data, training = config.model, config.data, config.training
    for field, value in [
        ("model.dim", model.dim),
        ("model.num_layers", model.num_layers),
        ("model.num_heads", model.num_heads),
        ("data.rows", data.rows),
        ("data.segment_length", data.segment_length),
        ("data.min_document_length", data.min_document_length),
        ("training.steps", training.steps),
        ("training.segments_per_update", training.segments_per_update),
        ("training.accumulate", training.accumulate),
        ("training.apply_every", training.apply_every),
        ("training.keep_checkpoints", training.keep_checkpoints),
        ("evaluation.rows", config.evaluation.rows),
        ("sharding.vocab_multiple", config.sharding.vocab_multiple),
    ]:
        _require(value >= 1, field, value, "an integer of at least 1")
    _require(
        0 <= training.segments_without_gradient < training.segments_per_update,
        "training.segments_without_gradient",
        training.segments_without_gradient,
        f"from 0 to training.segments_per_update - 1 = {training.segments_per_update - 1}",
    )
    for field, value in [
        ("training.log_every", training.log_every),
        ("training.checkpoint_every", training.checkpoint_every),
        ("training.evaluate_every", training.evaluate_every),
        ("evaluation.segment_length", config.evaluation.segment_length),
        ("evaluation.stride", config.evaluation.stride),
        ("evaluation.max_segments", config.evaluation.max_segments),
        ("evaluation.distance", config.evaluation.distance),
        ("training.schedule.warmup_steps", training.schedule.warmup_steps),
    ]:
        _require(value >= 0, field, value, "0 or more")
    for field, value in [("model.dropout", model.dropout), ("model.attention_dropout", model.attention_dropout)]:
        _require(0.0 <= value < 1.0, field, value, "a rate in [0, 1)")
    if not model.head_dim and not isinstance(model.attention, LSTM):
        _require(
            model.dim % model.num_heads == 0,
            "model.num_heads",
            model.num_heads,
            f"a divisor of model.dim = {model.dim}, or set model.head_dim",
        )
    _require(
        data.rows % training.accumulate == 0,
        "training.accumulate",
        training.accumulate,
        f"a divisor of data.rows = {data.rows}",
    )
    _require(
        training.schedule.learning_rate > 0,
        "training.schedule.learning_rate",
        training.schedule.learning_rate,
        "more than 0",
    )
    rate = training.memory_learning_rate
    _require(rate >= 0, "training.memory_learning_rate", rate, "0 (that of all others) or more")
    _require(training.clip_norm >= 0, "training.clip_norm", training.clip_norm, "0 (off) or more")
    started = bool(training.init_from) or not training.reinitialized
    _require(started, "training.reinitialized", training.reinitialized, "() without training.init_from")
    _validate_choices("", config)
    _validate_translation(config)
    _validate_dialogue(config)
    _require(model.head_dim >= 0, "model.head_dim", model.head_dim, "0 (dim / num_heads) or more")
    _require(model.feed_forward.dim >= 0, "model.feed_forward.dim", model.feed_forward.dim, "0 (4 * dim) or more")
    _validate_attention(model)
    if isinstance(model.feed_forward, ProductKey):
        _validate_product_key(model.feed_forward, model.num_layers)
    _validate_tables(training.tables)
    if isinstance(model.attention, Compressive):
        _validate_compressive(model.attention, data.segment_length)
    if isinstance(model.attention, InfinityFormer | GPT2):
        _validate_segment(config)
    if isinstance(model, Memformer):
        _validate_memformer(model, config)
    softmax = softmax_of(model.output)
    if isinstance(softmax, AdaptiveSoftmax):
        _validate_adaptive(softmax, model.dim, "model.output." + "softmax." * isinstance(model.output, Spalm))
    if isinstance(model.output, Spalm):
        _validate_spalm(model.output)
    _validate_cache(config.evaluation.cache, softmax)
    _validate_task(config)


def warnings(config: Config) -> list[str]:
    """Lines about settings that are allowed but rarely meant."""
    lines, attention, segments = [], config.model.attention, config.training.segments_per_update
    slots = isinstance(config.model, Memformer) and config.model.num_slots > 0 and config.model.encoder_layers > 0
    through_memory = slots or (isinstance(attention, Compressive) and _learns_through_memory(attention))
    if segments == 1 and slots:
        lines.append(
            "training.segments_per_update = 1: the writer of Memformer learns from later segments of the same update "
            "only; with 1 it never does"
        )
    scored = segments - config.training.segments_without_gradient
    if scored > 1 and not through_memory and not isinstance(attention, LinearTransformer | LSTM):
        lines.append(
            f"training.segments_per_update = {segments}: {type(attention).__name__} stops gradients between segments, "
            "so more than 1 costs memory and buys no gradient"
        )
    if segments == 1 and through_memory and not slots:
        lines.append(
            "training.segments_per_update = 1: with model.attention.loss = 'none' the compression learns from later "
            "segments of the same update only; with 1 it never does"
        )
    if isinstance(attention, Compressive) and config.data.segment_length % attention.compression_rate:
        lines.append(
            f"data.segment_length = {config.data.segment_length}: not a multiple of model.attention.compression_rate "
            f"= {attention.compression_rate}, so windows cross segments, which takes longer"
        )
    return lines


def _learns_through_memory(attention: Compressive) -> bool:
    """Whether a gradient crosses segments."""
    has_memory = attention.memory_length > 0 and attention.compressed_memory_length > 0
    return has_memory and attention.loss == "none" and attention.compression in ("convolution", "dilated")


def _validate_attention(model: Model) -> None:
    attention, field = model.attention, "model.attention."
    if model.positions == "sinusoids":
        _require(model.dim % 2 == 0, "model.dim", model.dim, "an even number (sines and cosines of model.positions)")
    if isinstance(attention, InfinityFormer):
        _validate_infinity_former(attention, model)
        return
    if isinstance(attention, GPT2):
        slots = attention.compressed_memory_length
        _require(slots >= 0, field + "compressed_memory_length", slots, "0 (none) or more slots")
        _require(attention.loss_weight >= 0, field + "loss_weight", attention.loss_weight, "0 (logged only) or more")
        return
    if isinstance(attention, LinearTransformer):
        _validate_linear(attention)
        return
    if isinstance(attention, LSTM):
        part = type(model.feed_forward).__name__
        _require(part == "Dense", "model.feed_forward", part, "Dense (it has no effect) with LSTM")
        return
    if isinstance(attention, Bidirectional):
        return
    if not isinstance(attention, FullAttention):
        _require(attention.memory_length >= 0, field + "memory_length", attention.memory_length, "0 or more slots")
    if isinstance(attention, TransformerXL | Compressive):
        kind = type(attention).__name__
        _require(model.dim % 2 == 0, "model.dim", model.dim, f"an even number (sines and cosines of {kind})")
        _require(attention.clamp_length >= 0, field + "clamp_length", attention.clamp_length, "0 (off) or more tokens")
    if isinstance(attention, Compressive):
        return
    if isinstance(attention, TransformerXL):
        _require(
            not attention.same_length or attention.memory_length > 0,
            field + "same_length",
            True,
            f"False when {field}memory_length is 0",
        )
        return
    buckets = attention.num_buckets
    _require(buckets == 0 or buckets >= 2, field + "num_buckets", buckets, "0 (no positions), or 2 or more")
    if buckets:
        allowed = f"more than half of {field}num_buckets = {buckets}"
        _require(attention.max_distance > buckets // 2, field + "max_distance", attention.max_distance, allowed)
    if isinstance(attention, Memorizing):
        _validate_memorizing(attention, model.num_layers)


def _validate_translation(config: Config) -> None:
    model, source = config.model, config.data.source
    translates = isinstance(source, Translation)
    kind = type(source).__name__
    if not isinstance(model, EncoderDecoder):
        _require(not translates, "data.source", kind, "texts, where model is no EncoderDecoder")
        _validate_memory_tokens(model)
        return
    _require(translates, "data.source", kind, "ParallelText, TfdsTranslation or NumberWords with an EncoderDecoder")
    memory = isinstance(model.feed_forward, ProductKey)
    _require(not memory, "model.feed_forward", "ProductKey", "Dense in a translation model")
    recurrent = isinstance(model.attention, LSTM)
    _require(not recurrent, "model.attention", "LSTM", "an attention in a translation model")
    assert isinstance(source, Translation)
    _require(source.max_length >= 2, "data.source.max_length", source.max_length, "2 or more tokens")
    _require(config.data.protocol == "separate", "data.protocol", config.data.protocol, "'separate' for sentence pairs")
    _require(isinstance(model.output, Softmax), "model.output", type(model.output).__name__, "Softmax")
    _require(model.encoder_layers >= 0, "model.encoder_layers", model.encoder_layers, "0 (num_layers) or more")
    smoothing = model.label_smoothing
    _require(0 <= smoothing < 1, "model.label_smoothing", smoothing, "a share in [0, 1)")
    if isinstance(model.cross_attention, LinearTransformer):
        _validate_linear(model.cross_attention, "model.cross_attention.")
    tokens = model.memory_tokens
    if tokens is not None:
        least = int(tokens.kind != "transformer")
        allowed = f"{least} or more for {tokens.kind!r}"
        _require(tokens.num_tokens >= least, "model.memory_tokens.num_tokens", tokens.num_tokens, allowed)


def _validate_dialogue(config: Config) -> None:
    model, source = config.model, config.data.source
    _require(model.markers >= 0, "model.markers", model.markers, "0 (none) or more ids")
    decoder = type(model) is Model and isinstance(config.task, LanguageModeling)
    _require(decoder or not model.markers, "model.markers", model.markers, "0 but in a decoder-only language model")
    if isinstance(source, Dialogues):
        protocol, shortest = config.data.protocol, source.max_utterance_length
        _require(protocol == "separate", "data.protocol", protocol, "'separate' for dialogues")
        _require(source.document_length >= 0, "data.source.document_length", source.document_length, "0 (all) or more")
        _require(shortest >= 1, "data.source.max_utterance_length", shortest, "1 or more tokens")


def _validate_memory_tokens(model: Model) -> None:
    """Those of a language model or text encoder."""
    tokens, field = model.memory_tokens, "model.memory_tokens"
    if tokens is None:
        return
    attention = type(model.attention).__name__
    allowed = f"None with {attention}, or TransformerXL or Bidirectional"
    _require(attention in ("TransformerXL", "Bidirectional"), field, "MemoryTokens", allowed)
    _require(tokens.kind == "transformer", field + ".kind", tokens.kind, "'transformer' but in translation")
    _require(tokens.num_tokens >= 0, field + ".num_tokens", tokens.num_tokens, "0 or more")


def _validate_linear(attention: LinearTransformer, field: str = "model.attention.") -> None:
    _require(
        attention.chunk_length >= 0, field + "chunk_length", attention.chunk_length, "0 (the segment) or more tokens"
    )
    for name in ("num_directions", "num_features", "num_slots"):
        size = getattr(attention, name, 1)
        _require(size >= 1, field + name, size, "an integer of at least 1")
    for name in ("temperature", "query_init_scale", "source_init_scale"):
        size = getattr(attention, name, 1.0)
        _require(size > 0, field + name, size, "more than 0")


def _validate_compressive(attention: Compressive, segment_length: int) -> None:
    field, rate, memory = "model.attention.", attention.compression_rate, attention.memory_length
    slots = attention.compressed_memory_length
    _require(slots >= 0, field + "compressed_memory_length", slots, "0 (TransformerXL) or more slots")
    _require(rate >= 1, field + "compression_rate", rate, "an integer of at least 1")
    positive = all(dilation >= 1 for dilation in attention.dilations) and len(attention.dilations) > 0
    _require(positive, field + "dilations", attention.dilations, "one or more numbers of slots, each at least 1")
    _require(attention.loss_weight >= 0, field + "loss_weight", attention.loss_weight, "0 (logged only) or more")
    if memory and slots and segment_length % rate:
        allowed = (
            f"a divisor of data.segment_length = {segment_length}, or up to {field}memory_length + 1 = {memory + 1}"
        )
        _require(rate <= memory + 1, field + "compression_rate", rate, allowed)


def _validate_infinity_former(attention: InfinityFormer, model: Model) -> None:
    field, widths = "model.attention.", attention.widths
    _require(len(widths) > 0 and min(widths) > 0, field + "widths", widths, "one or more numbers above 0")
    allowed = f"0 (none) or a multiple of the {len(widths)} widths"
    basis = attention.num_basis
    _require(basis >= 0 and basis % len(widths) == 0, field + "num_basis", basis, allowed)
    _require(attention.num_samples >= 1, field + "num_samples", attention.num_samples, "at least 1")
    _require(0 < attention.contraction < 1, field + "contraction", attention.contraction, "above 0 and below 1")
    _require(attention.num_bins >= 1, field + "num_bins", attention.num_bins, "at least 1")
    _require(attention.reset_after >= 0, field + "reset_after", attention.reset_after, "0 (never) or more tokens")
    _require(attention.kl_weight >= 0, field + "kl_weight", attention.kl_weight, "0 (logged only) or more")
    for name in ("ridge", "prior_stddev", "min_variance"):
        _require(getattr(attention, name) > 0, field + name, getattr(attention, name), "above 0")
    _validate_layers(field, attention.layers, model.num_layers)
    slots, length = attention.memory_length, attention.segment_length
    _require(slots >= 0 and slots % length == 0, field + "memory_length", slots, f"0 or a multiple of {length} tokens")
    if attention.host == "gpt2":
        _require(slots == 0, field + "memory_length", slots, "0 with host = 'gpt2', which has no short-term memory")
    else:
        _require(model.dim % 2 == 0, "model.dim", model.dim, "an even number (sines and cosines of positions)")


def _validate_memformer(model: Memformer, config: Config) -> None:
    for name, least in (
        ("encoder_layers", 0),
        ("num_slots", 0),
        ("slots_per_chunk", 0),
        ("num_classification_tokens", 0),
    ):
        value = getattr(model, name)
        _require(value >= least, f"model.{name}", value, f"{least} or more")
    _require(model.temperature > 0, "model.temperature", model.temperature, "above 0")
    length, scored = config.data.segment_length, config.evaluation.segment_length
    _require(
        model.segment_length == length, "model.segment_length", model.segment_length, f"data.segment_length = {length}"
    )
    _require(scored in (0, length), "evaluation.segment_length", scored, f"0 or data.segment_length = {length}")
    _require(isinstance(model.output, Softmax), "model.output", type(model.output).__name__, "Softmax")
    part, task = type(model.feed_forward).__name__, type(config.task).__name__
    _require(part == "Dense", "model.feed_forward", part, "Dense in a Memformer")
    _require(task == "LanguageModeling", "task", task, "LanguageModeling with a Memformer")


def _validate_segment(config: Config) -> None:
    """What depends on the length of a segment."""
    attention, length, field = config.model.attention, config.data.segment_length, "model.attention."
    if isinstance(attention, InfinityFormer):
        own, scored = attention.segment_length, config.evaluation.segment_length or length
        _require(own == length, field + "segment_length", own, f"data.segment_length = {length}")
        _require(scored == length, "evaluation.segment_length", scored, f"0 or data.segment_length = {length}")
    learned = isinstance(attention, GPT2) or (isinstance(attention, InfinityFormer) and attention.host == "gpt2")
    if learned:
        positions = attention.num_positions  # type: ignore[union-attr]
        _require(positions >= length, field + "num_positions", positions, f"at least data.segment_length = {length}")
    if isinstance(attention, GPT2) and attention.compressed_memory_length:
        rate = attention.compression_rate
        allowed = f"a divisor of data.segment_length = {length}"
        _require(rate >= 1 and length % rate == 0, field + "compression_rate", rate, allowed)


def _validate_memorizing(attention: Memorizing, num_layers: int) -> None:
    field = "model.attention."
    _require(attention.cache_length >= 0, field + "cache_length", attention.cache_length, "0 or more tokens")
    _require(attention.window >= 0, field + "window", attention.window, "0 (all) or more keys")
    _require(0 < attention.recall_target <= 1, field + "recall_target", attention.recall_target, "above 0, up to 1")
    if attention.memory_length:
        _require(
            1 <= attention.num_neighbors <= attention.memory_length,
            field + "num_neighbors",
            attention.num_neighbors,
            f"1 to {field}memory_length = {attention.memory_length}",
        )
    _validate_layers(field, attention.layers, num_layers)
    if attention.write == "evicted":
        _require(attention.cache_length > 0, field + "write", "evicted", "'current' when cache_length is 0")


def _validate_task(config: Config) -> None:
    task, attention, data, evaluation = config.task, config.model.attention, config.data, config.evaluation
    kind, source = type(task).__name__, type(data.source).__name__
    examples = {Classification: (Glue, Templates), QuestionAnswering: (Squad, Templates)}
    if isinstance(task, LanguageModeling):
        given = type(attention).__name__
        allowed = "a decoder's; with Bidirectional set task to MaskedLanguageModeling or another one of a text encoder"
        _require(not isinstance(attention, Bidirectional), "model.attention", given, allowed)
        _require(not isinstance(data.source, Glue | Squad | Templates), "data.source", source, "a source of documents")
        return
    _require(
        isinstance(attention, Bidirectional), "model.attention", type(attention).__name__, f"Bidirectional ({kind})"
    )
    assert isinstance(attention, Bidirectional)
    _require(attention.positions >= 1, "model.attention.positions", attention.positions, "1 or more tokens")
    _require(attention.token_types >= 0, "model.attention.token_types", attention.token_types, "0 (none) or more")
    allowed = f"at most model.attention.positions = {attention.positions}: a segment is a text"
    _require(data.segment_length <= attention.positions, "data.segment_length", data.segment_length, allowed)
    _require(isinstance(config.model.output, Softmax), "model.output", type(config.model.output).__name__, "Softmax")
    _require(isinstance(data.tokenizer, WordPiece), "data.tokenizer", type(data.tokenizer).__name__, "WordPiece")
    if type(task) in examples:
        names = " or ".join(source.__name__ for source in examples[type(task)])
        _require(isinstance(data.source, examples[type(task)]), "data.source", source, f"{names} ({kind})")
        _require(data.protocol == "separate", "data.protocol", data.protocol, f"'separate' ({kind})")
    else:
        texts = not isinstance(
            data.source, Glue | Squad | Templates | KeyValueRecall | Sorting | Mnist | Dialogues | SeqioTask
        )
        _require(texts, "data.source", source, f"a source of texts ({kind})")
    unset = {"segment_length": 0, "stride": 0, "protocol": "", "score_first": True, "memory_length": None}
    for field, default in unset.items():
        value = getattr(evaluation, field)
        _require(value == default, f"evaluation.{field}", value, f"{default!r} ({kind})")
    _require(not evaluation.cache.memory_length, "evaluation.cache.memory_length", evaluation.cache.memory_length, "0")
    if isinstance(task, MaskedLanguageModeling):
        _require(data.segment_length >= 3, "data.segment_length", data.segment_length, "3 or more tokens")
        _require(0 < task.rate < 1, "task.rate", task.rate, "a share between 0 and 1")
        for field, value in [("masked", task.masked), ("random", task.random)]:
            _require(0 <= value <= 1, f"task.{field}", value, "a share from 0 to 1")
        _require(
            task.masked + task.random <= 1, "task.random", task.random, f"at most 1 - masked = {1 - task.masked:g}"
        )
    if isinstance(task, Classification):
        _require(task.num_classes >= 2, "task.num_classes", task.num_classes, "2 or more")
    if isinstance(task, QuestionAnswering):
        for field in ("stride", "max_question_length", "max_answer_length", "num_best"):
            _require(getattr(task, field) >= 1, f"task.{field}", getattr(task, field), "1 or more")
        room = data.segment_length - task.max_question_length - 3
        _require(room >= 1, "task.max_question_length", task.max_question_length, "less than data.segment_length - 3")
        _require(task.stride <= room, "task.stride", task.stride, f"at most {room}: windows must not leave gaps")


def _validate_product_key(part: ProductKey, num_layers: int) -> None:
    field = "model.feed_forward."
    for name in ("num_keys", "memory_heads", "key_dim"):
        _require(getattr(part, name) >= 1, field + name, getattr(part, name), "an integer of at least 1")
    _require(part.key_dim % 2 == 0, field + "key_dim", part.key_dim, "an even number (two halves)")
    allowed = f"1 to {field}num_keys = {part.num_keys}"
    _require(1 <= part.num_neighbors <= part.num_keys, field + "num_neighbors", part.num_neighbors, allowed)
    _require(part.num_keys**2 < 2**31, field + "num_keys", part.num_keys, "up to 46340 (slots have 32-bit numbers)")
    _require(all(width >= 1 for width in part.query_hidden), field + "query_hidden", part.query_hidden, "widths from 1")
    _require(0 <= part.key_dropout < 1, field + "key_dropout", part.key_dropout, "a rate in [0, 1)")
    _require(
        part.dense_scale != 0 or part.memory_scale != 0,
        field + "memory_scale",
        part.memory_scale,
        f"another number than 0 where {field}dense_scale is 0",
    )
    _validate_layers(field, part.layers, num_layers)


def _validate_tables(tables: TableAdam) -> None:
    field = "training.tables."
    _require(tables.learning_rate > 0, field + "learning_rate", tables.learning_rate, "more than 0")
    for name in ("b1", "b2"):
        _require(0 <= getattr(tables, name) < 1, field + name, getattr(tables, name), "a number in [0, 1)")
    _require(tables.eps > 0, field + "eps", tables.eps, "more than 0")


def _validate_layers(field: str, layers: tuple[int, ...], num_layers: int) -> None:
    for layer in layers:
        allowed = f"layers from {-num_layers} to {num_layers - 1}"
        _require(-num_layers <= layer < num_layers, field + "layers", layers, allowed)


def _validate_adaptive(output: AdaptiveSoftmax, dim: int, field: str) -> None:
    cutoffs, ties, tails = output.cutoffs, output.tie_projections, len(output.cutoffs)
    ascending = list(cutoffs) == sorted(set(cutoffs)) and all(cutoff > 0 for cutoff in cutoffs)
    _require(ascending and tails > 0, field + "cutoffs", cutoffs, "positive ids in ascending order, at least one")
    _require(output.div_val >= 1, field + "div_val", output.div_val, "an integer of at least 1")
    narrow = dim // output.div_val**tails >= 1
    _require(narrow, field + "div_val", output.div_val, f"model.dim = {dim} divided {tails} times is at least 1")
    allowed = f"() or one entry for each of the {tails + 1} clusters"
    _require(len(ties) in (0, tails + 1), field + "tie_projections", ties, allowed)
    _require(not any(ties) or output.div_val > 1, field + "tie_projections", ties, "() where div_val is 1")


def _validate_spalm(output: Spalm) -> None:
    _require(output.num_neighbors >= 1, "model.output.num_neighbors", output.num_neighbors, "1 or more")
    _require(output.gate_bins >= 0, "model.output.gate_bins", output.gate_bins, "0 (the mean only) or more")


def _validate_cache(cache: ContinuousCache, output: Softmax | AdaptiveSoftmax) -> None:
    field, weight = "evaluation.cache.", cache.interpolation_weight
    _require(cache.memory_length >= 0, field + "memory_length", cache.memory_length, "0 (no cache) or more tokens")
    _require(0 <= weight <= 1, field + "interpolation_weight", weight, "a share from 0 to 1")
    single = cache.mixing == "linear" or not isinstance(output, AdaptiveSoftmax)
    _require(single, field + "mixing", cache.mixing, "'linear' with AdaptiveSoftmax (it has no single softmax)")


def _validate_choices(path: str, part: Any) -> None:
    """Fields of fixed choices: the command line checks them too, assignments in Python do not."""
    for field, kind in get_type_hints(type(part)).items():
        value = getattr(part, field)
        if dataclasses.is_dataclass(value):
            _validate_choices(f"{path}{field}.", value)
        elif get_origin(kind) is Literal:
            allowed = ", ".join(repr(choice) for choice in get_args(kind))
            _require(value in get_args(kind), path + field, value, f"one of {allowed}")


def _require(condition: bool, field: str, given: object, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{field}: given {given!r}, allowed: {allowed}")
