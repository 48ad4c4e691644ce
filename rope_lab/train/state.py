"""What training carries from step to step: one pytree."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from rope_lab.model.llama import Constrain, Llama, LlamaConfig
from rope_lab.rotary import AbstractPositionEncoding


class TrainState(NamedTuple):
    """Attributes:
    params: nested dict of float32 arrays, layers stacked along the first axis.
    opt_state: optax's.
    step: int32 scalar, updates done.
    tokens_seen: uint32 pair (high, low word): a 64-bit count of tokens trained on; see `tokens_seen`.
    """

    params: dict
    opt_state: Any
    step: jax.Array
    tokens_seen: jax.Array


def split_model(config: LlamaConfig, encoding: AbstractPositionEncoding, constrain: Constrain) -> tuple[nnx.GraphDef, dict]:
    """The model's structure, and each parameter's (shape, logical axes) — the one place where NNX is taken apart.

    Returns:
      The graph, and a tree like the parameters' whose leaves are `nnx.Param` of `jax.ShapeDtypeStruct` with `axes` metadata.
    """
    graph, state = nnx.split(nnx.eval_shape(lambda: Llama(config, encoding, nnx.Rngs(0), constrain)))
    return graph, state


def init_params(config: LlamaConfig, encoding: AbstractPositionEncoding, seed: jax.Array) -> dict:
    """Fresh parameters, a function of the shape and the seed alone: not of the encoding, nor of the mesh."""
    return nnx.to_pure_dict(nnx.state(Llama(config, encoding, nnx.Rngs(jax.random.key(seed)))))


def init_state(params: dict, optimizer: optax.GradientTransformation) -> TrainState:
    """Step 0 with these parameters."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), jnp.zeros(2, jnp.uint32))


def add_tokens(counter: jax.Array, count: int) -> jax.Array:
    """The 64-bit counter after `count` (below 2**32) more tokens."""
    low = counter[1] + jnp.uint32(count)
    return jnp.stack([counter[0] + (low < counter[1]).astype(jnp.uint32), low])


def tokens_seen(counter: jax.Array) -> int:
    """The counter as a Python integer."""
    high, low = (int(word) for word in counter)
    return high << 32 | low
