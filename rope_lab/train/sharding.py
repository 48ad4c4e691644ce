"""Where arrays live: one mesh, one table of logical axes, and what follows from them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor")

LOGICAL_RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "length": None,  # context parallelism will split it
    "activation": None,
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "layers": None,
}
"""Logical axis of a parameter or activation -> mesh axes that split it."""

LARGE = 2**20
"""Numbers in an array above which leaving it whole on every device is an error, on a mesh that could split it."""


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many ways to split: devices = data x fsdp x tensor.

    Attributes:
      data: copies of the model, each with its own rows; -1: all devices that the others leave.
      fsdp: ways to split parameters, optimizer state and rows.
      tensor: ways to split heads, feed-forward and vocabulary.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name in MESH_AXES:
            size = getattr(self, name)
            if size < 1 and not (name == "data" and size == -1):
                raise ValueError(f"mesh.{name}={size} must be at least 1 (mesh.data may be -1: what is left)")


def make_mesh(config: MeshConfig, devices: list | None = None) -> Mesh:
    """Lays the devices (all, by default) out as `data x fsdp x tensor`.

    Raises:
      ValueError: if the product is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    inner = config.fsdp * config.tensor
    data = len(devices) // inner if config.data == -1 else config.data
    if data * inner != len(devices):
        raise ValueError(
            f"mesh.data={config.data} x mesh.fsdp={config.fsdp} x mesh.tensor={config.tensor} must equal the {len(devices)} devices here"
        )
    return jax.make_mesh((data, config.fsdp, config.tensor), MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def partition_spec(axes: tuple[str, ...]) -> PartitionSpec:
    """The mesh axes of an array with these logical axes."""
    return PartitionSpec(*(LOGICAL_RULES[axis] for axis in axes))


def constrain_to(mesh: Mesh) -> Callable[[jax.Array, tuple[str, ...]], jax.Array]:
    """The function that pins a model's activations to this mesh."""
    if mesh.size == 1:
        return lambda x, axes: x
    return lambda x, axes: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition_spec(axes)))


def param_shardings(mesh: Mesh, abstract_params: nnx.State) -> dict:
    """A sharding for each parameter, from its `axes` metadata.

    Args:
      mesh: the devices.
      abstract_params: `nnx.Param` leaves of `jax.ShapeDtypeStruct`, from `split_model`.

    Raises:
      ValueError: if a dimension does not divide by its mesh axes, or a large array would stay whole though the mesh has parts for it.
    """

    def sharding(path: tuple, leaf: nnx.Param) -> NamedSharding:
        axes, shape = leaf.get_metadata()["axes"], leaf.get_raw_value().shape
        axes = ("layers",) * (len(shape) - len(axes)) + axes
        spec = partition_spec(axes)
        ways = [math.prod(mesh.shape[name] for name in np.atleast_1d(part)) if part else 1 for part in spec]
        name = ".".join(str(key.key) for key in path)
        for axis, size, way in zip(axes, shape, ways, strict=True):
            if size % way:
                raise ValueError(f"parameter {name}: axis {axis!r} of size {size} cannot be split {way} ways; change the model or the mesh")
        if math.prod(shape) > LARGE and math.prod(ways) == 1 and mesh.shape["fsdp"] * mesh.shape["tensor"] > 1:
            raise ValueError(f"parameter {name} of shape {shape} would stay whole on every device; give it axes that LOGICAL_RULES splits")
        return NamedSharding(mesh, spec)

    return nnx.to_pure_dict(
        jax.tree_util.tree_map_with_path(sharding, abstract_params, is_leaf=lambda node: isinstance(node, nnx.Variable))
    )


def state_shardings(mesh: Mesh, optimizer: optax.GradientTransformation, abstract_state, params: dict):
    """Shardings of a whole `TrainState`: the optimizer's moments lie as their parameters do, counters everywhere."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    opt_state = optax.tree.map_params(
        optimizer, lambda _, sharding: sharding, abstract_state.opt_state, params, transform_non_params=lambda _: everywhere
    )
    return abstract_state._replace(params=params, opt_state=opt_state, step=everywhere, tokens_seen=everywhere)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows split over `data` and `fsdp`."""
    return NamedSharding(mesh, partition_spec(("batch", "length")))
