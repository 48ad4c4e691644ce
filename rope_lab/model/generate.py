"""Greedy decoding through the key/value cache.

Shape letters: B batch, P prompt length, N new tokens.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rope_lab.model.llama import KVCache, Llama, empty_cache


@partial(jax.jit, static_argnums=0, donate_argnums=4)
def _extend(graph: nnx.GraphDef, params: dict, tokens: jax.Array, start: jax.Array, cache: KVCache, table: object):
    model: Llama = nnx.merge(graph, params)
    logits_BTV, cache = model.extend(tokens, start, cache, table)
    return logits_BTV, cache


def generate(graph: nnx.GraphDef, params: dict, prompts_BP: np.ndarray, num_tokens: int) -> np.ndarray:
    """Continues each prompt by the most likely token, `num_tokens` times.

    A variant whose spectrum depends on the current length (dynamic NTK) changes not only the rotation of cached keys but, from
    the second layer on, the keys themselves. So when the spectrum moves, the cache is filled anew: the result equals a full
    forward pass over the tokens so far, for every variant.

    Args:
      graph, params: a model, split by `nnx.split`.
      prompts_BP: int32 token ids; each prompt is one document, and all are of one length.
      num_tokens: N, at least 1.

    Returns:
      int32, shape `(B, N)`.
    """
    B, P = prompts_BP.shape
    capacity = P + num_tokens
    model: Llama = nnx.merge(graph, params)
    tokens = np.zeros((B, capacity), np.int32)
    tokens[:, :P] = prompts_BP
    cache, filled_with = empty_cache(model.config, B, capacity), None
    for length in range(P, capacity):
        table = model.encoding.table(model.config.head_dim, length, capacity)
        if filled_with is None or not jax.tree.all(jax.tree.map(np.array_equal, table, filled_with)):
            logits_BTV, cache = _extend(graph, params, tokens, 0, cache, table)  # tokens still to come are masked by causality
            last_BV = logits_BTV[:, length - 1]
            filled_with = table
        else:
            logits_BTV, cache = _extend(graph, params, tokens[:, length - 1 : length], length - 1, cache, table)
            last_BV = logits_BTV[:, 0]
        tokens[:, length] = np.asarray(jnp.argmax(last_BV, axis=-1))
    return tokens[:, P:]
