"""A model small enough for every variant, and rows of packed documents to feed it."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rope_lab.model.llama import Llama, LlamaConfig
from rope_lab.rotary import AbstractPositionEncoding, RoPE
from tests.rotary.examples import HEAD_DIM

VOCAB = 61


def config(**changes: Any) -> LlamaConfig:
    shape = {"vocab_size": VOCAB, "num_layers": 2, "hidden_size": 48, "num_heads": 4, "num_kv_heads": 2, "mlp_size": 40}
    rest = {"head_dim": HEAD_DIM, "compute_dtype": "float32", "embedding_init_std": 1.0}
    return LlamaConfig(**(shape | rest | changes))


@cache
def _params(shape: LlamaConfig, seed: int) -> dict:
    return nnx.to_pure_dict(nnx.state(Llama(shape, RoPE(), nnx.Rngs(seed))))


def model(encoding: AbstractPositionEncoding, seed: int = 0, **changes: Any) -> tuple[nnx.GraphDef, dict]:
    """A model's structure and its parameters, which do not depend on the encoding (a test of its own) and take seconds to make."""
    shape = config(**changes)
    graph, _ = nnx.split(nnx.eval_shape(lambda: Llama(shape, encoding, nnx.Rngs(seed))))
    return graph, _params(replace(shape, compute_dtype="float32", attention="reference", remat="none", scan_unroll=1), seed)


def tokens(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, (rows, length)).astype(np.int32)


def positions(rows: int, length: int) -> np.ndarray:
    return np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length)).copy()


@partial(jax.jit, static_argnums=0)
def forward(
    graph: nnx.GraphDef, params: dict, tokens_BT: jax.Array, positions_BT: jax.Array, segment_ids_BT: jax.Array | None
) -> jax.Array:
    return nnx.merge(graph, params)(tokens_BT, positions_BT, segment_ids_BT)


def logits(graph: nnx.GraphDef, params: dict, tokens_BT, positions_BT=None, segment_ids_BT=None) -> jax.Array:
    if positions_BT is None:
        positions_BT = positions(*tokens_BT.shape)
    segment_ids_BT = None if segment_ids_BT is None else jnp.asarray(segment_ids_BT)
    return forward(graph, params, jnp.asarray(tokens_BT), jnp.asarray(positions_BT), segment_ids_BT)
