"""Perplexity against sums done by hand, with a scorer whose losses are known."""

import math
from pathlib import Path

import numpy as np
import pytest

from rope_lab.data.store import TokenStore, open_sources, write_store
from rope_lab.data.tokenizer import BytesTokenizer
from rope_lab.probes.perplexity import PerplexityConfig, PerplexityProbe, held_out_windows
from rope_lab.probes.score import Scorer, Scores


class TokenIsLoss(Scorer):
    """A stand-in: the loss of a token is a hundredth of its id."""

    def __init__(self):
        pass

    def __call__(self, params: dict, rows_NW: np.ndarray) -> Scores:
        targets = rows_NW[:, 1:]
        return Scores((targets / 100).astype(np.float32), np.zeros(targets.shape, bool))


def test_both_means_by_hand():
    rows = np.array([[9, 100, 100, 100, 100], [9, 0, 0, 0, 200], [9, 50, 50, 50, 50], [9, 300, 300, 300, 100]], np.int32)
    scalars, arrays = PerplexityProbe(TokenIsLoss(), rows, np.array([0, 0, 0, 1]))({})
    first, second = (1 * 4 + 2 + 0.5 * 4) / 12, (3 * 3 + 1) / 4  # unequal numbers of windows: 3 and 1
    assert scalars == {
        "loss_nats": pytest.approx((12 * first + 4 * second) / 16),
        "token_weighted": pytest.approx(math.exp((12 * first + 4 * second) / 16)),
        "per_document_loss_nats": pytest.approx((first + second) / 2),
        "per_document_mean": pytest.approx((math.exp(first) + math.exp(second)) / 2),
        "loss_last_quarter_nats": pytest.approx((1 + 2 + 0.5 + 1) / 4),
    }
    assert arrays["loss_by_position_nats"] == pytest.approx(np.array([1 + 0 + 0.5 + 3, 4.5, 4.5, 1 + 2 + 0.5 + 1]) / 4)
    assert arrays["loss_by_document_nats"] == pytest.approx(np.array([first, second]))


@pytest.mark.parametrize(
    ("targets", "edges", "losses"),
    [
        ([100, 20, 40, 70, 80, 90], [1, 2, 4, 7], [1.0, 0.3, 0.8]),  # given 1, 2 .. 6 tokens: 1, 2-3 and 4-6
        ([100, 20, 40, 60], [1, 2, 5], [1.0, 0.4]),  # no bucket of the last position alone
        ([100, 20, 40, 70, 80], [1, 2, 4, 6], [1.0, 0.3, 0.75]),
    ],
)
def test_octaves_of_context_by_hand(targets: list[int], edges: list[int], losses: list[float]):
    rows = np.array([[9, *targets], [9, targets[0] + 40, *targets[1:]]], np.int32)
    _, arrays = PerplexityProbe(TokenIsLoss(), rows, np.zeros(2))({})
    assert arrays["octave_edges_tokens"].tolist() == edges
    assert arrays["loss_by_octave_nats"] == pytest.approx(np.array([losses[0] + 0.2, *losses[1:]]))


LENGTH = 20
DOCUMENTS = {"a": [300, 5, 20, 19, 45], "b": [61, 0, 200]}  # tokens without separator, of documents by source


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenStore]:
    """Random bytes, so that a window is found in one place only."""
    path: Path = tmp_path_factory.mktemp("held_out")
    rng = np.random.default_rng(0)
    for source, lengths in DOCUMENTS.items():
        documents = [rng.integers(0, 256, length) for length in lengths]
        write_store(path / source, documents, source=source, tokenizer=BytesTokenizer())
    return open_sources(path)


def test_windows(stores: dict[str, TokenStore]):
    rows, numbers = held_out_windows(stores, LENGTH, 4)
    assert rows.dtype == np.int32
    assert rows.shape[1] == LENGTH + 1
    long_enough = [
        store.document(k) for store in stores.values() for k in range(store.info.num_documents) if len(store.document(k)) > LENGTH
    ]
    assert len(long_enough) == 5
    assert np.unique(numbers).tolist() == list(range(5))
    for number, document in enumerate(long_enough):
        mine = rows[numbers == number]
        places = [[i for i in range(len(document) - LENGTH) if (document[i : i + LENGTH + 1] == row).all()] for row in mine]
        assert all(len(found) == 1 for found in places), "a window that is not inside its document"
        starts = [found[0] for found in places]
        assert starts[0] == 0
        assert mine[0, 0] == 256, "the first window begins with the separator"
        assert (mine[:, 1:] != 256).all()
        if len(starts) > 1:
            assert starts[-1] == len(document) - LENGTH - 1, "the last window ends with the document"
            gaps = np.diff(starts)
            assert gaps.max() - gaps.min() <= 1
            assert gaps.min() >= LENGTH, "a token would be scored twice"
    assert np.bincount(numbers).tolist() == [4, 1, 2, 3, 4]


def test_windows_are_the_same_each_time(stores: dict[str, TokenStore]):
    for one, other in zip(held_out_windows(stores, LENGTH, 3), held_out_windows(stores, LENGTH, 3), strict=True):
        np.testing.assert_array_equal(one, other)
    alone, numbers = held_out_windows(stores, LENGTH, 1)
    assert (alone[:, 0] == 256).all()
    assert numbers.tolist() == [0, 1, 2, 3, 4]


def test_bad_input(stores: dict[str, TokenStore]):
    held_out_windows(stores, 300, 2)
    message = r"^no held-out document has 302 tokens; set probes\.length lower, or probes\.path to longer documents$"
    with pytest.raises(ValueError, match=message):
        held_out_windows(stores, 301, 2)
    with pytest.raises(ValueError, match=r"^probes\.perplexity\.windows_per_document=0 must be at least 1$"):
        PerplexityConfig(windows_per_document=0)
