"""Attention against loops in float64, and the kernels against each other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_lab.model import attention
from rope_lab.model.attention import KERNELS, attend, blockwise, visible
from rope_lab.model.llama import empty_cache
from rope_lab.rotary import RoPE
from tests.model.small import logits, model, tokens


def looped(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Softmax attention one query at a time; query head h reads key/value head h // (H / K)."""
    B, H, T, D = q.shape
    out = np.zeros((B, H, T, D))
    for b in range(B):
        for h in range(H):
            kv = h // (H // k.shape[1])
            for t in range(T):
                seen = [s for s in range(k.shape[2]) if mask[min(b, len(mask) - 1), t, s]]
                scores = np.array([q[b, h, t] @ k[b, kv, s] / np.sqrt(D) for s in seen])
                weights = np.exp(scores - scores.max())
                out[b, h, t] = sum(w * v[b, kv, s] for w, s in zip(weights / weights.sum(), seen, strict=True))
    return out


def arrays(heads: int, kv_heads: int, T: int, dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(2, h, T, 8)), dtype) for h in (heads, kv_heads, kv_heads))
    return 4 * q, k, v  # sharp enough that one key can outweigh the rest


def packed(T: int) -> jax.Array:
    return jnp.asarray(np.sort(np.random.default_rng(1).integers(1, 4, (2, T)), axis=1))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_is_the_loop(kernel: str, heads: int, kv_heads: int, documents: bool):
    T = 9
    q, k, v = arrays(heads, kv_heads, T)
    segments = packed(T) if documents else None
    mask = visible(jnp.arange(T), jnp.arange(T), segments, segments)
    want = looped(*(np.asarray(x, np.float64) for x in (q, k, v)), np.asarray(mask))
    np.testing.assert_allclose(jax.jit(partial(attend, kernel=kernel))(q, k, v, segments), want, atol=2e-6)


def test_a_query_sees_the_past_of_its_document():
    segments = jnp.array([[1, 1, 2, 2, 2]])
    mask = visible(jnp.arange(5), jnp.arange(5), segments, segments)
    want = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    np.testing.assert_array_equal(mask[0], np.array(want, bool))
    later = visible(2 + jnp.arange(2), jnp.arange(5), None, None)  # two queries after two tokens that a cache holds
    np.testing.assert_array_equal(later[0], np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool))


def out_and_gradients(kernel: str, q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None) -> tuple[jax.Array, ...]:
    """The output, and the gradients to q, k and v of a random weighting of it."""
    weights = jnp.asarray(np.random.default_rng(2).normal(size=q.shape), q.dtype)

    @jax.jit
    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
        out, pull = jax.vjp(lambda *each: attend(*each, segments, kernel=kernel), q, k, v)
        return out, *pull(weights)

    return both(q, k, v)


def use_block(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setitem(KERNELS, "blockwise", partial(blockwise, block=block))


@pytest.mark.parametrize(
    ("kv_heads", "T", "block", "documents"),
    [(4, 12, 4, False), (4, 13, 4, True), (2, 13, 5, False), (2, 16, 4, True), (1, 7, 1, True), (1, 5, 16, True)],
)
def test_blockwise_is_reference(monkeypatch, kv_heads: int, T: int, block: int, documents: bool):
    """Lengths that are multiples of the block, that are not, and that are shorter than one; a query may see no key of a block."""
    use_block(monkeypatch, block)
    inputs = (*arrays(4, kv_heads, T), packed(T) if documents else None)
    for want, got in zip(out_and_gradients("reference", *inputs), out_and_gradients("blockwise", *inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_in_bfloat16_the_kernels_differ_by_roundings(monkeypatch):
    """Both round inputs and results to 8 bits and add up in float32."""
    use_block(monkeypatch, 4)
    inputs = (*arrays(4, 2, 13, "bfloat16"), packed(13))
    exact = out_and_gradients("reference", *(x.astype(jnp.float32) for x in inputs[:3]), inputs[3])
    for want, got in zip(exact, out_and_gradients("blockwise", *inputs), strict=True):
        assert got.dtype == jnp.bfloat16
        assert jnp.linalg.norm(got.astype(jnp.float32) - want) < 2**-7 * jnp.linalg.norm(want)


@pytest.mark.parametrize("block", [3, 4, 16])
def test_queries_after_a_cache_see_it_and_nothing_later(monkeypatch, block: int):
    use_block(monkeypatch, block)
    q, k, v = arrays(4, 2, 14)
    step = jax.jit(lambda start, kernel: attend(q[:, :, :5], k, v, start=start, kernel=kernel), static_argnums=1)
    for start in (0, 3, 9):
        mask = visible(start + jnp.arange(5), jnp.arange(14), None, None)
        want = looped(*(np.asarray(x, np.float64) for x in (q[:, :, :5], k, v)), np.asarray(mask))
        for kernel in KERNELS:
            np.testing.assert_allclose(step(jnp.int32(start), kernel), want, atol=2e-6)


def test_blocks_after_the_query_are_not_touched(monkeypatch):
    """A masked value still enters as 0 times itself; one that is skipped does not."""
    use_block(monkeypatch, 4)
    q, k, v = arrays(2, 2, 12)
    spoilt = v.at[:, :, 8:].set(jnp.nan)
    skipped, masked = (jax.jit(partial(attend, kernel=kernel))(q, k, spoilt)[:, :, :8] for kernel in ("blockwise", "reference"))
    assert np.isfinite(skipped).all()
    assert np.isnan(masked).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_document_never_moves_another(monkeypatch, kernel: str):
    """Not by a bit, forward or backward, whichever comes first; in one document the same change is seen."""
    use_block(monkeypatch, 4)
    run = jax.jit(partial(attend, kernel=kernel))
    gradients = jax.jit(jax.grad(lambda inputs, segments, of_out: jnp.sum(run(*inputs, segments) * of_out)))
    first = np.arange(13) < 6
    segments = jnp.asarray(np.broadcast_to(np.where(first, 7, 3), (2, 13)))
    inputs = arrays(4, 2, 13)
    for changes in (first, ~first):
        change = jnp.asarray(changes[:, None], jnp.float32)
        before, after = (run(*each, segments) for each in (inputs, tuple(x + change for x in inputs)))
        np.testing.assert_array_equal(before[:, :, ~changes], after[:, :, ~changes])
        for of_input in gradients(inputs, segments, before * (1 - change)):
            assert (of_input[:, :, changes] == 0).all()
            assert (of_input[:, :, ~changes] != 0).any()
    together = (run(*each, jnp.ones_like(segments)) for each in (inputs, tuple(x + (1 - change) for x in inputs)))
    assert np.abs(np.subtract(*together)[:, :, 6:]).max() > 1e-2


def test_memory_of_value_and_gradient():
    """At 8k, compiled only: the reference holds squares of scores, blockwise rows of numbers."""

    def bytes_of(kernel: str, length: int) -> int:
        total = lambda q, k, v: attend(q, k, v, kernel=kernel).sum()  # noqa: E731
        shape = jax.ShapeDtypeStruct((1, 2, length, 64), jnp.float32)
        compiled = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    at_8k = bytes_of("blockwise", 8192)
    assert at_8k < bytes_of("reference", 8192) / 20
    assert bytes_of("blockwise", 32_768) < 4.1 * at_8k


def test_a_large_dense_mask_is_refused():
    def shape(queries: int, keys: int, start: int | None) -> tuple[int, ...]:
        q, k = (jax.ShapeDtypeStruct((1, 1, length, 8), jnp.float32) for length in (queries, keys))
        return jax.eval_shape(lambda q, k: attend(q, k, k, start=None if start is None else jnp.int32(start)), q, k).shape

    assert shape(8192, 8192, None) == (1, 1, 8192, 8)
    assert shape(1, 100_000, 99_999) == (1, 1, 1, 8)  # a row of a mask is no square
    message = (
        r"model.attention='reference' would make a dense mask for 8193 queries of 8193 keys, which is over 8192 squared; "
        r"set model.attention='blockwise'"
    )
    with pytest.raises(ValueError, match=message):
        shape(8193, 8193, None)


def test_the_model_runs_the_kernel_that_its_config_names(monkeypatch):
    """Packed rows and cached decoding, in several blocks."""
    use_block(monkeypatch, 4)
    called = []
    monkeypatch.setitem(KERNELS, "reference", lambda *each: called.append("reference") or attention.reference(*each))
    rows, segments = tokens(2, 13), np.asarray(packed(13), np.int32)
    plain, params = model(RoPE())
    named, _ = model(RoPE(), attention="blockwise")
    got = logits(named, params, rows, None, segments), extended(named, params, rows)
    assert called == []
    want = logits(plain, params, rows, None, segments), extended(plain, params, rows)
    assert set(called) == {"reference"}
    for one, other in zip(want, got, strict=True):
        np.testing.assert_allclose(other, one, atol=5e-5)


def extended(graph: nnx.GraphDef, params: dict, rows: np.ndarray) -> jax.Array:
    """Logits of the last six tokens, after a cache was filled with the others."""
    llama = nnx.merge(graph, params)
    table = llama.encoding.table(llama.config.head_dim, rows.shape[1], rows.shape[1])
    extend = jax.jit(lambda rows, start, cache: nnx.merge(graph, params).extend(rows, start, cache, table))
    _, cache = extend(rows[:, :7], jnp.int32(0), empty_cache(llama.config, len(rows), 20))
    return extend(rows[:, 7:], jnp.int32(7), cache)[0]
