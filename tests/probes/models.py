"""A small real model for probes to score, on a mesh."""

from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from rope_lab.model.llama import Llama, LlamaConfig
from rope_lab.probes.score import Scorer
from rope_lab.rotary import RoPE
from rope_lab.train.sharding import MeshConfig, batch_sharding, constrain_to, make_mesh, param_shardings
from rope_lab.train.state import init_params, split_model


def one_device() -> jax.sharding.Mesh:
    return make_mesh(MeshConfig(data=1), jax.devices()[:1])


def config(**fields: Any) -> LlamaConfig:
    """Embeddings so large that what it says next depends on what it read."""
    shape = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "mlp_size": 16}
    return LlamaConfig(**(shape | {"embedding_init_std": 1.0, "compute_dtype": "float32"} | fields))


def scored(config: LlamaConfig, mesh: jax.sharding.Mesh, **fields: Any) -> tuple[nnx.GraphDef, dict, Scorer]:
    """The model's structure, its parameters where they belong, and a scorer of it."""
    make = partial(Llama, config, RoPE(base=1e4))
    graph, abstract = split_model(make, constrain_to(mesh))
    params = jax.device_put(init_params(make, np.uint32(0)), param_shardings(mesh, abstract))
    return graph, params, Scorer(graph, batch_sharding(mesh), **fields)
