"""Rows of context and block with a scorer that counts the context; power laws found again, and none where there is none."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from rope_lab.data.store import TokenStore, open_sources, write_store
from rope_lab.data.tokenizer import BytesTokenizer
from rope_lab.plotting import loss_by_context
from rope_lab.probes.context_gain import ContextGainConfig, ContextGainProbe, default_contexts, fit_power_law, spaced_blocks
from rope_lab.probes.score import Scorer, Scores

BOS = 256
DOCUMENTS = {"a": [30, 120, 44], "b": [100, 0, 45]}  # tokens without separator


class ByContext(Scorer):
    """A stand-in: the loss of a target is a law of the tokens before it plus a part of its own; rows are kept."""

    def __init__(self, law: Callable[[np.ndarray], np.ndarray] = np.zeros_like):
        self.law = law
        self.rows: list[np.ndarray] = []

    def __call__(self, params: dict, rows_NW: np.ndarray) -> Scores:
        self.rows.append(rows_NW)
        losses = self.law(np.arange(1.0, rows_NW.shape[1])) + rows_NW[:, 1:] / 256
        return Scores(losses.astype(np.float32), np.zeros(losses.shape, bool))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenStore]:
    path: Path = tmp_path_factory.mktemp("held_out")
    rng = np.random.default_rng(0)
    for source, lengths in DOCUMENTS.items():
        write_store(path / source, [rng.integers(0, BOS, n) for n in lengths], source=source, tokenizer=BytesTokenizer())
    return open_sources(path)


def places(stores: dict[str, TokenStore], rows: np.ndarray) -> list[tuple[int, int]]:
    """Document and first token of each row, found by looking everywhere."""
    documents = [store.document(k) for store in stores.values() for k in range(store.info.num_documents)]
    width, found = rows.shape[1], []
    for row in rows:
        hits = [
            (number, start)
            for number, document in enumerate(documents)
            for start in range(len(document) - width + 1)
            if (document[start : start + width] == row).all()
        ]
        assert len(hits) == 1
        found.append(hits[0])
    return found


@pytest.mark.parametrize(("blocks", "expected"), [(7, 7), (1000, 34)])
def test_blocks_are_evenly_spaced_and_apart(stores: dict[str, TokenStore], blocks: int, expected: int):
    """Of 120, 44, 100 and 45 tokens rows of 44 leave 77 + 1 + 57 + 2 places; blocks of 4 have room for a quarter of them."""
    rows = spaced_blocks(stores, 40, 4, blocks)
    assert rows.shape == (expected, 44)
    assert (rows != BOS).all(), "a separator"
    found = places(stores, rows)
    assert found == sorted(found)
    room = {1: (0, 77), 2: (77, 1), 3: (78, 57), 5: (135, 2)}  # document: places before it, places
    flat = np.array([room[number][0] + start - 1 for number, start in found])
    assert all(0 < start <= room[number][1] for number, start in found)
    gaps = np.diff(flat)
    assert gaps.max() - gaps.min() <= 1
    assert gaps.min() >= 4
    assert flat[0] <= gaps.max()
    assert 137 - flat[-1] <= gaps.max() + 1


def test_a_document_of_exactly_one_row_is_used(stores: dict[str, TokenStore]):
    rows = spaced_blocks(stores, 116, 4, 9)
    np.testing.assert_array_equal(rows, stores["a"].document(1)[None, 1:])


def test_each_row_is_its_context_and_the_same_block(stores: dict[str, TokenStore]):
    scorer = ByContext(np.sqrt)
    config = ContextGainConfig(contexts=(3, 8, 40), blocks=20, block_tokens=3)
    scalars, arrays = ContextGainProbe(scorer, stores, 999, config)({})
    assert [rows.shape[1] for rows in scorer.rows] == [6, 11, 43]
    everything = scorer.rows[-1]
    own = everything[:, -3:].mean(axis=1) / 256
    for number, (context, rows) in enumerate(zip((3, 8, 40), scorer.rows, strict=True)):
        np.testing.assert_array_equal(rows, everything[:, 40 - context :])
        given = sum(math.sqrt(context + k) for k in range(3)) / 3  # the block's first token is given exactly `context`
        assert arrays["loss_by_block_nats"][number] == pytest.approx(given + own, abs=1e-5)
        assert arrays["loss_nats"][number] == pytest.approx(given + own.mean(), abs=1e-5)
        assert scalars[f"loss_at_{context}_nats"] == arrays["loss_nats"][number]
    assert arrays["contexts_tokens"].tolist() == [3, 8, 40]
    assert scalars["gain_nats"] == pytest.approx(arrays["loss_nats"][0] - arrays["loss_nats"][2])
    assert scalars["gain_nats"] < 0
    assert set(scalars) == {"loss_at_3_nats", "loss_at_8_nats", "loss_at_40_nats", "gain_nats"}, "a law was made up"


def test_the_model_reads_the_context_length_and_no_more(stores: dict[str, TokenStore]):
    scorer = ByContext()
    _, arrays = ContextGainProbe(scorer, stores, 70, ContextGainConfig())({})
    assert arrays["contexts_tokens"].tolist() == [16, 32, 64, 67]
    assert scorer.rows[-1].shape[1] - 1 == 70
    assert default_contexts(256, 1) == (16, 32, 64, 128, 256)
    assert default_contexts(12, 4) == (9,)


def test_the_probe_finds_the_law_of_its_losses(stores: dict[str, TokenStore]):
    """Blocks of one token, so that the context is the law's own; float32 losses leave a little over."""
    scorer = ByContext(lambda context: (6 / context) ** 0.7)
    scalars, arrays = ContextGainProbe(scorer, stores, 70, ContextGainConfig(block_tokens=1))({})
    own = (scorer.rows[0][:, -1] / 256).mean()
    assert scalars["alpha_tokens"] == pytest.approx(6, rel=1e-3)
    assert scalars["beta"] == pytest.approx(0.7, rel=1e-3)
    assert scalars["gamma_nats"] == pytest.approx(own, rel=1e-3)
    assert scalars["fit_rms_nats"] < 1e-5
    assert len(arrays["contexts_tokens"]) == 4


# --- the fit ---------------------------------------------------------------------------------------------------------------------------

OCTAVES = 2.0 ** np.arange(4, 12)


def law(alpha: float, beta: float, gamma: float, contexts: np.ndarray = OCTAVES) -> np.ndarray:
    return (alpha / contexts) ** beta + gamma


@pytest.mark.parametrize(("alpha", "beta", "gamma"), [(40.0, 0.5, 1.8), (1e-3, 0.08, 0.3), (5000.0, 1.5, 0.0), (9.0, 4.0, 2.5)])
@pytest.mark.parametrize("points", [4, 8])
def test_known_laws_are_recovered(alpha: float, beta: float, gamma: float, points: int):
    found = fit_power_law(OCTAVES[:points], law(alpha, beta, gamma + 1e-6, OCTAVES[:points]))
    assert found is not None
    assert found.alpha_tokens == pytest.approx(alpha, rel=1e-3)
    assert found.beta == pytest.approx(beta, rel=1e-3)
    assert found.gamma_nats == pytest.approx(gamma, abs=1e-3)
    assert found.rms_nats < 1e-6
    np.testing.assert_allclose(found(OCTAVES), law(alpha, beta, gamma), atol=1e-4)


def test_a_noisy_law_is_the_least_squares_one():
    """No other parameters nearby leave less over, and the true ones lie where noise of this size can put them."""
    noise = 0.01 * np.random.default_rng(3).standard_normal(len(OCTAVES))
    losses = law(40.0, 0.5, 1.8) + noise
    found = fit_power_law(OCTAVES, losses)
    assert found is not None
    least = np.sqrt(((found(OCTAVES) - losses) ** 2).mean())
    assert found.rms_nats == pytest.approx(least, rel=1e-9)
    assert least <= np.sqrt((noise**2).mean())
    for a in np.linspace(0.8, 1.2, 21):
        for b in np.linspace(0.8, 1.2, 21):
            for c in np.linspace(-0.05, 0.05, 21):
                other = law(found.alpha_tokens * a, found.beta * b, found.gamma_nats + c)
                assert ((other - losses) ** 2).mean() >= least**2 * (1 - 1e-9)
    assert found.beta == pytest.approx(0.5, abs=0.1)
    assert found.gamma_nats == pytest.approx(1.8, abs=0.1)


@pytest.mark.parametrize(
    "losses",
    [
        law(40.0, 0.5, 1.8, OCTAVES[:3]),  # as many parameters as points
        np.full(8, 2.5),
        2.5 + law(40.0, 0.5, 0.0)[::-1],  # rises, bending upwards
        3.0 - law(40.0, 0.5, 0.0),  # rises towards a limit
        4.0 - 0.3 * np.log(OCTAVES),  # no limit in sight
        law(40.0, 0.1, -1.0),  # a limit below zero
        np.array([5.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]),  # a step
    ],
)
def test_what_is_no_such_law_is_not_given_one(losses: np.ndarray):
    assert fit_power_law(OCTAVES[: len(losses)], losses) is None


def test_noise_alone_seldom_passes_for_a_law():
    """The share of flat curves that get one is about the test's level: those that fall, at 5 % of the F test."""
    rng = np.random.default_rng(0)
    for points in (4, 8):
        found = [fit_power_law(OCTAVES[:points], 2.5 + 0.02 * rng.standard_normal(points)) for _ in range(300)]
        assert sum(one is not None for one in found) / 300 < 0.05


def test_points_and_law_are_drawn():
    axes = Figure().subplots()
    losses = law(40.0, 0.5, 1.8)
    loss_by_context(axes, OCTAVES, losses, label="measured", color="C0", law=(40.0, 0.5, 1.8))
    points, curve = axes.lines
    np.testing.assert_array_equal(np.asarray(points.get_xydata()), np.stack([OCTAVES, losses], axis=1))
    x, y = np.asarray(curve.get_xydata()).T
    np.testing.assert_allclose(y, law(40.0, 0.5, 1.8, x))
    assert (x[0], x[-1]) == pytest.approx((16, 2048))
    assert axes.get_xscale() == "log"
    loss_by_context(axes, OCTAVES, losses, label="no law", color="C1")
    assert len(axes.lines) == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"contexts": (8, 8)}, "probes.context_gain.contexts=(8, 8) must increase, from 1 token or more"),
        ({"contexts": (0, 8)}, "probes.context_gain.contexts=(0, 8) must increase, from 1 token or more"),
        ({"blocks": 0}, "probes.context_gain.blocks=0 must be at least 1"),
        ({"block_tokens": 0}, "probes.context_gain.block_tokens=0 must be at least 1"),
        ({"block_tokens": 71}, "probes.context_gain.block_tokens=71 must not exceed the context length 70"),
        (
            {"contexts": (117,)},
            "no held-out document has 122 tokens; set probes.context_gain.contexts shorter, or probes.path to longer documents",
        ),
    ],
)
def test_bad_input(stores: dict[str, TokenStore], fields: dict, message: str):
    with pytest.raises(ValueError) as told:
        ContextGainProbe(ByContext(), stores, 70, ContextGainConfig(**fields))
    assert str(told.value) == message
