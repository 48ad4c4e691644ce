"""Teacher-forced scoring: one forward pass tells every token's loss and whether greedy decoding would have produced it.

Shape letters: N rows, W tokens in a row, T = W - 1, B rows a forward pass.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from rope_lab.train.loss import token_losses


class Scores(NamedTuple):
    """Attributes:
    losses: float32 `(N, T)`, nats of each token given those before it.
    hits: bool `(N, T)`, the token is the most likely one; over an answer this equals greedy exact match.
    """

    losses: np.ndarray
    hits: np.ndarray


class Scorer:
    """Scores rows in forward passes of one shape, on the training mesh.

    Args:
      graph: the model's structure.
      sharding: of a batch's rows; its mesh is the one the parameters live on.
      tokens_per_forward: rows a pass are chosen so that it holds about so many tokens.
    """

    def __init__(self, graph: nnx.GraphDef, sharding: NamedSharding, tokens_per_forward: int = 16_384):
        def forward(params: dict, rows_BW: jax.Array) -> tuple[jax.Array, jax.Array]:
            tokens, targets = rows_BW[:, :-1], rows_BW[:, 1:]
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
            logits = nnx.merge(graph, params)(tokens, positions)
            return token_losses(logits, targets), jnp.argmax(logits, axis=-1) == targets

        everywhere = NamedSharding(sharding.mesh, PartitionSpec())
        self._forward = jax.jit(forward, out_shardings=everywhere)
        self._sharding = sharding
        self._tokens = tokens_per_forward

    def __call__(self, params: dict, rows_NW: np.ndarray) -> Scores:
        """Scores each row as one document whose positions start at 0."""
        mesh = self._sharding.mesh
        ways = mesh.shape["data"] * mesh.shape["fsdp"]
        B = max(1, self._tokens // rows_NW.shape[1] // ways) * ways
        padded = np.concatenate([rows_NW, np.repeat(rows_NW[:1], -len(rows_NW) % B, axis=0)])
        parts = [self._forward(params, jax.device_put(padded[i : i + B], self._sharding)) for i in range(0, len(padded), B)]
        losses, hits = (np.concatenate(column)[: len(rows_NW)] for column in zip(*jax.device_get(parts), strict=True))
        return Scores(losses, hits)
