"""Teacher-forced scores against the model's own logits and its greedy decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_lab.model.generate import generate
from rope_lab.probes.score import Scorer
from rope_lab.train.sharding import MeshConfig, make_mesh
from tests.probes import models

CONFIG = models.config(vocab_size=24, num_layers=2, hidden_size=32, head_dim=16, mlp_size=32)
ROWS = np.random.default_rng(0).integers(0, 24, (5, 14)).astype(np.int32)


def scorer_on(mesh: jax.sharding.Mesh, **fields) -> tuple[Scorer, dict]:
    _, params, scorer = models.scored(CONFIG, mesh, **fields)
    return scorer, params


@pytest.fixture(scope="module")
def one_device() -> jax.sharding.Mesh:
    return models.one_device()


@pytest.fixture(scope="module")
def graph(one_device: jax.sharding.Mesh) -> nnx.GraphDef:
    return models.scored(CONFIG, one_device)[0]


def test_losses_and_hits_follow_from_the_logits(one_device: jax.sharding.Mesh, graph: nnx.GraphDef):
    scorer, params = scorer_on(one_device)
    scores = scorer(params, ROWS)
    assert scores.losses.shape == scores.hits.shape == (5, 13)
    positions = jnp.broadcast_to(jnp.arange(13), (5, 13))
    forward = jax.jit(lambda params, tokens: nnx.merge(graph, params)(tokens, positions))
    logits = np.asarray(forward(params, ROWS[:, :-1]), np.float64)
    for row in range(5):
        for place in range(13):
            target = ROWS[row, place + 1]
            log_p = logits[row, place] - np.log(np.exp(logits[row, place]).sum())
            assert scores.losses[row, place] == pytest.approx(-log_p[target], abs=1e-4)
            assert scores.hits[row, place] == (log_p.argmax() == target)


def test_hits_over_an_answer_equal_greedy_decoding(one_device: jax.sharding.Mesh, graph: nnx.GraphDef):
    """Answers that decoding gives, and the same with one token changed: the first miss is where decoding would have parted."""
    scorer, params = scorer_on(one_device)
    prompts = np.random.default_rng(1).integers(0, 24, (8, 9)).astype(np.int32)
    decoded = generate(graph, params, prompts, 4)
    answers = decoded.copy()
    for row in range(4):
        answers[row, row] = (answers[row, row] + 1) % 24
    assert len(np.unique(decoded)) > 4
    hits = scorer(params, np.concatenate([prompts, answers], axis=1)).hits[:, 8:]
    assert hits.all(axis=1).tolist() == (answers == decoded).all(axis=1).tolist() == [False] * 4 + [True] * 4
    for row in range(4):
        assert hits[row, : row + 1].tolist() == [True] * row + [False]
        rest = generate(graph, params, np.concatenate([prompts, answers[:, : row + 1]], axis=1)[row : row + 1], 1)
        if row < 3:
            assert hits[row, row + 1] == (rest[0, 0] == answers[row, row + 1])


@pytest.mark.parametrize("tokens_per_forward", [1, 14 * 4])
def test_padding_rows_change_nothing(one_device: jax.sharding.Mesh, tokens_per_forward: int):
    """Passes of 1 row; and of 3 and 4, the last of them filled up: each row is scored as it is alone."""
    scorer, params = scorer_on(one_device, tokens_per_forward=tokens_per_forward)
    scores = scorer(params, ROWS)
    others = scorer(params, np.concatenate([ROWS, ROWS[::-1], ROWS[:3]]))
    np.testing.assert_allclose(scores.losses, others.losses[:5], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(scores.hits, others.hits[:5])
    for row in range(5):
        alone = scorer(params, ROWS[row : row + 1])
        np.testing.assert_allclose(alone.losses[0], scores.losses[row], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(alone.hits[0], scores.hits[row])


def test_hits_at_some_places_are_those_of_all(one_device: jax.sharding.Mesh):
    scorer, params = scorer_on(one_device)
    places = np.random.default_rng(1).integers(0, 13, (5, 40)).astype(np.int32)
    hits = scorer(params, ROWS).hits
    assert 0 < np.take_along_axis(hits, places, axis=1).mean() < 1
    np.testing.assert_array_equal(scorer.hits_at(params, ROWS, places), np.take_along_axis(hits, places, axis=1))


@pytest.mark.parametrize(("rows", "expected"), [(5, [3, 3]), (4, [4]), (13, [4, 4, 4, 4]), (1, [1])])
def test_passes_are_even(one_device: jax.sharding.Mesh, monkeypatch: pytest.MonkeyPatch, rows: int, expected: list[int]):
    """At most 4 rows fit a pass; one row too many does not cost a pass of padding."""
    scorer, params = scorer_on(one_device, tokens_per_forward=14 * 4)
    sizes = []
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda array, sharding: (sizes.append(len(array)), put(array, sharding))[1])
    scorer(params, np.resize(ROWS, (rows, 14)))
    assert sizes == expected


def test_eight_devices_score_as_one(one_device: jax.sharding.Mesh):
    scorer, params = scorer_on(one_device)
    expected = scorer(params, ROWS)
    places = np.tile(np.arange(13, dtype=np.int32), (5, 1))
    for mesh in (make_mesh(MeshConfig(data=1, fsdp=8)), make_mesh(MeshConfig(data=4, fsdp=2))):
        spread, spread_params = scorer_on(mesh, tokens_per_forward=14)  # passes of 8 rows for 5
        assert len(jax.tree.leaves(spread_params)[0].sharding.device_set) == 8
        scores = spread(spread_params, ROWS)
        np.testing.assert_allclose(scores.losses, expected.losses, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(scores.hits, expected.hits)
        np.testing.assert_array_equal(spread.hits_at(spread_params, ROWS, places), expected.hits)
