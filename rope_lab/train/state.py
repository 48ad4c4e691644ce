"""What training carries from step to step: one pytree."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from rope_lab.model.llama import Constrain, Llama


class TrainState(NamedTuple):
    """Attributes:
    params: nested dict of float32 arrays, layers stacked along the first axis.
    opt_state: optax's.
    step: int32 scalar, updates done.
    tokens_seen: uint32 pair (high, low word): a 64-bit count of tokens trained on; see `tokens_seen`.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    tokens_seen: jax.Array


ModelFactory = Callable[[nnx.Rngs, Constrain], Llama]
"""Makes the model, given the seeds of its parameters and how activations are pinned to the mesh."""


def split_model(make: ModelFactory, constrain: Constrain) -> tuple[nnx.GraphDef, nnx.State]:
    """The model's structure, and each parameter's shape and logical axes: the one place where NNX is taken apart.

    Returns:
      The graph, and a tree like the parameters' whose leaves are `nnx.Param` of `jax.ShapeDtypeStruct` with `axes` metadata.
    """
    return nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0), constrain)))


def init_params(make: ModelFactory, seed: jax.Array | np.uint32) -> dict:
    """Fresh parameters, a function of the shape and the seed alone: not of the position encoding, nor of the mesh."""
    return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(jax.random.key(seed)), lambda x, axes: x)))


def init_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """Step 0 with these parameters."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), jnp.zeros(2, jnp.uint32))


def fingerprint(params: Any) -> jax.Array:
    """A uint32 that tells equal parameters from different ones, whatever the mesh: weighted sums of the bit patterns mod 2**32."""
    total = jnp.uint32(0)
    for number, leaf in enumerate(jax.tree.leaves(params)):
        place = jnp.zeros(leaf.shape, jnp.uint32)  # row-major index, made without a reshape so that a sharded leaf stays sharded
        for axis, size in enumerate(leaf.shape):
            place = place * jnp.uint32(size % 2**32) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
        bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
        total += jnp.sum(bits * (2 * place + 1)) * jnp.uint32(2 * number + 1)
    return total


def add_tokens(counter: jax.Array, count: int) -> jax.Array:
    """The 64-bit counter after `count` (below 2**32) more tokens."""
    low = counter[1] + jnp.uint32(count)
    return jnp.stack([counter[0] + (low < counter[1]).astype(jnp.uint32), low])


def tokens_seen(counter: jax.Array | np.ndarray) -> int:
    """The counter as a Python integer."""
    high, low = (int(word) for word in counter)
    return high << 32 | low
