"""The theory's similarity gap, measured on a model's own queries and keys, and where its attention goes.

Shape letters: N rows, B rows a forward pass, W tokens in a row, T = W - 1, Q questions in a row, R tokens in a record, L layers,
H query heads, K key/value heads, G queries a group (H / K), D head dim, P pairs (D / 2), X distances, E bins of distance.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from rope_lab.data.retrieval import TEXT, RetrievalConfig, Surface, mixed_distances, plant, row_uniforms
from rope_lab.model.llama import Llama
from rope_lab.probes.attention_mass import attention_mass, distance_edges
from rope_lab.rotary import AbstractPositionEncoding, NoPE, Scaled, Spectrum, Variant
from rope_lab.theory.decay import context_bound, similarity_gap

_EVERY_DISTANCE = 4096  # up to here each integer is evaluated, beyond it as many again, evenly spread on a log axis


@dataclass(frozen=True, kw_only=True)
class SimilarityGapConfig:
    """Attributes:
    rows: contexts with records, and as many of text alone if the held-out documents have them.
    queries: places in the last quarter of each text whose attention is looked at.
    seed: of the records.
    """

    rows: int = 32
    queries: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "queries"):
            if getattr(self, name) < 1:
                raise ValueError(f"probes.similarity_gap.{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"probes.similarity_gap.seed={self.seed} must lie in 0 .. 2**32 - 1")


class Rows(NamedTuple):
    """What is compared in each row.

    Attributes:
      tokens: int32 `(N, T)`.
      query_end: int32 `(N, Q)`: the query's last token; -1 where there is no question.
      record_end: int32 `(N, Q)`: its record's last token.
      weights: float32 `(N, Q)`: 0 for a question that no other record precedes.
      is_text: bool `(N, T)`: neither record, query nor answer, nor the row's first token.
    """

    tokens: np.ndarray | jax.Array
    query_end: np.ndarray | jax.Array
    record_end: np.ndarray | jax.Array
    weights: np.ndarray | jax.Array
    is_text: np.ndarray | jax.Array


class Products(NamedTuple):
    """Weighted sums over questions, float32; no scale, no attention factor. Stacked over layers, L stands in front.

    Attributes:
      dot, cross: `(H, R, P)`: for `score_by_distance`, of the query and the right record's key less the mean of the others' at the same
        offset.
      right: `(H, R)`: q . k of the right record at no distance.
      text, first: `(H,)`: the same with the mean key of the plain text before the query, and with the row's first token.
    """

    dot: jax.Array
    cross: jax.Array
    right: jax.Array
    text: jax.Array
    first: jax.Array


def record_products(q: jax.Array, k: jax.Array, rows: Rows, record_length: int) -> Products:
    """Products of the queries with the keys they should find, and with those they should not.

    Args:
      q: shape `(B, H, T, D)`, without positions.
      k: shape `(B, K, T, D)`, without positions; query head h reads key head `h // (H / K)`.
      rows: B of them.
      record_length: R.
    """
    B, H, T, D = q.shape
    K, Q = k.shape[1], rows.query_end.shape[1]
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    end_BQ = jnp.maximum(rows.query_end, 0)
    q = jnp.take_along_axis(q, end_BQ[:, None, :, None], axis=2).reshape(B, K, H // K, Q, D) * rows.weights[:, None, None, :, None]

    places_BQR = jnp.maximum(rows.record_end[..., None] + np.arange(1 - record_length, 1), 0)
    records = jnp.take_along_axis(k, places_BQR.reshape(B, 1, -1, 1), axis=2).reshape(B, K, Q, record_length, D)
    before_BQQ = (rows.query_end[:, None] >= 0) & (rows.record_end[:, None] < end_BQ[..., None]) & ~np.eye(Q, dtype=bool)
    delta = records - jnp.einsum("BQO,BKORD->BKQRD", _mean_weights(before_BQQ), records, precision="highest")
    text = jnp.einsum("BQT,BKTD->BKQD", _mean_weights(rows.is_text[:, None] & (np.arange(T) < end_BQ[..., None])), k, precision="highest")

    def summed(a: jax.Array, b: jax.Array, places: str, kept: str) -> jax.Array:
        product = jnp.einsum(f"BKGQD,BK{places}D->KG{kept}", a, b, precision="highest")
        return product.reshape(H, *product.shape[2:])

    q1, q2 = jnp.split(q, 2, axis=-1)
    d1, d2 = jnp.split(delta, 2, axis=-1)
    return Products(
        dot=summed(q1, d1, "QR", "RD") + summed(q2, d2, "QR", "RD"),
        cross=summed(q1, d2, "QR", "RD") - summed(q2, d1, "QR", "RD"),
        right=summed(q, records, "QR", "R"),
        text=summed(q, text, "Q", ""),
        first=summed(q, k[:, :, 0], "", ""),
    )


def _mean_weights(chosen: np.ndarray | jax.Array) -> jax.Array:
    """float32 weights that average what is chosen along the last axis; 0 where nothing is."""
    chosen = jnp.asarray(chosen)
    return chosen.astype(jnp.float32) / jnp.maximum(chosen.sum(axis=-1, keepdims=True), 1).astype(jnp.float32)


def score_by_distance(dot: np.ndarray, cross: np.ndarray, theta: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """The score of encoded vectors from their products without positions.

        (R_i q) . (R_j k) = sum_p dot_p cos(m theta_p) + cross_p sin(m theta_p),   m = i - j
        dot_p = q_p k_p + q_(p + D/2) k_(p + D/2),   cross_p = q_p k_(p + D/2) - q_(p + D/2) k_p

    Both are linear in the products, so those may be means over many queries and keys.

    Args:
      dot, cross: shape `(..., P)`.
      theta: float64 `(P,)`, radians per token, of the counter-clockwise rotation in `rope_lab.rotary.rotate`.
      distances: m, shape `(X,)`, tokens from the key on to the query.

    Returns:
      float64, shape `(..., X)`.
    """
    phases = np.asarray(distances, np.float64)[:, None] * theta
    return np.asarray(dot, np.float64) @ np.cos(phases).T + np.asarray(cross, np.float64) @ np.sin(phases).T


def measured_distances(length: int) -> np.ndarray:
    """Distances 0 .. length: all of them to 4096 tokens, then 4096 more that grow by a steady factor."""
    near = np.arange(min(length, _EVERY_DISTANCE) + 1)
    far = np.geomspace(_EVERY_DISTANCE, length, _EVERY_DISTANCE + 1) if length > _EVERY_DISTANCE else near[-1:]
    return np.unique(np.concatenate([near, np.round(far)]).astype(np.int64))


def tokens_above_zero(distances: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """The longest context over which a measured gap is never negative, as L_theta is of B_m.

    Args:
      distances: increasing from 0, tokens.
      gap: shape `(..., X)`.

    Returns:
      int64 `(...)`, tokens: one less than the first of the distances with a negative gap, 0 if it is negative at once, the last if nowhere.
    """
    negative = gap < 0
    first = distances[negative.argmax(axis=-1)]
    return np.where(negative.any(axis=-1), np.maximum(first - 1, 0), distances[-1])


def rotation_of(encoding: AbstractPositionEncoding, head_dim: int, length: int) -> Spectrum:
    """The frequencies by which scores turn with distance.

    A scaling by the query's position, which multiplies all its scores alike, is left out; without positions nothing turns.

    Raises:
      ValueError: if distance also fades scores, so that B_m does not describe them.
    """
    inner = encoding.encoding if isinstance(encoding, Scaled) else encoding
    if isinstance(inner, Variant):
        return inner.spectrum(head_dim, length)
    if isinstance(inner, NoPE):
        return Spectrum(np.zeros(head_dim // 2))
    raise ValueError(f"probes.names has similarity_gap, but B_m is not defined for {inner!r}, which is more than frequencies; leave it out")


class SimilarityGapProbe:
    """How much more a query prefers the key it should find than another, at every distance that might lie between them.

        G(m) = E[q R_m k*] - E[q R_m k],   in nats of attention logit: scaled as attention scales scores, attention factor included

    q is the query at the last token of a question, k* the key of its record and k that of the other records before the question, all as
    the layer projects them, before positions enter; R_m then turns them as m tokens between them would. In the theory's setting, k* like
    q and k like nothing, G is proportional to B_m. In a layer above the first, queries and keys have been through attention and may know
    their place, which G(m) cannot see. Of a record's tokens each head is taken at the one with the largest G(0), its *content gap*.

    Reported of the head with the largest content gap: that gap, and the context over which its G is never negative, beside L_theta; and of
    all heads with at least half as large a gap (those that retrieve) the share that stays positive beyond L_theta. A head can, as
    the theory's setting does not hold it: where the fast pairs carry little, or the slow ones turn k* ahead of q (a positive `cross`).
    Probed at a context no longer than L_theta none can be seen to.

    Args:
      graph: the model's structure.
      sharding: of a batch's rows; its mesh is the one the parameters live on.
      windows: int32 `(N, W)` of held-out text, used in turn for the rows with records if there are fewer.
      surface: how records are written.
      task: alphabet sizes and questions in a row.
      config: how many rows and queries.

    Raises:
      ValueError: if the position encoding is not a rotation by frequencies, or a question does not fit the context.

    Source: Men et al., "Base of RoPE Bounds Context Length", arXiv:2405.14591, Theorem 1 for B_m and L_theta.
    """

    def __init__(
        self,
        graph: nnx.GraphDef,
        sharding: NamedSharding,
        windows: np.ndarray,
        surface: Surface,
        task: RetrievalConfig,
        config: SimilarityGapConfig,
    ):
        model: Llama = nnx.merge(graph, [None] * graph.num_leaves)  # for its shape and encoding; it has no parameters yet
        T, D, L = windows.shape[1] - 1, model.config.head_dim, model.config.num_layers
        spectrum = rotation_of(model.encoding, D, T)
        every = model.config.nope_every
        still = Spectrum(np.zeros_like(spectrum.theta))
        self._spectra = [still if every and layer % every == 0 else spectrum for layer in range(1, L + 1)]
        self._scale = D**-0.5
        self._distances = measured_distances(T)
        self._theta = spectrum.theta
        self._bound = context_bound(spectrum.theta)
        self._bound_gap = similarity_gap(spectrum.theta, self._distances)
        self._with_records = records_in(windows, surface, task, config)
        self._text = _text_alone(windows[: config.rows], self._with_records.query_end.shape[1])
        self._edges = distance_edges(T)
        self._sharding = sharding
        record_length, edges = surface.records.shape[-1], self._edges
        at_S = np.unique(np.linspace(T - 1 - T // 4, T - 1, config.queries).astype(np.int64))

        def forward(params: dict, rows: Rows) -> tuple[Products, jax.Array]:
            positions = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), rows.tokens.shape)

            def observe(q: jax.Array, k: jax.Array, encoded_q: jax.Array, encoded_k: jax.Array) -> tuple[Products, jax.Array]:
                return record_products(q, k, rows, record_length), attention_mass(encoded_q, encoded_k, at_S, edges)

            products, mass_LBHE = nnx.merge(graph, params).queries_keys(rows.tokens, positions, observe)
            return products, mass_LBHE.swapaxes(0, 1)

        self._forward = jax.jit(forward, out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))

    def __call__(self, params: dict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        parts, _ = self._run(params, self._with_records)
        products = jax.tree.map(lambda *each: np.sum(each, axis=0, dtype=np.float64) / self._with_records.weights.sum(), *parts)
        _, mass_NLHE = self._run(params, self._text)

        factor_L = self._scale * np.array([spectrum.attention_factor**2 for spectrum in self._spectra])
        offset_LH = products.dot.sum(axis=-1).argmax(axis=-1)
        dot_LHP, cross_LHP, right_LH = (
            np.take_along_axis(each, offset_LH.reshape(*offset_LH.shape, *[1] * (each.ndim - 2)), axis=2)[:, :, 0]
            * factor_L.reshape(-1, *[1] * (each.ndim - 2))
            for each in (products.dot, products.cross, products.right)
        )
        thetas = [spectrum.theta for spectrum in self._spectra]
        gap_LHX = np.stack(
            [score_by_distance(dot, cross, theta, self._distances) for dot, cross, theta in zip(dot_LHP, cross_LHP, thetas, strict=True)]
        )
        content_LH = dot_LHP.sum(axis=-1)
        limit_LH = tokens_above_zero(self._distances, gap_LHX)

        best = content_LH.max()
        retrieving = content_LH >= best / 2
        scalars = {
            "l_theta_tokens": float(self._bound),
            "retrieving_head_limit_tokens": float(limit_LH.ravel()[content_LH.argmax()]),
            "retrieving_head_content_gap_nats": float(best),
            "heads_beyond_bound_share": float((limit_LH[retrieving] > self._bound).mean()) if best > 0 else 0.0,
        }
        arrays = {
            "distances_tokens": self._distances,
            "gap_nats": gap_LHX.astype(np.float32),
            "b_m": self._bound_gap,
            "theta_radians_per_token": self._theta,
            "dot_nats": dot_LHP,
            "cross_nats": cross_LHP,
            "limit_tokens": limit_LH,
            "content_gap_nats": content_LH,
            "record_offset_tokens": offset_LH,
            "record_content_nats": right_LH,
            "text_content_nats": factor_L[:, None] * products.text,
            "first_token_content_nats": factor_L[:, None] * products.first,
            "mass": mass_NLHE.mean(axis=0),
            "mass_edges_tokens": self._edges,
        }
        return scalars, arrays

    def _run(self, params: dict, rows: Rows) -> tuple[list[Products], np.ndarray]:
        """Products summed over each pass's rows, and each row's attention mass; passes are as narrow as the mesh allows."""
        N = len(rows.tokens)
        B = self._sharding.mesh.shape["data"] * self._sharding.mesh.shape["fsdp"]
        unasked = rows._replace(weights=np.zeros_like(rows.weights))
        padded = [np.concatenate([array, np.repeat(none[:1], -N % B, axis=0)]) for array, none in zip(rows, unasked, strict=True)]
        parts, mass = [], []
        for i in range(0, len(padded[0]), B):
            batch = Rows(*(jax.device_put(array[i : i + B], self._sharding) for array in padded))
            products, mass_BLHE = jax.device_get(self._forward(params, batch))
            parts.append(products)
            mass.append(mass_BLHE)
        return parts, np.concatenate(mass)[:N]


def records_in(windows: np.ndarray, surface: Surface, task: RetrievalConfig, config: SimilarityGapConfig) -> Rows:
    """Rows of text with records and questions in them, at distances near and far.

    Raises:
      ValueError: if the context is too short for a record and its question, or no question has another record before it.
    """
    T, N, Q = windows.shape[1] - 1, config.rows, task.max_records
    shortest, longest = surface.shortest_distance, surface.longest_distance(T)
    if longest < shortest:
        raise ValueError(f"a context of {T} tokens is too short for a record and its question; set probes.length higher")
    uniforms = row_uniforms(config.seed, np.arange(N), 4 * Q + task.num_keys)
    distances = mixed_distances(uniforms[:, : 2 * Q].reshape(N, Q, 2), shortest, longest)
    planted = plant(windows[np.arange(N) % len(windows)], distances, uniforms[:, 2 * Q :], surface)
    record_end = planted.query_end - planted.distances
    asked = planted.query_end >= 0
    others = (asked[:, None] & (record_end[:, None] < planted.query_end[..., None])).sum(axis=-1) - 1
    weights = (asked & (others > 0)).astype(np.float32)
    if not weights.any():
        raise ValueError(f"no question has a second record before it; raise data.retrieval.max_records={Q} or probes.length")
    is_text = planted.kinds[:, :-1] == TEXT
    is_text[:, 0] = False
    return Rows(planted.tokens[:, :-1], planted.query_end, record_end, weights, is_text)


def _text_alone(windows: np.ndarray, questions: int) -> Rows:
    N, T = windows.shape[0], windows.shape[1] - 1
    nowhere = np.full((N, questions), -1, np.int32)
    return Rows(windows[:, :-1], nowhere, nowhere, np.zeros((N, questions), np.float32), np.ones((N, T), bool))
