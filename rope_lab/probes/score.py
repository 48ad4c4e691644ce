"""Teacher-forced scoring: one forward pass tells every token's loss and whether greedy decoding would have produced it.

Shape letters: N rows, W tokens in a row, T = W - 1, B rows a forward pass, A answer tokens, D distractors, P places in a
row, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from rope_lab.model.llama import Llama
from rope_lab.train.loss import token_losses


class Scores(NamedTuple):
    """Attributes:
    losses: float32 `(N, T)`, nats of each token given those before it.
    hits: bool `(N, T)`, the token is the most likely one; over an answer this equals greedy exact match.
    """

    losses: np.ndarray
    hits: np.ndarray


class Answers(NamedTuple):
    """Scores of the answers that close the rows.

    Attributes:
      predicted: int32 `(N, A)`: the most likely token at each place of the answer, given the right ones before it.
      log_probs: float32 `(N, A)`, nats, of the answer's tokens.
      margins: float32 `(N,)`, nats: by how much the answer's log-probability exceeds the likeliest distractor's, where the two first
        differ; above 0 the model prefers the answer to every distractor.
    """

    predicted: np.ndarray
    log_probs: np.ndarray
    margins: np.ndarray


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

        def answers(answer_length: int, params: dict, rows_BW: jax.Array, distractors_BDA: jax.Array) -> tuple[jax.Array, ...]:
            tokens, targets_BA = rows_BW[:, :-1], rows_BW[:, -answer_length:]
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
            model: Llama = nnx.merge(graph, params)
            logits_BAV = model.logits(model.hidden(tokens, positions)[:, -answer_length:])  # no other place is asked about
            log_probs_BAV = jax.nn.log_softmax(logits_BAV)
            right_BA = jnp.take_along_axis(log_probs_BAV, targets_BA[..., None], axis=-1)[..., 0]
            wrong_BDA = jnp.take_along_axis(log_probs_BAV, distractors_BDA.swapaxes(1, 2), axis=-1).swapaxes(1, 2)
            differs_BD = jnp.argmax(distractors_BDA != targets_BA[:, None], axis=-1)
            margin_BDA = right_BA[:, None] - wrong_BDA
            margin_BD = jnp.take_along_axis(margin_BDA, differs_BD[..., None], axis=-1)[..., 0]
            return jnp.argmax(logits_BAV, axis=-1), right_BA, margin_BD.min(axis=-1)

        def hits_at(params: dict, rows_BW: jax.Array, places_BP: jax.Array) -> tuple[jax.Array]:
            tokens = rows_BW[:, :-1]
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
            model: Llama = nnx.merge(graph, params)
            hidden_BPM = jnp.take_along_axis(model.hidden(tokens, positions), places_BP[..., None], axis=1)
            return (jnp.argmax(model.logits(hidden_BPM), axis=-1) == jnp.take_along_axis(rows_BW, places_BP + 1, axis=1),)

        everywhere = NamedSharding(sharding.mesh, PartitionSpec())
        self._forward = jax.jit(forward, out_shardings=everywhere)
        self._answers = jax.jit(answers, static_argnums=0, out_shardings=everywhere)
        self._hits_at = jax.jit(hits_at, out_shardings=everywhere)
        self._sharding = sharding
        self._tokens = tokens_per_forward

    def __call__(self, params: dict, rows_NW: np.ndarray) -> Scores:
        """Scores each row as one document whose positions start at 0."""
        return Scores(*self._batched(partial(self._forward, params), [rows_NW]))

    def answers(self, params: dict, rows_NW: np.ndarray, answer_length: int, distractors_NDA: np.ndarray) -> Answers:
        """Scores the last `answer_length` tokens of each row; logits exist at those places only.

        Args:
          params: of the model.
          rows_NW: int32, each one document whose positions start at 0.
          answer_length: A.
          distractors_NDA: int32, answers that would be wrong; each differs from the right one, and D is at least 1.
        """
        return Answers(*self._batched(partial(self._answers, answer_length, params), [rows_NW, distractors_NDA]))

    def hits_at(self, params: dict, rows_NW: np.ndarray, places_NP: np.ndarray) -> np.ndarray:
        """Whether the token after each of the given places of a row is the most likely one; logits exist at those places only.

        Args:
          params: of the model.
          rows_NW: int32, each one document whose positions start at 0.
          places_NP: int32, `0 .. W - 2`, as many for every row.

        Returns:
          bool `(N, P)`: `Scores.hits` there.
        """
        return self._batched(partial(self._hits_at, params), [rows_NW, places_NP])[0]

    def _batched(self, forward: Callable[..., tuple[jax.Array, ...]], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What `forward` makes of the rows, in passes of one shape; the first array's width decides how many rows a pass holds."""
        N, W = arrays[0].shape
        mesh = self._sharding.mesh
        ways = mesh.shape["data"] * mesh.shape["fsdp"]
        most = max(1, self._tokens // W // ways) * ways
        passes = math.ceil(N / most)
        B = math.ceil(N / passes / ways) * ways  # all passes alike, so that next to nothing is padding
        padded = [np.concatenate([array, np.repeat(array[:1], -N % B, axis=0)]) for array in arrays]
        parts = [forward(*(jax.device_put(array[i : i + B], self._sharding) for array in padded)) for i in range(0, len(padded[0]), B)]
        return [np.concatenate(column)[:N] for column in zip(*jax.device_get(parts), strict=True)]
