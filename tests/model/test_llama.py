"""The decoder's laws, for every position encoding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_lab.model.flops import matmul_parameters, parameter_count, train_flops_per_token
from rope_lab.model.llama import REMAT_POLICIES, Llama, LlamaConfig
from rope_lab.rotary import RoPE, Scaled
from rope_lab.train.loss import token_losses
from tests.model.small import VOCAB, config, logits, model, positions, tokens
from tests.rotary.examples import ALL, example


@pytest.mark.parametrize("name", ALL)
def test_no_logit_depends_on_a_later_token(name: str):
    graph, params = model(example(name))
    rows = tokens(1, 12)
    one_hot = jax.nn.one_hot(rows, VOCAB)

    def through(one_hot_BTV: jax.Array) -> jax.Array:
        merged = nnx.merge(graph, params)
        merged._embed = lambda _: one_hot_BTV @ params["embedding"]
        return merged(jnp.asarray(rows), jnp.asarray(positions(1, 12)))[0].sum(axis=-1)

    influence = np.abs(jax.jit(jax.jacrev(through))(one_hot)).sum(axis=(1, 3))  # output position, input position
    assert (influence[np.triu_indices(12, 1)] == 0).all()
    assert (influence[np.tril_indices(12)] > 0).all()


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_packed_documents_equal_separate_ones(name: str, restart: bool):
    """Rotations depend on distance alone, so each document reads the same wherever in a row of that length it stands."""
    graph, params = model(example(name))
    first, second = tokens(1, 7, seed=1), tokens(1, 9, seed=2)
    packed = np.concatenate([first, second], axis=1)
    where = np.concatenate([positions(1, 7), positions(1, 9)], axis=1) if restart else positions(1, 16)
    segments = np.array([[1] * 7 + [2] * 9], np.int32)
    together = logits(graph, params, packed, where, segments)
    # A dynamic variant looks at the length of the row, so the separate ones are filled up with tokens that come too late to be seen.
    for document, got in ((first, together[:, :7]), (second, together[:, 7:])):
        alone = np.concatenate([document, tokens(1, 16 - document.shape[1])], axis=1)
        np.testing.assert_allclose(got, logits(graph, params, alone)[:, : document.shape[1]], atol=5e-5)


def test_packed_documents_equal_separate_ones_under_a_scaling_by_position():
    """That factor is of the position itself, so the law asks for positions that restart."""
    graph, params = model(Scaled(encoding=RoPE(), log_n_length=3, temperature_length=2, temperature_scale=0.5))
    first, second = tokens(1, 7, seed=1), tokens(1, 9, seed=2)
    where, segments = np.concatenate([positions(1, 7), positions(1, 9)], axis=1), np.array([[1] * 7 + [2] * 9], np.int32)
    together = logits(graph, params, np.concatenate([first, second], axis=1), where, segments)
    np.testing.assert_allclose(together[:, :7], logits(graph, params, first), atol=5e-5)
    np.testing.assert_allclose(together[:, 7:], logits(graph, params, second), atol=5e-5)
    unscaled, _ = model(RoPE())
    assert np.abs(together[:, :7] - logits(unscaled, params, first)).max() > 1e-2


@pytest.mark.parametrize("name", ALL)
def test_a_document_never_moves_another_ones_logits(name: str):
    graph, params = model(example(name))
    rows, segments = tokens(1, 16), np.array([[1] * 7 + [2] * 9], np.int32)
    changed = rows.copy()
    changed[0, :7] = (changed[0, :7] + 1) % VOCAB
    before, after = (logits(graph, params, each, None, segments) for each in (rows, changed))
    np.testing.assert_array_equal(before[:, 7:], after[:, 7:])
    leaking = [logits(graph, params, each) for each in (rows, changed)]
    assert np.abs(leaking[0][:, 7:] - leaking[1][:, 7:]).max() > 1e-3  # without segment ids the same change is seen


@partial(jax.jit, static_argnums=0)
def gradient(graph: nnx.GraphDef, params: dict, rows: np.ndarray) -> dict:
    return jax.grad(loss, argnums=1)(graph, params, rows)


def loss(graph: nnx.GraphDef, params: dict, rows: np.ndarray) -> jax.Array:
    return token_losses(logits(graph, params, rows[:, :-1]), jnp.asarray(rows[:, 1:])).mean()


@pytest.mark.parametrize("changes", [{"remat": name} for name in REMAT_POLICIES if name != "none"] + [{"scan_unroll": 2}], ids=str)
def test_remat_and_unrolling_change_no_gradient(changes: dict):
    plain, params = model(RoPE())
    graph, _ = model(RoPE(), **changes)
    want, got = (jax.jit(jax.value_and_grad(loss, argnums=1), static_argnums=0)(g, params, tokens(2, 17)) for g in (plain, graph))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), want, got)


def test_bfloat16_computes_in_bfloat16_over_float32_masters():
    graph, params = model(RoPE(), compute_dtype="bfloat16")
    exact, _ = model(RoPE())
    rows = tokens(2, 33)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    half, full = logits(graph, params, rows), logits(exact, params, rows)
    assert half.dtype == jnp.float32
    error = np.abs(half - full).max() / np.abs(full).max()
    assert 1e-4 < error < 5e-2
    gradients = gradient(graph, params, rows)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype("float32")}


def test_optional_parts_have_parameters_and_effect():
    rows = tokens(1, 9)
    _, plain = model(RoPE())
    for changes, extra in [
        ({"query_key_norm": True}, 2 * 2 * 64),
        ({"attention_bias": True}, 2 * (4 + 2 + 2) * 64),
        ({"tie_embeddings": True}, -48 * VOCAB),
    ]:
        graph, params = model(RoPE(), **changes)
        assert parameter_count(params) == parameter_count(plain) + extra
        gradients = gradient(graph, params, rows)
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


def test_the_initial_parameters_do_not_depend_on_the_encoding():
    made = [nnx.to_pure_dict(nnx.state(Llama(config(num_layers=1), example(name), nnx.Rngs(0)))) for name in ("rope", "none")]
    jax.tree.map(np.testing.assert_array_equal, *made)


def test_layers_without_positions_are_every_kth():
    """With the parameters of the others switched off, what remains tells the layer that knows positions from the one that does not."""
    graph, params = model(RoPE(), num_layers=4, nope_every=2)
    rows, spread = tokens(1, 12), 3 * positions(1, 12)
    for layer, encoded in enumerate([True, False, True, False]):
        alone = jax.tree.map(lambda leaf: leaf, params)
        keep = np.arange(4) == layer
        for block, name in (("attention", "out"), ("mlp", "down")):
            weights = np.asarray(params["layers"][block][name])
            alone["layers"][block][name] = jnp.asarray(weights * keep.reshape(4, *[1] * (weights.ndim - 1)))
        T = 36  # a table that holds the spread positions
        near, far = (
            logits(graph, alone, np.pad(rows, ((0, 0), (0, T - 12))), np.pad(at, ((0, 0), (0, T - 12))))
            for at in (positions(1, 12), spread)
        )
        moved = np.abs(near[:, :12] - far[:, :12]).max()
        assert (moved > 1e-3) if encoded else (moved == 0)


def test_flops_are_six_a_parameter_and_attention():
    shape = config()
    _, params = model(RoPE())
    norms = sum(leaf.size for path, leaf in jax.tree_util.tree_leaves_with_path(params) if path[-1].key == "scale")
    assert matmul_parameters(shape) == parameter_count(params) - norms - params["embedding"].size
    full = train_flops_per_token(shape, 100, causal=False)
    assert full == 6 * matmul_parameters(shape) + 12 * 2 * 4 * 64 * 100
    assert full - train_flops_per_token(shape, 100, causal=True) == 6 * 2 * 4 * 64 * 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 63}, "model.head_dim=63 must be even"),
        ({"num_heads": 4, "num_kv_heads": 3}, "model.num_heads=4 must be a multiple of model.num_kv_heads=3"),
        ({"num_layers": 0}, "model.num_layers=0 must be at least 1"),
        ({"nope_every": 1}, "model.nope_every=1 must lie in 2 .. model.num_layers=2; for no positions in any layer"),
        ({"nope_every": 3}, "model.nope_every=3 must lie in 2 .. model.num_layers=2; for no positions in any layer"),
        ({"compute_dtype": "float16"}, "model.compute_dtype='float16' must be 'bfloat16' or 'float32'"),
        ({"remat": "some"}, "model.remat='some' must be one of none, dots, full"),
    ],
)
def test_an_impossible_shape_is_refused(changes: dict, message: str):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_a_position_beyond_the_context_is_loud():
    graph, params = model(RoPE())
    assert np.isnan(logits(graph, params, tokens(1, 4), positions(1, 4) + 2000)).all()


def test_the_model_takes_its_shape_from_the_config_alone():
    shape = LlamaConfig(vocab_size=7, num_layers=3, hidden_size=8, num_heads=2, num_kv_heads=1, head_dim=4, mlp_size=5)
    params = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Llama(shape, RoPE(), nnx.Rngs(0)))))
    attention = jax.tree.map(lambda leaf: leaf.shape, params["layers"]["attention"])
    assert attention == {"query": (3, 8, 2, 4), "key": (3, 8, 1, 4), "value": (3, 8, 1, 4), "out": (3, 2, 4, 8)}
    assert params["embedding"].shape == (7, 8)
    assert params["output"].shape == (8, 7)
