"""Causal grouped-query attention within documents, by the name of its kernel.

Shape letters: B batch, T query length, S key length, H query heads, K key/value heads, G queries a group (H / K), D head dim,
N blocks, C tokens a block.

A query sees the keys at or before its own place whose document is its own. A kernel is told so by places and segment ids, a few numbers
a token; only `reference` makes a mask of T x S from them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

MAX_DENSE_LENGTH = 8192
"""Side of the largest square of scores that `reference` makes."""

BLOCK = 64
"""Tokens in a block of `blockwise`."""

Kernel = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array | None], jax.Array]


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array | None = None,
    start: jax.Array | None = None,
    *,
    kernel: str = "reference",
) -> jax.Array:
    """`softmax(q k^T / sqrt(D)) v` over the keys that each query sees; scores and softmax in float32.

    Args:
      q: shape `(B, H, T, D)`.
      k, v: shape `(B, K, S, D)`; query head h reads key/value head `h // (H / K)`.
      segment_ids: integers of shape `(B, T)` naming each token's document, or None if a row is one document.
      start: int32 scalar: the queries stand at `start .. start + T - 1` among the keys of one document. None: T is S.
      kernel: a key of `KERNELS`.

    Returns:
      Shape `(B, H, T, D)`, the dtype of `v`.

    Raises:
      ValueError: if `reference` is asked for more scores than `MAX_DENSE_LENGTH` squared.
    """
    B, H, T, D = q.shape
    assert segment_ids is None or start is None
    assert start is not None or k.shape[2] == T
    grouped = (q * D**-0.5).reshape(B, k.shape[1], -1, T, D)
    return KERNELS[kernel](grouped, k, v, segment_ids, start).reshape(B, H, T, D)


def visible(queries_T: jax.Array, keys_S: jax.Array, of_queries_BT: jax.Array | None, of_keys_BS: jax.Array | None) -> jax.Array:
    """Which key each query may see: those before it (and itself), of the same document.

    Args:
      queries_T, keys_S: places in the row.
      of_queries_BT, of_keys_BS: the documents there; None if a row is one document.

    Returns:
      bool of shape `(B, T, S)`, or `(1, T, S)` without documents.
    """
    causal = (keys_S <= queries_T[:, None])[None]
    if of_queries_BT is None or of_keys_BS is None:
        return causal
    return causal & (of_queries_BT[:, :, None] == of_keys_BS[:, None, :])


def reference(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, start: jax.Array | None) -> jax.Array:
    """All scores at once; arguments as in `attend`, but q comes scaled and of shape `(B, K, G, T, D)`."""
    T, S = q.shape[3], k.shape[2]
    if T * S > MAX_DENSE_LENGTH**2:
        raise ValueError(
            f"model.attention='reference' would make a dense mask for {T} queries of {S} keys, which is over {MAX_DENSE_LENGTH} squared; "
            "set model.attention='blockwise'"
        )
    mask = visible(_places(T, start), _places(S), segment_ids, segment_ids)
    scores = _scores(q, k, mask)
    # Softmax divided through only after the product with v: D divisions a query instead of S. The largest score cancels.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    out = _product("BKGTS,BKSD->BKGTD", weights.astype(v.dtype), v)
    return (out / weights.sum(axis=-1)[..., None]).astype(v.dtype)


def blockwise(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, start: jax.Array | None, block: int = BLOCK
) -> jax.Array:
    """Each block of queries against the blocks of keys at or before it alone; arguments as in `reference`.

    The softmax is formed as its keys come. Of the forward pass only the output and each query's log-sum-exp stay, and the backward pass
    makes the scores again: memory is linear in length, on any backend.

    Source: Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory", arXiv:2112.05682; the backward pass is that of Dao et al.,
    "FlashAttention", arXiv:2205.14135, appendix B.4.
    """
    return _blockwise(q, k, v, segment_ids, start, block)


KERNELS: dict[str, Kernel] = {"reference": reference, "blockwise": blockwise}

_product = partial(jnp.einsum, preferred_element_type=jnp.float32)


def _places(length: int, start: jax.Array | None = None) -> jax.Array:
    return jnp.arange(length) if start is None else start + jnp.arange(length)


def _scores(q: jax.Array, k: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask[:, None, None], _product("BKGTD,BKSD->BKGTS", q, k), -jnp.inf)


class _Queries(NamedTuple):
    """A block of queries, or with a first axis of N all of them; the last three are the backward pass's."""

    places: jax.Array
    documents: jax.Array | None
    q: jax.Array
    log_total: Any = None
    cotangent: Any = None
    out_dot_cotangent: Any = None


class _Keys(NamedTuple):
    places: jax.Array
    documents: jax.Array | None
    k: jax.Array
    v: jax.Array


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _blockwise(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, start: jax.Array | None, block: int) -> jax.Array:
    return _forward(q, k, v, segment_ids, start, block)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, start: jax.Array | None, block: int
) -> tuple[jax.Array, tuple]:
    queries, keys = _blocked(q, k, v, segment_ids, start, block)

    def of_queries(each: _Queries) -> tuple[jax.Array, jax.Array]:
        def with_keys(index: jax.Array, so_far: tuple) -> tuple:
            largest, total, values = so_far
            some = _at(keys, index)
            scores = _scores(each.q, some.k, _mask(each, some))
            new_largest = jnp.maximum(largest, scores.max(axis=-1))
            shrink = jnp.exp(largest - new_largest)
            weights = jnp.exp(scores - new_largest[..., None])
            added = _product("BKGTS,BKSD->BKGTD", weights.astype(v.dtype), some.v)
            return new_largest, shrink * total + weights.sum(axis=-1), shrink[..., None] * values + added

        # A row that has seen no key yet has a finite largest score, so that no difference of two infinities is taken.
        none = jnp.full(each.q.shape[:-1], jnp.finfo(jnp.float32).min)
        nothing = (none, jnp.zeros_like(none), jnp.zeros(each.q.shape, jnp.float32))
        largest, total, values = jax.lax.fori_loop(0, _key_blocks(each, keys), with_keys, nothing)
        return (values / total[..., None]).astype(v.dtype), largest + jnp.log(total)

    out, log_total = jax.lax.map(of_queries, queries)
    out, log_total = _joined(out, 3, q.shape[3]), _joined(log_total, 3, q.shape[3])
    return out, (q, k, v, segment_ids, start, out, log_total)


def _backward(block: int, saved: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None, None]:
    q, k, v, segment_ids, start, out, log_total = saved
    dot = jnp.sum(out.astype(jnp.float32) * cotangent.astype(jnp.float32), axis=-1)
    queries, keys = _blocked(q, k, v, segment_ids, start, block, log_total, cotangent, dot)

    def of_queries(so_far: tuple, each: _Queries) -> tuple[tuple, jax.Array]:
        def with_keys(index: jax.Array, so_far: tuple) -> tuple:
            of_q, of_k, of_v = so_far
            some = _at(keys, index)
            weights = jnp.exp(_scores(each.q, some.k, _mask(each, some)) - each.log_total[..., None])
            of_weights = _product("BKGTD,BKSD->BKGTS", each.cotangent, some.v)
            of_scores = (weights * (of_weights - each.out_dot_cotangent[..., None])).astype(k.dtype)
            return (
                of_q + _product("BKGTS,BKSD->BKGTD", of_scores, some.k),
                _add_at(of_k, index, _product("BKGTS,BKGTD->BKSD", of_scores, each.q)),
                _add_at(of_v, index, _product("BKGTS,BKGTD->BKSD", weights.astype(v.dtype), each.cotangent)),
            )

        zero = jnp.zeros(each.q.shape, jnp.float32)
        of_q, of_k, of_v = jax.lax.fori_loop(0, _key_blocks(each, keys), with_keys, (zero, *so_far))
        return (of_k, of_v), of_q

    zeros = jnp.zeros(keys.k.shape, jnp.float32)
    (of_k, of_v), of_q = jax.lax.scan(of_queries, (zeros, zeros), queries)
    of_q, of_k, of_v = _joined(of_q, 3, q.shape[3]), _joined(of_k, 2, k.shape[2]), _joined(of_v, 2, k.shape[2])
    return of_q.astype(q.dtype), of_k.astype(k.dtype), of_v.astype(v.dtype), None, None


_blockwise.defvjp(_forward, _backward)


def _blocked(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: jax.Array | None,
    start: jax.Array | None,
    block: int,
    *of_backward: jax.Array,
) -> tuple[_Queries, _Keys]:
    """Queries and keys in blocks of C along a first axis, filled up with tokens that come after all others and are dropped again."""
    T, S = q.shape[3], k.shape[2]
    documents = (None, None) if segment_ids is None else (_split(segment_ids, 1, min(block, T)), _split(segment_ids, 1, min(block, S)))
    per_query = [_split(x, 3, min(block, T)) for x in (q, *of_backward)]
    per_key = [_split(x, 2, min(block, S)) for x in (k, v)]
    queries_NC = _places(per_query[0].shape[0] * min(block, T), start).reshape(-1, min(block, T))
    keys_NC = _places(per_key[0].shape[0] * min(block, S)).reshape(-1, min(block, S))
    return _Queries(queries_NC, documents[0], *per_query), _Keys(keys_NC, documents[1], *per_key)


def _split(x: jax.Array, axis: int, size: int) -> jax.Array:
    """`x` in blocks of `size` tokens, the last filled up with zeros: `(..., T, ...)` becomes `(N, ..., C, ...)`."""
    x = jnp.pad(x, [(0, -x.shape[axis] % size if a == axis else 0) for a in range(x.ndim)])
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)


def _joined(x: jax.Array, axis: int, length: int) -> jax.Array:
    """What `_split` made, whole again."""
    x = jnp.moveaxis(x, 0, axis)
    return jax.lax.slice_in_dim(x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), 0, length, axis=axis)


def _at(blocks: Any, index: jax.Array) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), blocks)


def _add_at(total: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(total, _at(total, index) + value, index, 0)


def _mask(queries: _Queries, keys: _Keys) -> jax.Array:
    return visible(queries.places, keys.places, queries.documents, keys.documents)


def _key_blocks(queries: _Queries, keys: _Keys) -> jax.Array:
    """How many blocks of keys begin at or before the last of these queries."""
    blocks, size = keys.places.shape
    return jnp.minimum(queries.places[-1] // size + 1, blocks)
