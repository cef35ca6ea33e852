"""Growing a model does not change what it computes: widths, depth, noise, norms, tied weights, gradients, moments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax.axes import parameter_names
from memjax.config import GPT2, AdaptiveSoftmax, Bidirectional, Dense, FullAttention, ModelSettings, Softmax
from memjax.lifelong.expansion import expand, expand_gradients, expand_moments, expand_params
from memjax.lifelong.growth_sources import Growth, copied_layers, copy_counts, copy_sources
from memjax.models.factory import make_language_model, make_text_encoder
from memjax.models.heads import ClassificationHead, MaskedTokenHead
from memjax.models.transformer import join_collection, split_collection

pytestmark = pytest.mark.laws
VOCAB, LENGTH, ROWS, HEAD_DIM = 17, 6, 2, 4
SMALL, BIG = (8, 2, 12), (13, 3, 20)
"""widths of the residual stream, heads, feed-forward"""
TOKENS = jax.random.randint(jax.random.key(1), (ROWS, LENGTH), 0, VOCAB)
START = {"start_of_document": jnp.ones(ROWS, bool)}


def gpt2(sizes, layers=2, *, weighted=False, tied=True, scan=False, dtype="float64"):
    return language_model(GPT2(num_positions=LENGTH), sizes, layers, weighted, tied, scan, dtype, "gelu")


def rms(sizes, layers=2, *, weighted=False, tied=True, scan=False, dtype="float64"):
    attention = FullAttention(query_key_norm=False, num_buckets=4, max_distance=8, norm_kind="rms")
    return language_model(attention, sizes, layers, weighted, tied, scan, dtype, "swiglu")


def query_key_norm(sizes, layers=2, *, weighted=False, tied=True, scan=False, dtype="float64"):
    return language_model(FullAttention(num_buckets=4), sizes, layers, weighted, tied, scan, dtype, "relu")


def adaptive(sizes, layers=2, *, weighted=False, dtype="float64"):
    output = AdaptiveSoftmax(cutoffs=(5, 11))
    return language_model(GPT2(num_positions=LENGTH), sizes, layers, weighted, output, False, dtype, "gelu")


def language_model(attention, sizes, layers, weighted, tied, scan, dtype, activation):
    return make_language_model(settings(attention, sizes, layers, weighted, tied, scan, dtype, activation), VOCAB)


def bert(sizes, layers=2, *, weighted=False, tied=True, scan=False, dtype="float64"):
    assert tied
    attention = Bidirectional(num_positions=LENGTH, num_token_types=2)
    head = MaskedTokenHead(sizes[0], weighted, jnp.dtype(dtype))
    return make_text_encoder(settings(attention, sizes, layers, weighted, tied, scan, dtype, "gelu_exact"), head, VOCAB)


def classifier(sizes, layers=2, *, weighted=False, dtype="float64"):
    """BERT with its pooler and a head of classes."""
    chosen = settings(Bidirectional(num_positions=LENGTH), sizes, layers, weighted, True, False, dtype, "gelu_exact")
    return make_text_encoder(chosen, ClassificationHead(3, dtype=jnp.dtype(dtype)), VOCAB)


def settings(attention, sizes, layers, weighted, tied, scan, dtype, activation):
    dim, heads, mlp = sizes
    found = ModelSettings(
        dim=dim,
        num_heads=heads,
        head_dim=HEAD_DIM,
        num_layers=layers,
        scale_embeddings=False,
        scan_layers=scan,
        attention=attention,
        feed_forward=Dense(dim=mlp, activation=activation, bias=activation != "swiglu"),
        weighted_norms=weighted,
        output=Softmax(tied=tied) if isinstance(tied, bool) else tied,
    )
    found.compute_dtype = dtype  # of tests alone
    return found


def made(model):
    return model.init(jax.random.key(0), TOKENS, model.init_state(ROWS), **START)


def started(model, dtype="float64"):
    """Variables that are no initial values: no bias is 0, no scale is 1, nothing is short."""
    random = np.random.default_rng(0)
    draw = lambda leaf: jnp.asarray(0.3 * random.normal(size=leaf.shape) + 0.5 * (leaf.ndim == 1), dtype)
    return jax.tree.map(draw, jax.eval_shape(lambda: made(model)))


def said(model, variables):
    def log_probs(variables):
        output, _, _ = model.apply(variables, TOKENS, model.init_state(ROWS), **START)
        return model.apply(variables, output, method="log_probs")

    return jax.jit(log_probs)(variables)


def growth(how="random", sizes=BIG, old=SMALL, layers=(0, 1), seed=0):
    own = lambda axis, layer: copy_sources(old[axis], sizes[axis], how, [seed, axis, layer])
    number = max(layers) + 1
    many = lambda axis: tuple(own(axis, layer) for layer in range(number))
    return Growth(own(0, 0), many(1), many(2), tuple(layers))


def distance(model, variables, bigger, grown):
    one, other = said(model, variables), said(bigger, grown)
    return float(jnp.abs(one - other).max() / jnp.abs(one).max())


KINDS = {
    "gpt2": (gpt2, {}),
    "gpt2_untied": (gpt2, {"tied": False}),
    "gpt2_scanned": (gpt2, {"scan": True}),
    "bert": (bert, {}),
    "bert_scanned": (bert, {"scan": True}),
    "rms": (rms, {}),
    "rms_untied": (rms, {"tied": False}),
    "query_key_norm": (query_key_norm, {}),
    "adaptive": (adaptive, {}),
    "classifier": (classifier, {}),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("name", "noise"), [*((name, "zero_sum") for name in KINDS), ("gpt2", "none"), ("bert", "none")]
)
def test_a_model_of_any_width_with_weighted_norms_computes_the_same(name, noise):
    make, fields = KINDS[name]
    for dtype, bound in (("float64", 1e-12), ("float32", 1e-5)):
        model, bigger = make(SMALL, **fields, dtype=dtype), make(BIG, weighted=True, **fields, dtype=dtype)
        variables = started(model, dtype)
        grown = expand(variables, model, bigger, growth(), make=made, noise=noise)
        assert distance(model, variables, bigger, grown) < bound


@pytest.mark.parametrize("name", ["gpt2", "bert", "rms"])
def test_doubling_is_exact_with_ordinary_norms_and_other_widths_are_not(name):
    make, twice = KINDS[name][0], tuple(2 * size for size in SMALL)
    model = make(SMALL)
    variables = started(model)
    double = expand(variables, model, make(twice), growth("cyclic", twice), make=made, noise="none")
    assert distance(model, variables, make(twice), double) < 1e-12
    other = expand(variables, model, make(BIG), growth(), make=made, noise="none")
    assert distance(model, variables, make(BIG), other) > 1e-3


@pytest.mark.parametrize("noise", ["paper", "code"])
def test_published_noise_changes_what_a_model_computes(noise):
    model, bigger = gpt2(SMALL), gpt2(BIG, weighted=True)
    variables = started(model)
    assert distance(model, variables, bigger, expand(variables, model, bigger, growth(), make=made, noise=noise)) > 1e-4


def test_noise_of_the_paper_is_on_all_rows_that_have_copies_and_that_of_the_code_on_copies_alone():
    model = gpt2(SMALL, 1)
    split = split_collection(started(model)["params"], model.layer_groups())
    names = split_collection(parameter_names(lambda: made(model))["params"], model.layer_groups())
    map_of = growth(layers=(0,))
    grow = lambda noise: expand_params(split, names, map_of, head_dim=HEAD_DIM, noise=noise)
    row = lambda tree: np.asarray(tree["stack"]["layer_00"]["feed_forward"]["wide"]["kernel"])
    quiet, paper, code = (row(grow(noise)) for noise in ("none", "paper", "code"))
    copied = copy_counts(map_of.embed) > 1
    np.testing.assert_array_equal((paper != quiet).all(axis=1), copied)
    np.testing.assert_array_equal((code != quiet).all(axis=1), np.arange(BIG[0]) >= SMALL[0])


@pytest.mark.parametrize(("noise", "share"), [("paper", 1.0), ("code", 1.0), ("zero_sum", 0.5)])
def test_noise_has_the_deviation_that_was_asked_for(noise, share):
    """Of two copies whose noise adds up to nothing, each keeps half of the variance."""
    model, stddev = gpt2((200, 2, 300), 1), 0.02
    twice = growth("cyclic", (400, 4, 600), (200, 2, 300), layers=(0,))
    split = split_collection(started(model)["params"], model.layer_groups())
    names = split_collection(parameter_names(lambda: made(model))["params"], model.layer_groups())
    grow = lambda noise: expand_params(split, names, twice, head_dim=HEAD_DIM, noise=noise, stddev=stddev)
    for part in ("wide", "narrow"):
        of = lambda noise, part=part: np.asarray(grow(noise)["stack"]["layer_00"]["feed_forward"][part]["kernel"])
        added = (of(noise) - of("none"))[200 if part == "wide" else 300 :]  # rows of copies
        wanted, error = stddev * share**0.5, 4 / (2 * added.size) ** 0.5
        assert abs(added.std() / wanted - 1) < error and abs(added.mean()) < 4 * wanted / added.size**0.5


@pytest.mark.parametrize("name", ["gpt2", "bert", "rms"])
def test_parameters_of_a_model_in_half_precision_grow_as_those_of_one_in_full(name):
    make = KINDS[name][0]
    grown = {}
    for dtype in ("float32", "bfloat16"):
        model, bigger = make(SMALL, dtype=dtype), make(BIG, 3, weighted=True, dtype=dtype)
        variables = started(model, "float32")
        grown[dtype] = expand(variables, model, bigger, growth(layers=(0, 1, 1)), make=made)
    for half, full in zip(*map(jax.tree.leaves, (grown["bfloat16"], grown["float32"])), strict=True):
        assert half.dtype == full.dtype == jnp.float32
        np.testing.assert_array_equal(half, full)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_untied_or_not_divided_scores_are_wrong(name):
    """The trap of tied weights: without a division at the output, or with two of them, log-probabilities are wrong."""
    make = KINDS[name][0]
    model, bigger = make(SMALL), make(BIG, weighted=True)
    variables = started(model)
    grown = expand(variables, model, bigger, growth(), make=made)
    path = ("layer_norm",) if name == "gpt2" else ("head", "layer_norm")
    undivided = jax.tree.map(lambda leaf: leaf, grown)
    norm = undivided["params"]
    for part in path:
        norm = norm[part]
    norm["scale"], norm["bias"] = (norm[part] * copy_counts(growth().embed) for part in ("scale", "bias"))
    assert distance(model, variables, bigger, undivided) > 1e-2


def test_a_tied_model_may_be_untied_as_it_grows():
    model, bigger = gpt2(SMALL), gpt2(BIG, weighted=True, tied=False)
    variables = started(model)
    assert distance(model, variables, bigger, expand(variables, model, bigger, growth(), make=made)) < 1e-12


def test_embeddings_that_are_multiplied_by_the_root_of_the_width():
    model, bigger = gpt2(SMALL), gpt2(BIG, weighted=True)
    scaled = lambda one, dim: one.clone(vocabulary=one.vocabulary.clone(scale=dim**0.5))
    model, bigger = scaled(model, SMALL[0]), scaled(bigger, BIG[0])
    variables = started(model)
    factor = (SMALL[0] / BIG[0]) ** 0.5
    grown = expand(variables, model, bigger, growth(), make=made, factor=factor)
    assert distance(model, variables, bigger, grown) < 1e-12


@pytest.mark.parametrize("scan", [False, True])
def test_copies_of_pre_norm_layers_that_begin_as_identities_are_exact_and_plain_copies_are_not(scan):
    model, bigger = gpt2(SMALL, 3, scan=scan), gpt2(BIG, 5, weighted=True, scan=scan)
    variables, map_of = started(model), growth(layers=(0, 0, 1, 2, 2))
    exact = expand(variables, model, bigger, map_of, make=made, depth="identity")
    assert distance(model, variables, bigger, exact) < 1e-12
    copied = expand(variables, model, bigger, map_of, make=made, depth="copy")
    assert distance(model, variables, bigger, copied) > 1e-2


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_two_expansions_in_a_row(name):
    """The second is exact whatever was learned after the first: the weights of its norms are shares of theirs."""
    make, middle, last = KINDS[name][0], (11, 3, 15), (13, 4, 20)
    model, second, third = make(SMALL), make(middle, weighted=True), make(last, weighted=True)
    once = expand(started(model), model, second, growth(sizes=middle), make=made)
    random = np.random.default_rng(1)
    once["params"] = jax.tree.map(lambda leaf: leaf + 0.1 * random.normal(size=leaf.shape), once["params"])
    twice = expand(once, second, third, growth(sizes=last, old=middle, seed=1), make=made)
    assert distance(second, once, third, twice) < 1e-12


def test_sums_of_divided_rows_are_the_old_weights():
    for make in (gpt2, bert):
        model = make(SMALL)
        split = split_collection(started(model)["params"], model.layer_groups())
        names = split_collection(parameter_names(lambda model=model: made(model))["params"], model.layer_groups())
        for noise in ("none", "zero_sum"):
            wide = expand_params(split, names, growth(), head_dim=HEAD_DIM, noise=noise)
            narrow = lambda tree: np.asarray(tree["stack"]["layer_01"]["feed_forward"]["narrow"]["kernel"])
            columns = narrow(wide)[:, np.unique(growth().embed, return_index=True)[1]]  # the first copy of each
            sums = [columns[growth().mlp[1] == row].sum(axis=0) for row in range(SMALL[2])]
            np.testing.assert_allclose(narrow(split), sums, rtol=0, atol=1e-14)


def gradients(model, variables):
    def loss(params):
        own = {**variables, "params": params}
        output, _, _ = model.apply(own, TOKENS, model.init_state(ROWS), **START)
        return model.apply(own, output, jnp.roll(TOKENS, -1, axis=1), method="token_nll").sum()

    return jax.jit(jax.grad(loss))(variables["params"])


@pytest.mark.parametrize(
    ("name", "scaled"),
    [("gpt2", False), ("gpt2", True), ("gpt2_untied", False), ("gpt2_untied", True), ("bert", False)],
)
def test_gradients_of_copies_are_equal_without_noise_and_are_what_moments_grow_by(name, scaled):
    make, fields = KINDS[name]
    model, bigger = make(SMALL, **fields), make(BIG, weighted=True, **fields)
    if scaled:
        of = lambda one, dim: one.clone(vocabulary=one.vocabulary.clone(scale=dim**0.5))
        model, bigger = of(model, SMALL[0]), of(bigger, BIG[0])
    factor = (SMALL[0] / BIG[0]) ** 0.5 if scaled else 1.0
    variables = started(model)
    names = split_collection(parameter_names(lambda: made(model))["params"], model.layer_groups())
    divided = model.output_norm() if fields.get("tied", True) else ""
    mapped = expand_gradients(
        split_collection(gradients(model, variables), model.layer_groups()),
        names,
        growth(),
        head_dim=HEAD_DIM,
        divided=divided,
        factor=factor,
    )
    with_noise = {
        noise: gradients(bigger, expand(variables, model, bigger, growth(), make=made, noise=noise, factor=factor))
        for noise in ("none", "zero_sum")
    }
    found = split_collection(with_noise["none"], bigger.layer_groups())
    if fields.get("tied", True):  # the two uses of a tied table grow in two ways
        for tree in (mapped, found):
            tree["vocabulary"].pop("embedding")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), found, mapped)
    units = lambda noise: np.asarray(with_noise[noise]["stack"]["layers_0"]["feed_forward"]["wide"]["kernel"])
    first, copy = growth().mlp[0][SMALL[2]], SMALL[2]
    np.testing.assert_allclose(units("none")[:, first], units("none")[:, copy], rtol=1e-8)
    assert not np.allclose(units("zero_sum")[:, first], units("zero_sum")[:, copy], rtol=1e-3)


def test_moments_go_on_with_copies_and_have_the_shapes_of_the_bigger_model():
    model, bigger = gpt2(SMALL), gpt2(BIG, weighted=True)
    variables, optimizer = started(model), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    names = split_collection(parameter_names(lambda: made(model))["params"], model.layer_groups())
    state = optimizer.init(variables["params"])
    _, state = optimizer.update(gradients(model, variables), state, variables["params"])
    grown = expand(variables, model, bigger, growth(), make=made)

    def grow(tree, power):
        split = split_collection(tree, model.layer_groups())
        wide = expand_gradients(split, names, growth(), head_dim=HEAD_DIM, power=power, divided=model.output_norm())
        return join_collection(wide, bigger.layer_groups())

    fresh = optimizer.init(grown["params"])
    moments = expand_moments(state, variables["params"], grow, fresh)
    adam = next(
        part for part in jax.tree.leaves(moments, is_leaf=lambda node: hasattr(node, "mu")) if hasattr(part, "mu")
    )
    assert int(adam.count) == 1
    for wide, square in zip(jax.tree.leaves(adam.mu), jax.tree.leaves(adam.nu), strict=True):
        np.testing.assert_allclose((np.asarray(wide) * 10) ** 2, np.asarray(square) * 1000, rtol=1e-6, atol=1e-15)
    with pytest.raises(ValueError, match="moments: given an optimiser"):
        expand_moments(state, variables["params"], lambda tree, power: tree, fresh)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_parameters_are_as_many_as_the_formula_says(name):
    def number(dim, heads, mlp, layers):
        attention = 4 * dim * heads * HEAD_DIM + 3 * heads * HEAD_DIM + dim
        # Of BERT two types of tokens, the pooler, and the head of hidden tokens with its norm and a bias of the scores.
        more = 2 * dim + 2 * (dim * dim + dim) + 2 * dim + VOCAB if name == "bert" else 0
        return more + VOCAB * dim + LENGTH * dim + 2 * dim + layers * (attention + 2 * dim * mlp + mlp + 5 * dim)

    make = KINDS[name][0]
    model, bigger = make(SMALL), make(BIG, 4, weighted=True)
    variables = started(model)
    grown = expand(variables, model, bigger, growth(layers=(0, 0, 1, 1)), make=made)
    size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    assert size(variables["params"]) == number(*SMALL, 2) and size(grown["params"]) == number(*BIG, 4)


def test_decoding_token_by_token_after_growth_equals_the_forward_pass():
    model, bigger = gpt2(SMALL), gpt2(BIG, 3, weighted=True)
    variables = started(model)
    grown = expand(variables, model, bigger, growth(layers=(0, 1, 1)), make=made, depth="identity")
    whole, state = said(bigger, grown), bigger.init_decode_state(bigger.init_state(ROWS, jnp.float64), LENGTH, ROWS)
    for place in range(LENGTH):
        named = {"active": jnp.ones(ROWS, bool), "method": "decode"}
        output, state = bigger.apply(grown, TOKENS[:, place : place + 1], state, **named)
        one = bigger.apply(grown, output, method="log_probs")
        np.testing.assert_allclose(one[:, 0], whole[:, place], rtol=1e-9)


def test_layers_are_copied_without_repetition_until_all_were():
    sources, left = copied_layers(4, 2, seed=3)
    assert len(sources) == 6 and sorted(set(sources)) == [0, 1, 2, 3]
    chosen = {old for old in sources if sources.count(old) == 2}
    assert len(chosen) == 2 and {sources[place] for place in left} == {0, 1, 2, 3} - chosen
    more, rest = copied_layers(6, 2, left, seed=4)
    again = {sources[old] for old in more if more.count(old) == 2}
    assert again == {0, 1, 2, 3} - chosen and not rest
    assert all(sources[place] <= sources[place + 1] for place in range(5))


BAD = {
    "narrower": (lambda: copy_sources(8, 6), "width: given 6, allowed: at least 8"),
    "shallower": (lambda: copied_layers(4, -1), "layers: given 3, allowed: 4 to 8"),
    "deeper than twice": (lambda: copied_layers(4, 5), "layers: given 9, allowed: 4 to 8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sizes(name):
    call, line = BAD[name]
    with pytest.raises(ValueError, match=line):
        call()


def test_arrays_that_do_not_become_those_of_the_bigger_model_are_named():
    model, bigger = gpt2(SMALL), gpt2((14, 3, 20), weighted=True)
    with pytest.raises(ValueError, match=r"expansion: \S+ given as \(13,.*allowed: \(14,"):
        expand(started(model), model, bigger, growth(), make=made)


def test_a_growth_reads_as_it_was_written():
    one = growth(layers=(0, 0, 1))
    other = Growth.from_json(one.to_json())
    assert one.to_json() == other.to_json() and other.added == (1,)
