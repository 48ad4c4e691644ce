"""What xPos promises in place of the laws of rotation."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.rotary import VARIANTS, XPos
from tests.reference import encoded as reference_encoded
from tests.reference import rope, turned, xpos_decay
from tests.rotary.examples import settings


def encoded(encoding: XPos, q, k, positions, max_position: int, dtype=jnp.float32) -> tuple[np.ndarray, np.ndarray]:
    phases = encoding.phases(encoding.table(q.shape[-1], 1, max_position), jnp.asarray(positions))
    q, k = encoding.queries(jnp.asarray(q, dtype), phases), encoding.keys(jnp.asarray(k, dtype), phases)
    assert q.dtype == k.dtype == dtype
    return np.float64(q), np.float64(k)


def heads(head_dim: int, tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 1, tokens, head_dim)) / math.sqrt(head_dim)


def causal_scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.tril(q[0, 0] @ k[0, 0].T)


def test_scores_are_the_references():
    tokens, head_dim = 2048, 32
    positions = np.arange(tokens)[None]
    q, k = heads(head_dim, tokens), heads(head_dim, tokens, 1)
    got = causal_scores(*encoded(XPos(scale_base=512.0), q, k, positions, tokens))
    expected = causal_scores(*reference_encoded("xpos", q, k, positions, tokens, {"scale_base": 512.0, "base": 1e4}))
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)


@given(data=st.data())
def test_each_pair_fades_with_the_distance_alone(data: st.DataObject):
    encoding, parameters, head_dim = data.draw(settings("xpos", head_dims=(4, 64)))
    distance, start = data.draw(st.integers(0, 4096)), data.draw(st.integers(0, 1_000_000 - 4096))
    x = np.zeros((1, 1, head_dim // 2, head_dim))
    x[0, 0, range(head_dim // 2), range(head_dim // 2)] = 1.0  # row i lies in pair i
    rows = np.ones((1, head_dim // 2), np.int64)
    q, _ = encoded(encoding, x, x, (start + distance) * rows, 1 << 20)
    _, k = encoded(encoding, x, x, start * rows, 1 << 20)
    theta, _ = rope(head_dim, 1, base=parameters["base"])
    decay = xpos_decay(head_dim, distance, scale_base=parameters["scale_base"])
    expected = [size * math.cos(distance * each) for size, each in zip(decay, theta, strict=True)]
    np.testing.assert_allclose((q * k).sum(-1)[0, 0], expected, rtol=0, atol=1e-5)


def test_similar_tokens_attract_less_the_farther_they_are():
    # Without the rotation a score would be the mean of the decays, which never rises; the rotation takes a cosine off each of them.
    distances = np.arange(4096)
    decays = np.array([xpos_decay(64, distance, scale_base=512.0) for distance in distances])
    x = np.ones((1, 1, 4096, 64)) / 8.0
    scores = causal_scores(*encoded(XPos(), x, x, distances[None], 4096))[:, 0]
    assert (np.abs(scores) <= decays.mean(axis=1) + 1e-5).all()
    assert scores[0] == pytest.approx(1.0, abs=1e-6)
    assert np.abs(scores[2048:]).max() < 0.25


@pytest.mark.parametrize(("dtype", "bound"), [(jnp.bfloat16, 1e-2), (jnp.float16, 2e-3)])
def test_low_precision_keeps_the_scores(dtype, bound: float):
    tokens, head_dim = 4096, 64
    positions = np.arange(tokens)[None]
    q, k = heads(head_dim, tokens), heads(head_dim, tokens, 1)
    got = causal_scores(*encoded(XPos(), q, k, positions, tokens, dtype))
    expected = causal_scores(*encoded(XPos(), q, k, positions, tokens))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_fastest_fading_that_is_allowed_overflows_nothing(dtype):
    tokens = 31_000
    encoding = XPos(scale_base=512.0)
    positions = np.array([[0, 1, tokens // 2, tokens - 1]])
    q, k = encoded(encoding, 10 * heads(8, 4), 10 * heads(8, 4), positions, tokens, dtype)
    assert np.isfinite(q).all()
    assert np.isfinite(k).all()
    with pytest.raises(ValueError, match=r"scale_base=512\.0 fades too fast for 32000 positions"):
        encoding.table(8, 1, 32_000)


def test_without_fading_it_is_rope_on_any_base():
    positions = np.array([[0, 3, 1024, 4095]])
    x = heads(64, 4)
    q, k = encoded(VARIANTS["xpos"](scale_base=1e12, base=5e5), x, x, positions, 4096)
    expected = turned(x, positions, rope(64, 1, base=5e5)[0])
    np.testing.assert_allclose(q, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(k, expected, rtol=0, atol=1e-6)
