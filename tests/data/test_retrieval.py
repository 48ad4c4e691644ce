"""Planted rows are read back by `tests/data/reader.py`, which shares no code with what planted them."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.data.pipeline import DataConfig, Stage, open_pipeline
from rope_lab.data.retrieval import RetrievalConfig, make_surface, mixed_distances, plant, row_uniforms
from rope_lab.data.store import TokenStore, write_store
from rope_lab.data.tokenizer import BytesTokenizer
from tests.data.reader import RECORD_AND_ANSWER, SHORTEST, read_row

SURFACES = ["token", "pair", "text"]
K, V, Q = 12, 7, 5
LETTER_KINDS = np.array([ord("."), ord("p"), ord("a")])


def small(surface: str, **fields) -> RetrievalConfig:
    return RetrievalConfig(**{"surface": surface, "num_keys": K, "num_values": V, "max_records": Q, "weight": 1.0} | fields)


def letters(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(ord("a"), ord("z") + 1, shape).astype(np.int32)


def check_planted(surface: str, rows: int, length: int, seed: int) -> int:
    """Plants at random and reads everything back; returns how many questions stand."""
    made = make_surface(small(surface), BytesTokenizer())
    shortest, longest = SHORTEST[surface], length + 1 - RECORD_AND_ANSWER[surface]
    assert (made.shortest_distance, made.longest_distance(length)) == (shortest, longest)
    rng = np.random.default_rng(seed)
    windows = letters((rows, length + 1), seed)
    wanted = rng.integers(shortest, longest + 1, (rows, Q)).astype(np.int32)
    planted = plant(windows, wanted, rng.random((rows, 2 * Q + K)), made)
    assert planted.tokens.dtype == np.int32
    assert planted.query_end.min() >= -1
    standing = 0
    for row in range(rows):
        read = read_row(planted.tokens[row].tolist(), surface, K, V)
        stated = [
            (end, distance, value)
            for end, distance, value in zip(planted.query_end[row], planted.distances[row], planted.values[row], strict=True)
            if end >= 0
        ]
        assert sorted(stated) == [(question.query_last, question.distance, question.value) for question in read.questions]
        assert {distance for _, distance, _ in stated} <= set(wanted[row].tolist())
        assert planted.query_end[row, 0] >= 0, "an empty row has room for its first record"
        assert planted.distances[row].tolist() == wanted[row].tolist()
        assert read.text == windows[row, : len(read.text)].tolist()
        assert read.kinds == bytes(LETTER_KINDS[planted.kinds[row]].tolist()).decode()
        standing += len(read.questions)
    return standing


@pytest.mark.parametrize("surface", SURFACES)
def test_records_are_read_back(surface: str):
    assert check_planted(surface, 40, 150, 0) > 2 * 40


@pytest.mark.parametrize("surface", SURFACES)
@given(st.data())
def test_records_are_read_back_from_rows_of_any_length(surface: str, data: st.DataObject):
    fits = SHORTEST[surface] + RECORD_AND_ANSWER[surface] - 1
    check_planted(surface, data.draw(st.integers(1, 4)), data.draw(st.integers(fits, fits + 60)), data.draw(st.integers(0, 2**32)))


@pytest.mark.parametrize("surface", SURFACES)
def test_both_ends_of_the_distances_fit(surface: str):
    length = 40
    made = make_surface(small(surface), BytesTokenizer())
    for distance, uniform in ((SHORTEST[surface], 0.0), (SHORTEST[surface], 1 - 2**-53), (made.longest_distance(length), 0.5)):
        uniforms = np.full((1, 2 + K), uniform)
        planted = plant(letters((1, length + 1)), np.array([[distance]], np.int32), uniforms, made)
        read = read_row(planted.tokens[0].tolist(), surface, K, V)
        (question,) = read.questions
        assert question.distance == distance
        opens, closes = read.kinds[0] == "p", read.kinds[-1] == "a"
        assert (opens, closes) == {0.0: (True, False), 1 - 2**-53: (False, True), 0.5: (True, True)}[uniform]


def test_values_and_keys_are_all_used():
    made = make_surface(small("token"), BytesTokenizer())
    rng = np.random.default_rng(0)
    planted = plant(letters((400, 65)), np.full((400, Q), 3, np.int32), rng.random((400, 2 * Q + K)), made)
    questions = [question for row in planted.tokens for question in read_row(row.tolist(), "token", K, V).questions]
    for numbers, size in (([question.value for question in questions], V), ([question.key for question in questions], K)):
        counts = np.bincount(numbers, minlength=size)
        assert len(counts) == size
        expected = len(questions) / size
        assert (np.abs(counts - expected) < 5 * math.sqrt(expected)).all()


# The law of distances


def test_distances_are_half_log_uniform_half_uniform():
    shortest, longest, count = 3, 240, 200_000
    drawn = mixed_distances(np.random.default_rng(0).random((count, 2)), shortest, longest)
    assert (drawn.min(), drawn.max()) == (shortest, longest)
    below = np.cumsum(np.bincount(drawn, minlength=longest + 1)) / count
    for distance in range(shortest, longest + 1):
        log_uniform = math.log((distance + 1) / shortest) / math.log((longest + 1) / shortest)
        uniform = (distance + 1 - shortest) / (longest + 1 - shortest)
        assert below[distance] == pytest.approx(0.5 * log_uniform + 0.5 * uniform, abs=0.005)


@given(st.integers(1, 30), st.integers(0, 10**6), st.sampled_from([0.0, 0.25, 0.5, 0.75]))
def test_distances_stay_inside_and_reach_both_ends(shortest: int, more: int, law: float):
    longest = shortest + more
    u = np.array([0.0, 1e-17, 0.3, 0.9, 1 - 2**-53])
    distances = mixed_distances(np.stack([np.full(5, law), u], axis=-1), shortest, longest)
    assert distances[0] == distances[1] == shortest
    assert distances[-1] == longest
    assert (np.diff(distances) >= 0).all()


def test_uniforms_are_a_function_of_seed_and_row():
    together = row_uniforms(3, np.array([5, 2, 10**12]), 4)
    np.testing.assert_array_equal(row_uniforms(3, np.array([10**12, 5]), 4), together[[2, 0]])
    assert ((together >= 0) & (together < 1)).all()
    everything = np.concatenate([together, row_uniforms(4, np.array([5, 2]), 4)])
    assert len(np.unique(everything)) == everything.size


# In training batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    documents = [letters((n,), n) for n in rng.integers(20, 300, 40)]
    write_store(path / "letters", documents, source="letters", tokenizer=BytesTokenizer())
    return path


@pytest.mark.parametrize("surface", SURFACES)
def test_training_rows(folder: Path, surface: str):
    config = DataConfig(path=str(folder), retrieval=small(surface, answer_loss_weight=4.0))
    stage = Stage(index=0, length=64, rows=32, first_step=0, num_steps=1)
    pipeline = open_pipeline(config)
    names, batch = pipeline.row_names(stage), pipeline.dataset((stage,))[0].batch
    store = TokenStore.open(folder / "letters")
    asked = 0
    for row in range(stage.rows):
        tokens = [*batch.tokens[row].tolist(), int(batch.targets[row, -1])]
        read = read_row(tokens, surface, K, V)
        assert batch.weights[row].tolist() == [{".": 1.0, "p": 0.0, "a": 4.0}[kind] for kind in read.kinds[1:]]
        start = 64 * int(names[row][2])
        assert read.text == store.read(np.array([start]), 65)[0][0, : len(read.text)].tolist()
        asked += len(read.questions)
    assert asked > stage.rows


def test_training_distances_reach_both_ends(folder: Path):
    pipeline = open_pipeline(DataConfig(path=str(folder), retrieval=small("token", max_records=1)))
    stage = Stage(index=0, length=32, rows=400, first_step=0, num_steps=1)
    batch = pipeline.dataset((stage,))[0].batch
    rows = [[*tokens.tolist(), int(target)] for tokens, target in zip(batch.tokens, batch.targets[:, -1], strict=True)]
    distances = [read_row(row, "token", K, V).questions[0].distance for row in rows]
    assert (min(distances), max(distances)) == (1, 31)
    expected = np.mean([math.log(8) / math.log(32), 7 / 31])  # share of 1 .. 7 under either law
    assert np.mean(np.array(distances) <= 7) == pytest.approx(expected, abs=0.08)


# Surfaces


class Tens(BytesTokenizer):
    """Bytes, but "10" is one token, as merges make it in public tokenizers."""

    name = "tens"

    def encode(self, text: str) -> np.ndarray:
        return super().encode(text.replace("10", "\x01"))


@pytest.mark.parametrize(("fields", "kind"), [({"num_keys": 11}, "query"), ({"num_keys": 5, "num_values": 11}, "answer")])
def test_text_with_uneven_numbers_is_refused(fields: dict, kind: str):
    message = (
        rf"^data\.retrieval\.surface='text' needs every {kind} to have one token count, but tokenizer 'tens' gives \[\d+, \d+\]; "
        r"use surface='pair' or 'token'$"
    )
    with pytest.raises(ValueError, match=message):
        make_surface(small("text", **fields), Tens())
    make_surface(small("text", num_keys=9, num_values=9), Tens())


@pytest.mark.parametrize(("surface", "reserved"), [("token", K * V + K + V), ("pair", K + V), ("text", 0)])
def test_ids_needed(surface: str, reserved: int):
    made = make_surface(small(surface), BytesTokenizer())
    assert made.vocab_size == 257 + reserved
    ids = np.unique(np.concatenate([part.ravel() for part in (made.records, made.queries, made.answers)]))
    if reserved:
        assert ids.tolist() == list(range(257, made.vocab_size))
    else:
        assert ids.max() < 256


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight": 1.5}, r"^data\.retrieval\.weight=1\.5 must lie in 0 \.\. 1: it is a share of rows$"),
        ({"weight": -0.1}, r"^data\.retrieval\.weight=-0\.1 must lie in 0 \.\. 1"),
        ({"surface": "emoji"}, r"^data\.retrieval\.surface='emoji' must be one of token, pair, text$"),
        ({"num_values": 0}, r"^data\.retrieval\.num_values=0 must be at least 1$"),
        ({"max_records": 0}, r"^data\.retrieval\.max_records=0 must be at least 1$"),
        ({"num_keys": 4, "max_records": 5}, r"^data\.retrieval\.max_records=5 must not exceed num_keys=4: a key is used once a row$"),
    ],
)
def test_bad_config(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(small("token"), **fields)
