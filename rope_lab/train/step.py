"""One update: `train_step(state, batch) -> (state, metrics)`, pure.

Shape letters: B batch, T length, N micro-batches.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from rope_lab.data.pipeline import Batch
from rope_lab.train.loss import chunked_token_losses, token_losses
from rope_lab.train.state import TrainState, add_tokens

TrainStep = Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]


def make_train_step(
    graph: nnx.GraphDef, optimizer: optax.GradientTransformation, microbatches: int, loss_chunk_tokens: int | None = None
) -> TrainStep:
    """Builds the step.

    The loss is the weighted mean over all targets of the global batch, however many micro-batches it is cut into: gradients of
    weighted sums are added up, and divided once by the sum of weights.

    Args:
      graph: the model's structure.
      optimizer: its update.
      microbatches: N; divides B.
      loss_chunk_tokens: tokens whose logits exist at once, see `chunked_token_losses`; None: those of a micro-batch.
    """

    def weighted_sum(params: Any, batch: Batch) -> jax.Array:
        model = nnx.merge(graph, params)
        hidden = model.hidden(batch.tokens, batch.positions, batch.segment_ids)
        if loss_chunk_tokens is None:
            losses = token_losses(model.logits(hidden), batch.targets)
        else:
            losses = chunked_token_losses(model.norm(hidden), model.output_MV(), batch.targets, loss_chunk_tokens)
        return jnp.sum(losses * batch.weights)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        weight = jnp.sum(batch.weights)
        if microbatches == 1:
            loss, grads = jax.value_and_grad(weighted_sum)(state.params, batch)
        else:

            def accumulate(total: tuple, part: Batch) -> tuple[tuple, None]:
                return jax.tree.map(jnp.add, total, jax.value_and_grad(weighted_sum)(state.params, part)), None

            parts = jax.tree.map(lambda x: x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1), batch)
            zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.params))
            (loss, grads), _ = jax.lax.scan(accumulate, zero, parts)
        grads = jax.tree.map(lambda g: g / weight, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        seen = add_tokens(state.tokens_seen, batch.tokens.size)
        metrics = {"train/loss_nats": loss / weight, "train/gradient_norm": optax.tree.norm(grads), "tokens_seen": seen}
        return TrainState(params, opt_state, state.step + 1, seen), metrics

    return train_step
