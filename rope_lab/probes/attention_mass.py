"""Where attention goes: the share of a query's softmax that lies at each distance.

Shape letters: B rows, H query heads, K key/value heads, G queries a group (H / K), S queries looked at, T keys, D head dim, E bins.
"""

import jax
import jax.numpy as jnp
import numpy as np


def distance_edges(length: int) -> np.ndarray:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and `length`: half-open bins of the distances `0 .. length - 1`, even on a log axis; tokens."""
    edges = [0, 1, 2] + [edge for power in range(1, 41) for edge in (3 * 2 ** (power - 1), 2 ** (power + 1))]
    return np.array([*(edge for edge in edges if edge < length), length], np.int32)


def attention_mass(q: jax.Array, k: jax.Array, at_S: np.ndarray, edges: np.ndarray) -> jax.Array:
    """Mean over queries of the attention weight that falls into each bin of distance.

        mass_e = mean over i of  sum of softmax_j(q_i k_j / sqrt(D)) over the keys j <= i with edges[e] <= i - j < edges[e + 1]

    Args:
      q: encoded queries, shape `(B, H, T, D)`.
      k: encoded keys, shape `(B, K, T, D)`; query head h reads key head `h // (H / K)`.
      at_S: positions i of the queries looked at.
      edges: from `distance_edges(T)`.

    Returns:
      float32, shape `(B, H, E)`; sums to 1 over E. Scores and softmax in float32, as `rope_lab.model.attention.attend` forms them.
    """
    B, H, T, D = q.shape
    K, S = k.shape[1], len(at_S)
    q = (q[:, :, at_S] * D**-0.5).reshape(B, K, H // K, S, D)
    scores = jnp.einsum("BKGSD,BKTD->BKGST", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(np.arange(T) <= at_S[:, None], scores, -jnp.inf), axis=-1)
    distances_ST = at_S[:, None] - np.arange(T)  # a gather that is its own inverse: key to distance and distance to key
    by_distance = jnp.take_along_axis(weights, jnp.asarray(np.maximum(distances_ST, 0))[None, None, None], axis=-1)
    mean_BHT = jnp.where(distances_ST >= 0, by_distance, 0.0).mean(axis=-2).reshape(B, H, T)
    bins_TE = (edges[:-1] <= np.arange(T)[:, None]) & (np.arange(T)[:, None] < edges[1:])
    return jnp.einsum("BHT,TE->BHE", mean_BHT, bins_TE.astype(np.float32), precision="highest")
