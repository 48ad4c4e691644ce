"""The measured similarity gap against explicit loops over encoded vectors, and against B_m in the setting of the theory."""

import re
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from matplotlib.figure import Figure

from rope_lab.data.pipeline import DataConfig
from rope_lab.data.retrieval import RetrievalConfig, make_surface
from rope_lab.data.tokenizer import BytesTokenizer
from rope_lab.model.llama import Llama, LlamaConfig
from rope_lab.plotting import gap_of_heads
from rope_lab.probes.attention_mass import attention_mass, distance_edges
from rope_lab.probes.similarity_gap import (
    Rows,
    SimilarityGapConfig,
    SimilarityGapProbe,
    measured_distances,
    record_products,
    records_in,
    rotation_of,
    score_by_distance,
    tokens_above_zero,
)
from rope_lab.probes.suite import Bench, ProbeConfig, make_probes
from rope_lab.rotary import AbstractPositionEncoding, NoPE, RoPE, Scaled, XPos, YaRN, inverse_powers, rotate
from rope_lab.theory.decay import context_bound, similarity_gap
from rope_lab.train.sharding import MeshConfig, batch_sharding, constrain_to, make_mesh, param_shardings
from rope_lab.train.state import init_params, split_model
from tests.data.reader import BYTES, read_row

T, R = 64, 2
TASK = RetrievalConfig(surface="pair", num_keys=8, num_values=4, max_records=5)
SURFACE = make_surface(TASK, BytesTokenizer())
WINDOWS = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, (3, T + 1)).astype(np.int32)
YARN = YaRN(factor=4.0, trained_length=32, base=100.0)
SHAPE = LlamaConfig(
    vocab_size=272,
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    mlp_size=24,
    nope_every=2,
    query_key_norm=True,
    attention_bias=True,
    embedding_init_std=1.0,
    compute_dtype="float32",
)
products_of = jax.jit(record_products, static_argnums=3)


def encoded(x: np.ndarray, position: int, theta: np.ndarray) -> np.ndarray:
    arguments = (jnp.asarray(each, jnp.float32) for each in (x, np.cos(position * theta), np.sin(position * theta)))
    return np.asarray(rotate(*arguments), np.float64)


def split_products(q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = q.shape[-1] // 2
    dot = [q[p] * k[p] + q[p + half] * k[p + half] for p in range(half)]
    cross = [q[p] * k[p + half] - q[p + half] * k[p] for p in range(half)]
    return np.array(dot), np.array(cross)


@pytest.mark.parametrize(("i", "j"), [(0, 0), (1, 0), (7, 3), (200, 199), (300, 5), (4096, 1)])
def test_scores_follow_from_products_as_from_encoded_vectors(i: int, j: int):
    theta = inverse_powers(100.0, 32)
    q, k = np.random.default_rng(0).normal(size=(2, 32))
    expected = encoded(q, i, theta) @ encoded(k, j, theta)
    got = score_by_distance(*split_products(q, k), theta, np.array([i - j]))
    assert got[0] == pytest.approx(expected, abs=2e-5)


def test_products_are_means_over_questions_as_loops_form_them():
    """Four query heads on two key heads; a record after its reader, an empty slot and a question alone are no part of any mean."""
    B, H, K, D, Q = 2, 4, 2, 6, 4
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(B, H, 20, D)), rng.normal(size=(B, K, 20, D))
    query_end = np.array([[8, 19, -1, 15], [3, 12, 19, -1]], np.int32)
    record_end = np.array([[2, 17, -1, 6], [1, 9, 5, -1]], np.int32)
    weights = np.array([[1, 1, 0, 1], [0, 1, 1, 0]], np.float32)
    is_text = np.zeros((B, 20), bool)
    is_text[:, [3, 4, 10]] = True
    rows = Rows(np.zeros((B, 20), np.int32), query_end, record_end, weights, is_text)
    got = products_of(jnp.asarray(q, jnp.float32), jnp.asarray(k, jnp.float32), rows, R)
    for head in range(H):
        kv = head // (H // K)
        right, text, first = np.zeros(R), 0.0, 0.0
        dot, cross = np.zeros((R, D // 2)), np.zeros((R, D // 2))
        for b in range(B):
            for n in np.flatnonzero(weights[b]):
                end, query = query_end[b, n], q[b, head, query_end[b, n]]
                others = [o for o in range(Q) if o != n and query_end[b, o] >= 0 and record_end[b, o] < end]
                for r in range(R):
                    place = record_end[b, n] - R + 1 + r
                    delta = k[b, kv, place] - np.mean([k[b, kv, record_end[b, o] - R + 1 + r] for o in others], axis=0)
                    parts = split_products(query, delta)
                    dot[r] += parts[0]
                    cross[r] += parts[1]
                    right[r] += query @ k[b, kv, place]
                text += np.mean([query @ k[b, kv, t] for t in np.flatnonzero(is_text[b]) if t < end])
                first += query @ k[b, kv, 0]
        np.testing.assert_allclose(got.dot[head], dot, atol=1e-4)
        np.testing.assert_allclose(got.cross[head], cross, atol=1e-4)
        np.testing.assert_allclose(got.right[head], right, atol=1e-4)
        assert float(got.text[head]) == pytest.approx(text, abs=1e-4)
        assert float(got.first[head]) == pytest.approx(first, abs=1e-4)


def test_where_the_key_is_the_query_with_noise_the_gap_is_the_theorys():
    """Theorem 1: k* = q + noise, k independent, components of variance sigma^2: the gap is 2 sigma^2 B_m, and ends where L_theta does."""
    B, Q, D, length, sigma = 200, 12, 32, 60, 1.5
    rng = np.random.default_rng(0)
    q, k = sigma * rng.normal(size=(2, B, 1, length, D))
    record_end = np.tile(np.arange(0, 2 * Q, 2), (B, 1)).astype(np.int32)
    query_end = record_end + 30
    k[:, 0, record_end[0]] = q[:, 0, query_end[0]] + rng.normal(size=(B, Q, D))
    rows = Rows(np.zeros((B, length), np.int32), query_end, record_end, np.ones((B, Q), np.float32), np.ones((B, length), bool))
    products = products_of(jnp.asarray(q, jnp.float32), jnp.asarray(k, jnp.float32), rows, 1)
    theta, distances = inverse_powers(100.0, D), measured_distances(256)
    gap = score_by_distance(np.asarray(products.dot) / (B * Q), np.asarray(products.cross) / (B * Q), theta, distances)[0, 0]
    expected = 2 * sigma**2 * similarity_gap(theta, distances)
    np.testing.assert_allclose(gap, expected, atol=0.03 * expected[0])
    assert context_bound(theta) == 27
    assert abs(tokens_above_zero(distances, gap) - 27) <= 1


@pytest.mark.parametrize("base", [25.0, 1e2, 1e3, 1e4])
def test_the_limit_of_the_bound_itself_is_l_theta(base: float):
    theta, distances = inverse_powers(base, 32), measured_distances(512)
    assert tokens_above_zero(distances, similarity_gap(theta, distances)) == min(context_bound(theta), 512)


def test_limits_at_the_ends():
    gap = np.array([[-1.0, 1, 1, 1], [1, -1, 1, 1], [1, 1, 1, -1], [1, 0, 0, 0]])
    assert tokens_above_zero(np.array([0, 1, 2, 5]), gap).tolist() == [0, 0, 4, 5]


def test_every_distance_near_and_spread_ones_far():
    assert measured_distances(300).tolist() == list(range(301))
    far = measured_distances(2**20)
    assert far[:4097].tolist() == list(range(4097))
    assert far[-1] == 2**20
    assert (np.diff(far) > 0).all()
    assert len(far) > 7000
    assert (far[4097:] / far[4096:-1]).max() < 1.002


def test_mass_is_the_softmax_of_the_scores_by_distance():
    B, H, K, D, length = 2, 4, 2, 6, 21
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(B, H, length, D)), rng.normal(size=(B, K, length, D))
    edges, at = distance_edges(length), np.array([13, 20])
    assert edges.tolist() == [0, 1, 2, 3, 4, 6, 8, 12, 16, 21]
    got = np.asarray(jax.jit(lambda q, k: attention_mass(q, k, at, edges))(q.astype(np.float32), k.astype(np.float32)))
    expected = np.zeros(got.shape)
    for b in range(B):
        for head in range(H):
            for i in at:
                scores = [np.exp(q[b, head, i] @ k[b, head // 2, j] / np.sqrt(D)) for j in range(i + 1)]
                for j in range(i + 1):
                    bin_ = next(e for e in range(len(edges) - 1) if edges[e] <= i - j < edges[e + 1])
                    expected[b, head, bin_] += scores[j] / sum(scores) / len(at)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(got.sum(axis=-1), 1, atol=1e-5)


@cache
def host_params() -> dict:
    params = jax.device_get(jax.jit(partial(init_params, partial(Llama, SHAPE, YARN)))(np.uint32(0)))
    for name in ("query_bias", "key_bias"):
        bias = params["layers"]["attention"][name]
        params["layers"]["attention"][name] = np.random.default_rng(1).normal(size=bias.shape).astype(np.float32)
    return params


def on(mesh: jax.sharding.Mesh) -> tuple[nnx.GraphDef, dict, jax.sharding.NamedSharding]:
    graph, abstract = split_model(partial(Llama, SHAPE, YARN), constrain_to(mesh))
    return graph, jax.device_put(host_params(), param_shardings(mesh, abstract)), batch_sharding(mesh)


def probe(graph: nnx.GraphDef, sharding: jax.sharding.NamedSharding, **fields) -> SimilarityGapProbe:
    return SimilarityGapProbe(graph, sharding, WINDOWS, SURFACE, TASK, SimilarityGapConfig(**fields))


@pytest.fixture(scope="module")
def one_device() -> jax.sharding.Mesh:
    return make_mesh(MeshConfig(data=1), jax.devices()[:1])


class Shown(NamedTuple):
    """What one model says of three rows with records; arrays of two layers, before positions enter and after."""

    rows: Rows
    params: dict
    q: np.ndarray
    k: np.ndarray
    encoded_q: np.ndarray
    encoded_k: np.ndarray
    hidden: np.ndarray
    scalars: dict[str, float]
    arrays: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def shown(one_device: jax.sharding.Mesh) -> Shown:
    graph, params, sharding = on(one_device)
    rows = records_in(WINDOWS, SURFACE, TASK, SimilarityGapConfig(rows=3))

    def look(params: dict, tokens: jax.Array, positions: jax.Array) -> tuple:
        model = nnx.merge(graph, params)
        return *model.queries_keys(tokens, positions), model.hidden(tokens, positions)

    q, k, encoded_q, encoded_k, hidden = jax.device_get(
        jax.jit(look)(params, rows.tokens, np.broadcast_to(np.arange(T, dtype=np.int32), (3, T)))
    )
    found = probe(graph, sharding, rows=3, queries=4)(params)
    return Shown(rows, host_params(), q, k, encoded_q, encoded_k, hidden, *found)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def test_what_a_layer_compares_makes_the_models_own_output(shown: Shown):
    """Softmax, values and feed-forward in NumPy, on the encoded queries and keys that the model shows: the residual stream is its own."""
    theta, factor = YARN.spectrum(16, T)
    assert factor > 1
    for plain, with_positions in ((shown.q, shown.encoded_q), (shown.k, shown.encoded_k)):
        for position in (0, 5, 63):
            turned = factor * encoded(plain[0, :, :, position], position, theta)
            np.testing.assert_allclose(with_positions[0, :, :, position], turned, atol=1e-4)
        np.testing.assert_array_equal(with_positions[1], plain[1])  # the layer without positions
    x = shown.params["embedding"][shown.rows.tokens]
    for layer in range(2):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], shown.params["layers"])
        normed = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * block["attention_norm"]["scale"]
        values = np.einsum("btm,mkd->bktd", normed, block["attention"]["value"]).repeat(2, axis=1)
        scores = np.einsum("bhid,bhjd->bhij", shown.encoded_q[layer], shown.encoded_k[layer].repeat(2, axis=1)) / 4
        scores = np.where(np.tri(T, dtype=bool), np.exp(scores - scores.max()), 0)
        attended = np.einsum("bhij,bhjd->bhid", scores / scores.sum(axis=-1, keepdims=True), values)
        x = x + np.einsum("bhtd,hdm->btm", attended, block["attention"]["out"])
        normed = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * block["mlp_norm"]["scale"]
        x = x + (silu(normed @ block["mlp"]["gate"]) * (normed @ block["mlp"]["up"])) @ block["mlp"]["down"]
    np.testing.assert_allclose(x, shown.hidden, atol=1e-3)


def test_the_probe_finds_what_loops_over_encoded_vectors_find(shown: Shown):
    scalars, arrays, q, k = shown.scalars, shown.arrays, shown.q, shown.k
    theta, factor = YARN.spectrum(16, T)
    asked = []
    for n, row in enumerate(shown.rows.tokens.tolist()):
        if row[-1] >= BYTES:  # a query whose answer is a target only
            row.append(row[row.index(row[-1]) + 1])
        questions = read_row(row, "pair", 8, 4).questions
        for question in questions:
            before = [o.query_last - o.distance for o in questions if o is not question and o.query_last - o.distance < question.query_last]
            if before:
                asked.append((n, question.query_last, question.query_last - question.distance, before))
    assert len(asked) == shown.rows.weights.sum() > 4
    for layer in range(2):
        turns, scale = (theta, factor**2 / 4) if layer == 0 else (np.zeros(8), 1 / 4)
        for head in range(4):
            means = np.zeros((R, 2))
            for column, m in enumerate((0, 37)):
                for offset in range(R):
                    gaps = []
                    for n, end, record, before in asked:
                        query = encoded(q[layer, n, head, end], m, turns)
                        right = query @ k[layer, n, head // 2, record - 1 + offset]
                        gaps.append(right - np.mean([query @ k[layer, n, head // 2, other - 1 + offset] for other in before]))
                    means[offset, column] = scale * np.mean(gaps)
            offset = arrays["record_offset_tokens"][layer, head]
            assert offset == means[:, 0].argmax()
            assert arrays["content_gap_nats"][layer, head] == pytest.approx(means[offset, 0], abs=1e-4)
            assert arrays["gap_nats"][layer, head, [0, 37]] == pytest.approx(means[offset], abs=1e-4)
            right = [scale * q[layer, n, head, end] @ k[layer, n, head // 2, record - 1 + offset] for n, end, record, _ in asked]
            assert arrays["record_content_nats"][layer, head] == pytest.approx(np.mean(right), abs=1e-4)
    assert (np.ptp(arrays["gap_nats"][1], axis=-1) < 1e-5).all()  # without positions, distance is nothing
    assert scalars["l_theta_tokens"] == context_bound(theta)
    best = np.unravel_index(arrays["content_gap_nats"].argmax(), (2, 4))
    assert scalars["retrieving_head_content_gap_nats"] == arrays["content_gap_nats"][best]
    assert scalars["retrieving_head_limit_tokens"] == arrays["limit_tokens"][best]
    many = arrays["content_gap_nats"] >= arrays["content_gap_nats"][best] / 2
    assert scalars["heads_beyond_bound_share"] == np.mean(arrays["limit_tokens"][many] > context_bound(theta))
    np.testing.assert_allclose(arrays["b_m"], similarity_gap(theta, np.arange(T + 1)))
    np.testing.assert_allclose(arrays["mass"].sum(axis=-1), 1, atol=1e-5)


def test_rows_that_fill_up_a_pass_change_nothing(shown: Shown):
    """Passes of eight rows for three, on eight devices."""
    graph, params, sharding = on(make_mesh(MeshConfig(data=4, fsdp=2)))
    scalars, arrays = probe(graph, sharding, rows=3, queries=4)(params)
    assert scalars == pytest.approx(shown.scalars, abs=1e-4)
    for name, array in arrays.items():
        np.testing.assert_allclose(array, shown.arrays[name], atol=1e-4, err_msg=name)


def test_the_figure_shows_the_heads_that_retrieve(shown: Shown):
    axes = Figure().subplots()
    gap, content = np.zeros((2, 4, T + 1)), np.array([[-3.0, 1.9, 4.0, 0.5], [2.1, -4.0, 2.0, 3.0]])
    gap[...] = content[..., None] * np.linspace(1, -1, T + 1) ** 3
    gap_of_heads(axes, shown.arrays | {"gap_nats": gap, "content_gap_nats": content}, top=3)
    heads = [(1, 3, "4"), (2, 4, "3"), (2, 1, "2.1")]
    labels = [*(f"layer {layer}, head {head}: {nats} nats" for layer, head, nats in heads), "$B_m$, theory"]
    assert axes.get_legend_handles_labels()[1] == labels
    drawn = np.array([line.get_ydata() for line in axes.lines[:4]])
    np.testing.assert_allclose(drawn[:3], np.tile(np.linspace(1, -1, T + 1) ** 3, (3, 1)))
    np.testing.assert_allclose(drawn[3], similarity_gap(YARN.spectrum(16, T).theta, np.arange(T + 1)) / 8)


def test_the_suite_makes_it_from_its_own_section(one_device: jax.sharding.Mesh):
    graph, _ = split_model(partial(Llama, SHAPE, XPos()), constrain_to(one_device))
    config = ProbeConfig(names=("similarity_gap",), similarity_gap=SimilarityGapConfig(rows=2))
    bench = Bench(config, DataConfig(retrieval=TASK), T, BytesTokenizer(), graph, batch_sharding(one_device))
    bench.__dict__["windows"] = WINDOWS, np.zeros(3, int)
    with pytest.raises(ValueError, match=r"^probes\.names has similarity_gap, but"):
        make_probes(bench, config.names)


def test_which_encodings_turn_scores():
    theta = inverse_powers(100.0, 16)
    np.testing.assert_array_equal(rotation_of(Scaled(encoding=RoPE(base=100.0), log_n_length=4), 16, 64).theta, theta)
    assert rotation_of(YARN, 16, 64).attention_factor == YARN.spectrum(16, 64).attention_factor > 1
    np.testing.assert_array_equal(rotation_of(NoPE(), 16, 64).theta, np.zeros(8))


@pytest.mark.parametrize("encoding", [XPos(), Scaled(encoding=XPos(), log_n_length=4)])
def test_an_encoding_that_fades_is_refused(one_device: jax.sharding.Mesh, encoding: AbstractPositionEncoding):
    graph, _ = split_model(partial(Llama, SHAPE, encoding), constrain_to(one_device))
    message = (
        "probes.names has similarity_gap, but B_m is not defined for XPos(scale_base=512.0, base=10000.0), "
        "which is more than frequencies; leave it out"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        probe(graph, batch_sharding(one_device))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 0}, "probes.similarity_gap.rows=0 must be at least 1"),
        ({"queries": 0}, "probes.similarity_gap.queries=0 must be at least 1"),
        ({"seed": -1}, "probes.similarity_gap.seed=-1 must lie in 0 .. 2**32 - 1"),
    ],
)
def test_bad_fields(fields: dict, message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SimilarityGapConfig(**fields)


def test_what_does_not_fit_is_refused():
    text = RetrievalConfig(surface="text", num_keys=8, num_values=4, max_records=5)
    with pytest.raises(ValueError, match=r"^a context of 20 tokens is too short for a record and its question; set probes\.length higher$"):
        records_in(WINDOWS[:, :21], make_surface(text, BytesTokenizer()), text, SimilarityGapConfig())
    alone = RetrievalConfig(surface="pair", num_keys=8, num_values=4, max_records=1)
    message = r"^no question has a second record before it; raise data\.retrieval\.max_records=1 or probes\.length$"
    with pytest.raises(ValueError, match=message):
        records_in(WINDOWS, SURFACE, alone, SimilarityGapConfig())
