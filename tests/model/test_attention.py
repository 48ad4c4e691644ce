"""Attention against loops in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_lab.model.attention import attend, causal_mask


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


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("documents", [False, True])
def test_attention_is_the_loop(heads: int, kv_heads: int, documents: bool):
    rng = np.random.default_rng(0)
    B, T, D = 2, 9, 8
    q = rng.normal(size=(B, heads, T, D))
    k, v = rng.normal(size=(2, B, kv_heads, T, D))
    segments = jnp.asarray(np.sort(rng.integers(1, 4, (B, T)), axis=1)) if documents else None
    mask = causal_mask(T, segments)
    out = attend(*(jnp.asarray(x, jnp.float32) for x in (q, k, v)), mask)
    np.testing.assert_allclose(out, looped(q, k, v, np.asarray(mask)), atol=2e-6)


def test_mask_keeps_to_the_past_and_to_the_document():
    mask = np.asarray(causal_mask(5, jnp.array([[1, 1, 2, 2, 2]])))[0]
    want = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    np.testing.assert_array_equal(mask, np.array(want, bool))
