"""The retrieval probe, put to stand-ins: one that knows every answer, one that guesses, one that sees so far back and no farther."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from rope_lab.data.retrieval import RetrievalConfig, make_surface
from rope_lab.data.tokenizer import BytesTokenizer
from rope_lab.probes.kv_by_distance import KVByDistanceConfig, KVByDistanceProbe, default_edges
from rope_lab.probes.score import Scorer
from tests.data.reader import RECORD_AND_ANSWER, SHORTEST, Question, read_row

LENGTH = 256
SURFACES = ["token", "pair", "text"]
WINDOWS = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, (5, LENGTH + 1)).astype(np.int32)


def task(surface: str, **fields) -> RetrievalConfig:
    return RetrievalConfig(**{"surface": surface, "num_keys": 32, "num_values": 16, "max_records": 24} | fields)


class StandIn(Scorer):
    """Reads the row, and hits the answers to those questions that it is told it can answer; `misses` of an answer's tokens it fails."""

    def __init__(self, surface: str, can: Callable[[Question], bool], misses: int = 0):
        self._surface, self._can, self._misses = surface, can, misses
        self.rows: list[np.ndarray] = []

    def hits_at(self, params: dict, rows_NW: np.ndarray, places_NP: np.ndarray) -> np.ndarray:
        self.rows.append(rows_NW)
        hits = np.zeros((rows_NW.shape[0], rows_NW.shape[1] - 1), bool)
        for row, tokens in enumerate(rows_NW.tolist()):
            for question in read_row(tokens, self._surface, 32, 16).questions:
                hits[row, question.query_last : question.last - self._misses] = self._can(question)
        return np.take_along_axis(hits, places_NP, axis=1)


def probe(scorer: StandIn, surface: str = "token", windows: np.ndarray = WINDOWS, **fields) -> KVByDistanceProbe:
    config = KVByDistanceConfig(**fields)
    return KVByDistanceProbe(scorer, windows, make_surface(task(surface), BytesTokenizer()), task(surface), config)


@pytest.mark.parametrize("surface", SURFACES)
def test_one_that_knows_all_the_answers(surface: str):
    scalars, arrays = probe(StandIn(surface, lambda question: True), surface)({})
    assert (arrays["accuracy"] == 1).all()
    assert arrays["correct"].all()
    assert scalars == {
        "effective_length_tokens": LENGTH,
        "effective_length_low_tokens": LENGTH,
        "effective_length_high_tokens": LENGTH,
        "longest_passing_length_tokens": LENGTH,
        "effective_length_relative_tokens": LENGTH,
        "effective_length_ruler_tokens": LENGTH,
        "accuracy": 1.0,
        "accuracy_farthest": 1.0,
    }


def test_an_answer_counts_only_whole():
    scalars, _ = probe(StandIn("text", lambda question: True, misses=1), "text")({})
    assert scalars["accuracy"] == 0
    assert scalars["effective_length_tokens"] == 0


def test_one_that_guesses_scores_at_chance():
    scalars, arrays = probe(StandIn("token", lambda question: question.value == 3), rows=200)({})
    asked = int(arrays["count"].sum())
    chance = 1 / 16
    assert asked > 1000
    assert arrays["correct"].mean() == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / asked))
    assert scalars["accuracy"] == pytest.approx(chance, abs=0.03)
    assert scalars["effective_length_high_tokens"] == 0


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("sees", [16, 48, 64, 192])
def test_one_that_sees_so_far_back_and_no_farther(surface: str, sees: int):
    scalars, arrays = probe(StandIn(surface, lambda question: question.distance < sees), surface)({})
    edges = arrays["edges_tokens"]
    assert arrays["accuracy"].tolist() == [float(edge <= sees) for edge in edges]
    assert arrays["correct"].tolist() == (arrays["distance_tokens"] < sees).tolist()
    assert {scalars[f"effective_length{name}_tokens"] for name in ("", "_low", "_high")} == {sees}
    assert scalars["longest_passing_length_tokens"] == sees


def test_revival_far_away_does_not_lengthen():
    scalars, _ = probe(StandIn("token", lambda question: question.distance < 48 or question.distance >= 128))({})
    assert scalars["effective_length_tokens"] == 48
    assert scalars["longest_passing_length_tokens"] == LENGTH
    assert scalars["accuracy_farthest"] == 1


@pytest.mark.parametrize("threshold", [0.4, 0.6])
def test_the_threshold_is_the_configured_one(threshold: float):
    """Of the farthest bucket, 192 .. 255, about half is known."""
    scalars, arrays = probe(
        StandIn("token", lambda question: question.distance < 192 or question.value < 8), threshold=threshold, rows=200
    )({})
    assert 0.45 < arrays["accuracy"][-1] < 0.55
    assert scalars["effective_length_tokens"] == (LENGTH if threshold == 0.4 else 192)


@pytest.mark.parametrize("surface", SURFACES)
def test_every_bucket_is_asked_inside_its_edges(surface: str):
    edges = (20, 40, 50, 200, 256)
    scorer = StandIn(surface, lambda question: question.value % 3 == 0)
    _, arrays = probe(scorer, surface, edges=edges)({})
    (rows,) = scorer.rows
    read = [question for row in rows.tolist() for question in read_row(row, surface, 32, 16).questions]
    assert sorted(question.distance for question in read) == sorted(arrays["distance_tokens"].tolist())
    shortest, longest = SHORTEST[surface], LENGTH + 1 - RECORD_AND_ANSWER[surface]
    for number, (low, high) in enumerate(zip((shortest, *edges[:-1]), (*edges[:-1], longest + 1), strict=True)):
        inside = [question for question in read if low <= question.distance < high]
        assert arrays["count"][number] == len(inside) > 0
        assert arrays["accuracy"][number] == pytest.approx(np.mean([question.value % 3 == 0 for question in inside]))
        distances = [question.distance for question in inside]
        assert min(distances) - low <= (high - low) / 5
        assert high - max(distances) <= (high - low) / 5
    assert sum(arrays["count"]) == len(read)


def test_rows_are_the_same_each_time_and_hold_the_text():
    runs = []
    for fields in ({}, {}, {"seed": 1}):
        scorer = StandIn("token", lambda question: True)
        made = probe(scorer, **fields)
        made({})
        made({})
        np.testing.assert_array_equal(*scorer.rows)
        runs.append(scorer.rows[0])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert runs[0].shape == (64, LENGTH + 1)
    for number, row in enumerate(runs[0].tolist()):
        text = read_row(row, "token", 32, 16).text
        assert text == WINDOWS[number % 5, : len(text)].tolist()


def test_default_edges():
    assert default_edges(256) == (16, 32, 48, 64, 96, 128, 192, 256)
    assert default_edges(300) == (16, 32, 48, 64, 96, 128, 192, 256, 300)
    assert default_edges(16) == (16,)
    assert default_edges(4096)[-5:] == (1024, 1536, 2048, 3072, 4096)


def test_default_edges_fit_every_length():
    for length in range(16, 80):
        made = probe(StandIn("token", lambda question: True), windows=WINDOWS[:, : length + 1])
        assert made({})[0]["effective_length_tokens"] == length


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 0}, r"^probes\.kv_by_distance\.rows=0 must be at least 1$"),
        ({"threshold": 0.0}, r"^probes\.kv_by_distance\.threshold=0\.0 must lie in \(0, 1\]: it is an accuracy$"),
        ({"threshold": 1.5}, r"^probes\.kv_by_distance\.threshold=1\.5 must lie in \(0, 1\]: it is an accuracy$"),
        ({"edges": (16, 16)}, r"^probes\.kv_by_distance\.edges=\(16, 16\) must increase$"),
        ({"edges": (16, 256, 300)}, r"^probes\.kv_by_distance\.edges=\(16, 256, 300\) must lie within the distances 1 \.\. 255$"),
        ({"edges": (1, 16)}, r"^probes\.kv_by_distance\.edges=\(1, 16\) must lie within the distances 1 \.\. 255$"),
        (
            {"rows": 1, "edges": tuple(range(2, 60, 2))},
            r"^no question at distances below \d+ found room; raise probes\.kv_by_distance\.rows=1$",
        ),
    ],
)
def test_bad_input(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        probe(StandIn("token", lambda question: True), **fields)
