"""Sliding windows against a loop that reads one token at a time, with a scorer that sees the whole context; and a real model once."""

import math
from pathlib import Path

import numpy as np
import pytest

from rope_lab.data.store import TokenStore, open_sources, write_store
from rope_lab.data.tokenizer import BytesTokenizer
from rope_lab.probes.score import Scorer, Scores
from rope_lab.probes.sliding_perplexity import SlidingPerplexityConfig, SlidingPerplexityProbe, sliding_windows
from tests.probes import models

BOS = 256


def loss(context: np.ndarray, target: int) -> float:
    """Nats that depend on the target, on both ends of the context and on its length."""
    return (7 * target + 3 * int(context[0]) + 5 * int(context[-1])) % 31 / 10 + 1 / len(context)


class WholeContext(Scorer):
    """A stand-in whose losses are `loss`, and which keeps the rows it was given."""

    def __init__(self):
        self.rows: list[np.ndarray] = []

    def __call__(self, params: dict, rows_NW: np.ndarray) -> Scores:
        self.rows.append(rows_NW)
        losses = [[loss(row[:end], int(row[end])) for end in range(1, len(row))] for row in rows_NW]
        return Scores(np.array(losses, np.float32), np.zeros((len(losses), len(losses[0])), bool))


def token_by_token(document: np.ndarray, length: int, stride: int) -> list[float]:
    """Losses of every token but the first, each at its first appearance in a window."""
    last, start, losses = len(document) - 1, 0, {}
    while True:
        for place in range(start + 1, min(start + length, last) + 1):
            if place not in losses:
                losses[place] = loss(document[start:place], int(document[place]))
        if start + length >= last:
            return [losses[place] for place in range(1, last + 1)]
        start = min(start + stride, last - length)


DOCUMENTS = {"a": [40, 300, 3, 150], "b": [90, 0, 200]}  # tokens without separator


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenStore]:
    path: Path = tmp_path_factory.mktemp("held_out")
    rng = np.random.default_rng(0)
    for source, lengths in DOCUMENTS.items():
        write_store(path / source, [rng.integers(0, BOS, n) for n in lengths], source=source, tokenizer=BytesTokenizer())
    return open_sources(path)


@pytest.mark.parametrize(
    ("tokens", "length", "stride"),
    [(100, 16, 8), (101, 16, 5), (100, 16, 16), (17, 16, 8), (18, 16, 8), (16, 16, 3), (2, 16, 8), (25, 16, 1), (24, 2, 1)],
)
def test_every_token_is_scored_once_in_its_own_context(tokens: int, length: int, stride: int):
    document = 1000 + np.arange(tokens, dtype=np.int32)  # a token's id tells its place
    rows, scored = sliding_windows(document, length, stride)
    assert rows.shape[1] == length + 1
    assert rows.dtype == np.int32
    targets = rows[:, 1:][scored] - 1000
    assert sorted(targets.tolist()) == list(range(1, tokens)), "each once, and the separator never"
    for row, marks in zip(rows, scored, strict=True):
        for place in np.flatnonzero(marks):
            context = row[: place + 1]
            np.testing.assert_array_equal(np.diff(row[: place + 2]), 1)  # consecutive tokens of the document up to the target
            assert len(context) >= length - stride + 1 or context[0] == 1000
    assert (np.diff(rows[:-1, 0]) == stride).all()
    needed = 1 + math.ceil(max(0, tokens - 1 - length) / stride)
    assert len(rows) == needed


@pytest.mark.parametrize("stride", [None, 7])
def test_both_means_against_a_loop(stores: dict[str, TokenStore], stride: int | None):
    config = SlidingPerplexityConfig(lengths=(10, 16, 50), stride=stride, documents=4, tokens_per_document=180)
    scorer = WholeContext()
    scalars, arrays = SlidingPerplexityProbe(scorer, stores, 99, config)({})
    longest = [stores["a"].document(1)[:181], stores["b"].document(2)[:181], stores["a"].document(3), stores["b"].document(0)]
    assert arrays["tokens_by_document"].tolist() == [180, 180, 150, 90]
    assert arrays["lengths_tokens"].tolist() == [10, 16, 50]
    assert len(scalars) == 12
    for number, length in enumerate((10, 16, 50)):
        losses = [token_by_token(document, length, stride or length // 2) for document in longest]
        means = [float(np.mean(part)) for part in losses]
        assert arrays["loss_by_document_nats"][number] == pytest.approx(means, abs=1e-6)
        every = float(np.mean(np.concatenate(losses)))
        assert scalars[f"loss_at_{length}_nats"] == pytest.approx(every, abs=1e-6)
        assert scalars[f"token_weighted_at_{length}"] == pytest.approx(math.exp(every), rel=1e-6)
        assert scalars[f"per_document_loss_at_{length}_nats"] == pytest.approx(np.mean(means), abs=1e-6)
        assert scalars[f"per_document_mean_at_{length}"] == pytest.approx(np.mean(np.exp(means)), rel=1e-6)
        assert abs(every - float(np.mean(means))) > 1e-4, "the two means would not be told apart"


def test_the_separator_stands_where_the_document_has_it(stores: dict[str, TokenStore]):
    scorer = WholeContext()
    SlidingPerplexityProbe(scorer, stores, 99, SlidingPerplexityConfig(lengths=(20, 60), documents=3))({})
    assert [rows.shape[1] for rows in scorer.rows] == [21, 61]  # one shape for each length
    for rows in scorer.rows:
        assert (rows[:, 0] == BOS).sum() == 3
        assert (rows == BOS).sum() == 3


def test_defaults(stores: dict[str, TokenStore]):
    _, arrays = SlidingPerplexityProbe(WholeContext(), stores, 200, SlidingPerplexityConfig())({})
    assert arrays["lengths_tokens"].tolist() == [128, 200]
    assert arrays["tokens_by_document"].tolist() == [300, 200, 150, 90, 40, 3]  # below 4 x 200; the empty document has no target
    _, capped = SlidingPerplexityProbe(WholeContext(), stores, 40, SlidingPerplexityConfig(documents=2))({})
    assert capped["tokens_by_document"].tolist() == [160, 160]


def test_a_model_in_one_window_gives_the_full_forwards_loss(stores: dict[str, TokenStore]):
    """A document that fills the window, and one that fills less than half of it."""
    config = models.config(vocab_size=264, num_heads=1, head_dim=16)
    _, params, scorer = models.scored(config, models.one_device(), tokens_per_forward=512)
    only = {"b": stores["b"]}
    _, arrays = SlidingPerplexityProbe(scorer, only, 200, SlidingPerplexityConfig(lengths=(200,), documents=2))(params)
    assert arrays["tokens_by_document"].tolist() == [200, 90]
    for found, index in zip(arrays["loss_by_document_nats"][0], (2, 0), strict=True):
        assert found == pytest.approx(scorer(params, only["b"].document(index)[None]).losses.mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": (32, 16)}, "probes.sliding_perplexity.lengths=(32, 16) must increase, from 2 tokens or more"),
        ({"lengths": (1, 16)}, "probes.sliding_perplexity.lengths=(1, 16) must increase, from 2 tokens or more"),
        ({"stride": 0}, "probes.sliding_perplexity.stride=0 must be at least 1"),
        ({"documents": 0}, "probes.sliding_perplexity.documents=0 must be at least 1"),
        ({"tokens_per_document": 0}, "probes.sliding_perplexity.tokens_per_document=0 must be at least 1"),
        (
            {"lengths": (16, 32), "stride": 17},
            "probes.sliding_perplexity.stride=17 must not exceed the shortest length 16: tokens between windows would never be scored",
        ),
        (
            {"tokens_per_document": 99},
            "probes.sliding_perplexity.tokens_per_document=99 must be at least the longest length 100: "
            "no token would be given so much context",
        ),
        (
            {"lengths": (301,)},
            "no held-out document has 302 tokens; set probes.sliding_perplexity.lengths shorter, or probes.path to longer documents",
        ),
    ],
)
def test_bad_input(stores: dict[str, TokenStore], fields: dict, message: str):
    with pytest.raises(ValueError) as told:
        SlidingPerplexityProbe(WholeContext(), stores, 100, SlidingPerplexityConfig(**fields))
    assert str(told.value) == message
