"""The Llama-like decoder: RMSNorm, grouped-query attention with any position encoding, SwiGLU; layers scanned.

Shape letters: B batch, T length, S cached length, L layers, M hidden size, H query heads, K key/value heads, D head dim,
F feed-forward size, V vocabulary.

The modules hold float32 master parameters and compute in `config.compute_dtype`. Each parameter names its logical axes in its
`axes` metadata; `train/sharding.py` maps those names to mesh axes. A stacked layer's axis stands in front of them, unnamed there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from rope_lab.model.attention import KERNELS, attend
from rope_lab.rotary import AbstractPositionEncoding

REMAT_POLICIES: dict[str, Callable[..., bool] | None] = {
    "none": None,  # keep every activation for the backward pass
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # keep the weight matmuls' results, recompute the rest
    "full": jax.checkpoint_policies.nothing_saveable,  # keep each layer's input only
}


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The shape of a model, and the numerics it runs in.

    Attributes:
      vocab_size: V.
      num_layers: L.
      hidden_size: M.
      num_heads: H, query heads.
      num_kv_heads: K, key/value heads; divides H.
      head_dim: D, even.
      mlp_size: F.
      tie_embeddings: the output projection is the transposed embedding.
      query_key_norm: RMSNorm over each head's queries and keys, before the rotation.
      attention_bias: biases on the query, key and value projections.
      nope_every: every k-th layer (k, 2 k, ..., counted from 1) takes no position encoding; None: all layers take it.
      norm_epsilon: added to the mean square in RMSNorm.
      embedding_init_std: standard deviation of the embedding's initial values; other matrices start at 1 / sqrt(fan-in).
      residual_init_scale: further factor on the two projections that write to the residual stream.
      compute_dtype: dtype of activations and matmuls: "bfloat16" or "float32". Parameters are float32 always.
      attention: the kernel: a key of `rope_lab.model.attention.KERNELS`. "reference" holds scores of length squared.
      remat: which activations the backward pass recomputes: a key of `REMAT_POLICIES`.
      scan_unroll: layers laid out in each turn of the scan; small models on CPU run faster with all of them.
    """

    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    tie_embeddings: bool = False
    query_key_norm: bool = False
    attention_bias: bool = False
    nope_every: int | None = None
    norm_epsilon: float = 1e-5
    embedding_init_std: float = 0.02
    residual_init_scale: float = 1.0
    compute_dtype: str = "bfloat16"
    attention: str = "reference"
    remat: str = "none"
    scan_unroll: int = 1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "mlp_size", "scan_unroll"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name}={getattr(self, name)} must be at least 1")
        if self.head_dim % 2:
            raise ValueError(f"model.head_dim={self.head_dim} must be even: rotary embeddings turn dimensions in pairs")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"model.num_heads={self.num_heads} must be a multiple of model.num_kv_heads={self.num_kv_heads}")
        if self.nope_every is not None and not 2 <= self.nope_every <= self.num_layers:
            raise ValueError(
                f"model.nope_every={self.nope_every} must lie in 2 .. model.num_layers={self.num_layers}; "
                "for no positions in any layer choose rotary.variant=none"
            )
        if self.compute_dtype not in ("bfloat16", "float32"):
            raise ValueError(f"model.compute_dtype={self.compute_dtype!r} must be 'bfloat16' or 'float32'")
        if self.attention not in KERNELS:
            raise ValueError(f"model.attention={self.attention!r} must be one of {', '.join(KERNELS)}")
        if self.remat not in REMAT_POLICIES:
            raise ValueError(f"model.remat={self.remat!r} must be one of {', '.join(REMAT_POLICIES)}")


class KVCache(NamedTuple):
    """Keys (already encoded) and values of the tokens seen so far; shape `(L, B, K, S, D)` each."""

    keys: jax.Array
    values: jax.Array


def _matrix(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], std: float) -> nnx.Param:
    return nnx.Param(std * jax.random.normal(rngs.params(), shape, jnp.float32), axes=axes)


class RMSNorm(nnx.Module):
    """`x / sqrt(mean(x^2) + epsilon) * scale` over the last axis; in float32, cast back to the dtype of `x`."""

    def __init__(self, size: int, epsilon: float, axis: str):
        self.scale = nnx.Param(jnp.ones(size, jnp.float32), axes=(axis,))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.epsilon)
        return (x32 * inverse * self.scale[...]).astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query self-attention; heads stand before time throughout."""

    def __init__(self, config: LlamaConfig, encoding: AbstractPositionEncoding, rngs: nnx.Rngs):
        M, H, K, D = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
        self.query = _matrix(rngs, (M, H, D), ("embed", "heads", "head_dim"), M**-0.5)
        self.key = _matrix(rngs, (M, K, D), ("embed", "kv_heads", "head_dim"), M**-0.5)
        self.value = _matrix(rngs, (M, K, D), ("embed", "kv_heads", "head_dim"), M**-0.5)
        self.out = _matrix(rngs, (H, D, M), ("heads", "head_dim", "embed"), config.residual_init_scale * (H * D) ** -0.5)
        if config.attention_bias:
            self.query_bias = nnx.Param(jnp.zeros((H, D), jnp.float32), axes=("heads", "head_dim"))
            self.key_bias = nnx.Param(jnp.zeros((K, D), jnp.float32), axes=("kv_heads", "head_dim"))
            self.value_bias = nnx.Param(jnp.zeros((K, D), jnp.float32), axes=("kv_heads", "head_dim"))
        if config.query_key_norm:
            self.query_norm = RMSNorm(D, config.norm_epsilon, "head_dim")
            self.key_norm = RMSNorm(D, config.norm_epsilon, "head_dim")
        self.encoding = encoding
        self.config = config

    def project(self, x_BTM: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries `(B, H, T, D)`, keys and values `(B, K, T, D)`, before positions enter."""
        dtype = x_BTM.dtype
        q = jnp.einsum("BTM,MHD->BHTD", x_BTM, self.query[...].astype(dtype))
        k = jnp.einsum("BTM,MKD->BKTD", x_BTM, self.key[...].astype(dtype))
        v = jnp.einsum("BTM,MKD->BKTD", x_BTM, self.value[...].astype(dtype))
        if self.config.attention_bias:
            q = q + self.query_bias[...].astype(dtype)[:, None]
            k = k + self.key_bias[...].astype(dtype)[:, None]
            v = v + self.value_bias[...].astype(dtype)[:, None]
        if self.config.query_key_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        return q, k, v

    def encode(self, q: jax.Array, k: jax.Array, phases: Any, encodes: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Queries and keys with their positions; left as they are where the scalar `encodes` is False."""
        encoded_q, encoded_k = self.encoding.queries(q, phases), self.encoding.keys(k, phases)
        if encodes is None:
            return encoded_q, encoded_k
        return jnp.where(encodes, encoded_q, q), jnp.where(encodes, encoded_k, k)

    def attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, segment_ids_BT: jax.Array | None, start: jax.Array | None = None
    ) -> jax.Array:
        """What the queries find, through the output projection, shape `(B, T, M)`; arguments as in `rope_lab.model.attention.attend`."""
        out_BHTD = attend(q, k, v, segment_ids_BT, start, kernel=self.config.attention)
        return jnp.einsum("BHTD,HDM->BTM", out_BHTD, self.out[...].astype(out_BHTD.dtype))


class MLP(nnx.Module):
    """SwiGLU: `(silu(x W_gate) * (x W_up)) W_down`."""

    def __init__(self, config: LlamaConfig, rngs: nnx.Rngs):
        M, F = config.hidden_size, config.mlp_size
        self.gate = _matrix(rngs, (M, F), ("embed", "mlp"), M**-0.5)
        self.up = _matrix(rngs, (M, F), ("embed", "mlp"), M**-0.5)
        self.down = _matrix(rngs, (F, M), ("mlp", "embed"), config.residual_init_scale * F**-0.5)

    def __call__(self, x_BTM: jax.Array) -> jax.Array:
        dtype = x_BTM.dtype
        hidden = jax.nn.silu(x_BTM @ self.gate[...].astype(dtype)) * (x_BTM @ self.up[...].astype(dtype))
        return hidden @ self.down[...].astype(dtype)


class Block(nnx.Module):
    """One pre-norm layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, config: LlamaConfig, encoding: AbstractPositionEncoding, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_epsilon, "embed")
        self.attention = Attention(config, encoding, rngs)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_epsilon, "embed")
        self.mlp = MLP(config, rngs)

    def __call__(self, x_BTM: jax.Array, phases: Any, encodes: jax.Array | None, segment_ids_BT: jax.Array | None) -> jax.Array:
        q, k, v = self.attention.project(self.attention_norm(x_BTM))
        q, k = self.attention.encode(q, k, phases, encodes)
        x_BTM = x_BTM + self.attention.attend(q, k, v, segment_ids_BT)
        return x_BTM + self.mlp(self.mlp_norm(x_BTM))

    def extend(
        self, x_BTM: jax.Array, phases: Any, encodes: jax.Array | None, cache: KVCache, start: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        """The same layer with this layer's cache (no L axis) written at `start .. start + T - 1` and read up to there."""
        q, k, v = self.attention.project(self.attention_norm(x_BTM))
        q, k = self.attention.encode(q, k, phases, encodes)
        keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, k, start, axis=2)
        values = jax.lax.dynamic_update_slice_in_dim(cache.values, v, start, axis=2)
        x_BTM = x_BTM + self.attention.attend(q, keys, values, None, start)
        return x_BTM + self.mlp(self.mlp_norm(x_BTM)), KVCache(keys, values)


Constrain = Callable[[jax.Array, tuple[str, ...]], jax.Array]
ObserveLayer = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Any]


class Llama(nnx.Module):
    """Embedding, L scanned blocks, a final norm, and the output projection.

    Args:
      config: the shape.
      encoding: how positions enter attention; a value from `rope_lab.rotary`.
      rngs: seeds the parameters.
      constrain: pins an activation with the given logical axes to the mesh; the identity without a mesh.
    """

    def __init__(self, config: LlamaConfig, encoding: AbstractPositionEncoding, rngs: nnx.Rngs, constrain: Constrain = lambda x, axes: x):
        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(config, encoding, rngs)

        V, M = config.vocab_size, config.hidden_size
        self.embedding = _matrix(rngs, (V, M), ("vocab", "embed"), config.embedding_init_std)
        self.layers = stack(rngs)
        self.norm = RMSNorm(M, config.norm_epsilon, "embed")
        if not config.tie_embeddings:
            self.output = _matrix(rngs, (M, V), ("embed", "vocab"), M**-0.5)
        self.config = config
        self.encoding = encoding
        self.constrain = constrain

    def __call__(self, tokens_BT: jax.Array, positions_BT: jax.Array, segment_ids_BT: jax.Array | None = None) -> jax.Array:
        """Next-token logits of whole rows.

        Args:
          tokens_BT: int32, below `vocab_size`.
          positions_BT: int32 in `0 .. T - 1`; they may restart at each document.
          segment_ids_BT: int32 naming each token's document: attention stays inside it. None: a row is one document.

        Returns:
          float32, shape `(B, T, V)`.
        """
        return self.logits(self.hidden(tokens_BT, positions_BT, segment_ids_BT))

    def hidden(self, tokens_BT: jax.Array, positions_BT: jax.Array, segment_ids_BT: jax.Array | None = None) -> jax.Array:
        """The last layer's output, before the final norm, shape `(B, T, M)`; arguments as in `__call__`."""
        T = tokens_BT.shape[1]
        phases = self.encoding.phases(self.encoding.table(self.config.head_dim, T, T), positions_BT)
        graph, stacked = nnx.split(self.layers)

        def layer(x_BTM: jax.Array, inputs: tuple[nnx.State, jax.Array | None]) -> tuple[jax.Array, None]:
            parameters, encodes = inputs
            x_BTM = nnx.merge(graph, parameters)(x_BTM, phases, encodes, segment_ids_BT)
            return self.constrain(x_BTM, ("batch", "length", "activation")), None

        policy = REMAT_POLICIES[self.config.remat]
        if policy is not None:
            layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
        x_BTM, _ = jax.lax.scan(layer, self._embed(tokens_BT), (stacked, self._encodes_L()), unroll=self.config.scan_unroll)
        return x_BTM

    def queries_keys(self, tokens_BT: jax.Array, positions_BT: jax.Array, observe: ObserveLayer = lambda *each: each) -> Any:
        """What attention compares, in every layer.

        Args:
          tokens_BT, positions_BT: as in `__call__`; a row is one document.
          observe: called in each layer with its queries `(B, H, T, D)` and keys `(B, K, T, D)`, projected, biased and normed but without
            positions, and with the same two as attention scores them, encoded. By default it returns all four.

        Returns:
          What `observe` returns, stacked along a first axis of L; no more than that is kept of a layer.
        """
        T = tokens_BT.shape[1]
        phases = self.encoding.phases(self.encoding.table(self.config.head_dim, T, T), positions_BT)
        graph, stacked = nnx.split(self.layers)

        def layer(x_BTM: jax.Array, inputs: tuple[nnx.State, jax.Array | None]) -> tuple[jax.Array, Any]:
            parameters, encodes = inputs
            block = nnx.merge(graph, parameters)
            q, k, _ = block.attention.project(block.attention_norm(x_BTM))
            observed = observe(q, k, *block.attention.encode(q, k, phases, encodes))
            return self.constrain(block(x_BTM, phases, encodes, None), ("batch", "length", "activation")), observed

        return jax.lax.scan(layer, self._embed(tokens_BT), (stacked, self._encodes_L()))[1]

    def logits(self, x_BTM: jax.Array) -> jax.Array:
        """Next-token logits, float32 of shape `(B, T, V)`, from any places of what `hidden` returns."""
        x_BTM = self.norm(x_BTM)
        logits_BTV = jnp.einsum("BTM,MV->BTV", x_BTM, self.output_MV().astype(x_BTM.dtype), preferred_element_type=jnp.float32)
        return self.constrain(logits_BTV, ("batch", "length", "vocab"))

    def output_MV(self) -> jax.Array:
        """The output projection's weights, float32, which `logits` multiplies the normed hidden states with."""
        return self.embedding[...].T if self.config.tie_embeddings else self.output[...]

    def extend(self, tokens_BT: jax.Array, start: jax.Array, cache: KVCache, table: Any) -> tuple[jax.Array, KVCache]:
        """Logits of T more tokens of one document, after the `start` tokens that the cache already holds.

        Args:
          tokens_BT: int32; they take positions `start .. start + T - 1`, which must fit the cache.
          start: int32 scalar.
          cache: from `empty_cache` or an earlier call.
          table: `encoding.table` for the current length; it must be the one the cache was filled with.

        Returns:
          float32 logits of shape `(B, T, V)`, and the cache with these tokens in it.
        """
        phases = self.encoding.phases(table, (start + jnp.arange(tokens_BT.shape[1]))[None])
        graph, stacked = nnx.split(self.layers)

        def layer(x_BTM: jax.Array, inputs: tuple[nnx.State, jax.Array | None, KVCache]) -> tuple[jax.Array, KVCache]:
            parameters, encodes, layer_cache = inputs
            return nnx.merge(graph, parameters).extend(x_BTM, phases, encodes, layer_cache, start)

        x_BTM, cache = jax.lax.scan(layer, self._embed(tokens_BT), (stacked, self._encodes_L(), cache))
        return self.logits(x_BTM), cache

    def _encodes_L(self) -> jax.Array | None:
        """Which layers take positions; None where all do, so that the common model carries nothing for it."""
        if self.config.nope_every is None:
            return None
        return jnp.arange(1, self.config.num_layers + 1) % self.config.nope_every != 0

    def _embed(self, tokens_BT: jax.Array) -> jax.Array:
        x_BTM = self.embedding[...].astype(self.config.compute_dtype)[tokens_BT]
        return self.constrain(x_BTM, ("batch", "length", "activation"))


def empty_cache(config: LlamaConfig, batch: int, capacity: int) -> KVCache:
    """Room for `capacity` tokens of `batch` rows, in the compute dtype."""
    shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.head_dim)
    return KVCache(jnp.zeros(shape, config.compute_dtype), jnp.zeros(shape, config.compute_dtype))
