"""Counts of distances and positions against loops: over pieces written by hand, and over the batches that a run really serves."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rope_lab.data.distances import PLANTED, longer_pieces, octaves, pairs_by_distance, pieces, trained_distances
from rope_lab.data.pipeline import DataConfig, open_pipeline, stages
from rope_lab.data.retrieval import RetrievalConfig
from rope_lab.data.store import write_store
from rope_lab.data.tokenizer import BytesTokenizer

DOCUMENTS = {"a": [40, 7, 1, 1, 90, 16, 30, 12], "b": [64, 3, 31]}  # tokens with separator: 197 and 98
PLAN = stages(((16, 6), (32, 6)), 128)
"""48 rows of 16 tokens and 24 of 32: twice and once all of `a` (12 and 6 rows), where `b` (6 and 3) has half the share of rows."""

PLANTED_TOO = RetrievalConfig(weight=0.25, num_keys=4, num_values=2, max_records=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for source, lengths in DOCUMENTS.items():
        write_store(path / source, [rng.integers(0, 256, n - 1) for n in lengths], source=source, tokenizer=BytesTokenizer())
    return path


def cut(documents: list[int], length: int) -> Counter:
    """Sizes of the pieces of all rows, token by token."""
    owner = [number for number, tokens in enumerate(documents) for _ in range(tokens)]
    sizes = Counter()
    for first in range(0, (len(owner) - 1) // length * length, length):
        row, size = owner[first : first + length], 0
        for place in range(length):
            size += 1
            if place == length - 1 or row[place + 1] != row[place]:
                sizes[size] += 1
                size = 0
    return sizes


@pytest.mark.parametrize("documents", [*DOCUMENTS.values(), [16, 16, 1], [17, 15], [1] * 40, [33], [50], [5, 27, 1, 16]])
@pytest.mark.parametrize("length", [4, 16, 32])
def test_pieces(documents: list[int], length: int):
    """Documents that end with a row, one token after it, and in the tail that no row reaches."""
    counts = pieces(np.concatenate([[0], np.cumsum(documents)]), length)
    assert counts.shape == (length + 1,)
    expected = cut(documents, length)
    assert {size: int(count) for size, count in enumerate(counts) if count} == dict(expected)
    pairs, positions = Counter(), Counter()
    for size, count in expected.items():
        for query in range(size):
            positions[query] += count
            for key in range(query + 1):
                pairs[query - key] += count
    assert pairs_by_distance(counts).tolist() == [pairs[d] for d in range(length)]
    assert longer_pieces(counts).tolist() == [positions[p] for p in range(length)]


@pytest.mark.parametrize("attend_across_documents", [False, True])
@pytest.mark.parametrize("restart_positions", [False, True])
@pytest.mark.parametrize("planted", [False, True])
def test_counts_are_those_of_the_batches(folder: Path, attend_across_documents: bool, restart_positions: bool, planted: bool):
    """Whole epochs of every source, so that expected counts are counts. With a quarter planted, four thirds as many steps make them."""
    plan = stages(tuple((stage.length, stage.num_steps * 4 // 3) for stage in PLAN), 128) if planted else PLAN
    config = DataConfig(
        path=str(folder),
        weights=(("a", 1.0), ("b", 1.0)),
        attend_across_documents=attend_across_documents,
        restart_positions=restart_positions,
        retrieval=PLANTED_TOO if planted else RetrievalConfig(),
    )
    pipeline = open_pipeline(config)
    pairs, positions, rows = Counter(), Counter(), 0
    dataset = pipeline.dataset(plan)
    for step in range(len(dataset)):
        hashed = dataset[step]
        assert hashed is not None
        batch = hashed.batch
        rows += len(batch.tokens)
        for segments, places in zip(batch.segment_ids.tolist(), batch.positions.tolist(), strict=True):
            positions.update(places)
            for query, segment in enumerate(segments):
                pairs.update(query - key for key in range(query + 1) if segments[key] == segment)
    found = trained_distances(pipeline, plan)
    assert found.total.rows == pytest.approx(rows)
    assert found.total.pairs == pytest.approx(np.array([pairs[d] for d in range(32)]))
    assert found.total.tokens == pytest.approx(np.array([positions[p] for p in range(32)]))
    assert set(found.parts) == {"a", "b", *([PLANTED] if planted else [])}
    for name, share in (("a", 3 / 8), ("b", 3 / 8), (PLANTED, 1 / 4)) if planted else (("a", 1 / 2), ("b", 1 / 2)):
        assert found.parts[name].rows == pytest.approx(share * rows)
    short, long = (stage.rows * stage.num_steps for stage in plan)
    assert found.one_document.pairs.tolist() == [short * max(16 - d, 0) + long * (32 - d) for d in range(32)]
    assert found.one_document.tokens.tolist() == [short * (p < 16) + long for p in range(32)]


def test_shares_of_rows_weigh_the_sources(folder: Path):
    """A source's counts are in proportion to its share, and one left out is not counted."""
    part = {}
    for share in (1.0, 3.0):
        config = DataConfig(path=str(folder), weights=(("a", 1.0), ("b", share)))
        part[share] = trained_distances(open_pipeline(config), PLAN).parts["b"]
    np.testing.assert_allclose(part[3.0].pairs, part[1.0].pairs * (3 / 4) / (1 / 2))
    alone = trained_distances(open_pipeline(DataConfig(path=str(folder), weights=(("a", 1.0), ("b", 0.0)))), PLAN)
    assert set(alone.parts) == {"a"}
    everything = dataclasses.replace(PLANTED_TOO, weight=1.0)
    full = trained_distances(open_pipeline(DataConfig(path=str(folder), retrieval=everything)), PLAN)
    np.testing.assert_allclose(full.total.pairs, full.one_document.pairs)


def test_octaves_cover_every_distance_once():
    for length in (2, 3, 4, 5, 64, 100):
        spans = octaves(length)
        assert [n for first, last in spans for n in range(first, last + 1)] == list(range(1, length))
        assert all(last < 2 * first for first, last in spans)
        assert all(first & (first - 1) == 0 for first, _ in spans)
