"""Causal grouped-query attention within documents.

Shape letters: B batch, T query length, S key length, H query heads, K key/value heads, G queries a group (H / K), D head dim.
"""

import jax
import jax.numpy as jnp


def causal_mask(length: int, segment_ids: jax.Array | None) -> jax.Array:
    """Which key each query may see: those before it (and itself), of the same document.

    Args:
      length: T, tokens in a row.
      segment_ids: integers of shape `(B, T)` naming each token's document, or None if a row is one document.

    Returns:
      bool of shape `(B, T, T)`, or `(1, T, T)` without documents; axes are query, key.
    """
    causal = jnp.tril(jnp.ones((length, length), bool))[None]
    if segment_ids is None:
        return causal
    return causal & (segment_ids[:, :, None] == segment_ids[:, None, :])


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """`softmax(q k^T / sqrt(D)) v` over the keys that `mask` allows; scores and softmax in float32.

    Args:
      q: shape `(B, H, T, D)`.
      k, v: shape `(B, K, S, D)`; query head h reads key/value head `h // (H / K)`.
      mask: bool, shape `(B, T, S)` or `(1, T, S)`; every query must see at least one key.

    Returns:
      Shape `(B, H, T, D)`, the dtype of `v`.
    """
    B, H, T, D = q.shape
    K = k.shape[1]
    q = (q * D**-0.5).reshape(B, K, H // K, T, D)
    scores = jnp.einsum("BKGTD,BKSD->BKGTS", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    # Softmax divided through only after the product with v: D divisions a query instead of S. The largest score cancels.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    out = jnp.einsum("BKGTS,BKSD->BKGTD", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return (out / weights.sum(axis=-1)[..., None]).astype(v.dtype).reshape(B, H, T, D)
