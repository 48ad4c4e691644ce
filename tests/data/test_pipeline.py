"""Batches against loops over the stored documents; order, sharing and resuming by equality of everything a batch holds."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import grain
import numpy as np
import pytest

from rope_lab.data.pipeline import LLAMA_WEIGHTS, DataConfig, HashedBatch, Pipeline, Stage, open_pipeline, stages, store_tokenizer
from rope_lab.data.retrieval import RetrievalConfig
from rope_lab.data.store import TokenStore, open_sources, write_store
from rope_lab.data.tokenizer import BytesTokenizer

TOKENIZER = BytesTokenizer()
PLANTED = RetrievalConfig(weight=0.5, num_keys=6, num_values=4, max_records=3)
PLAN = stages(((16, 3), (32, 2), (16, 2)), 128)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of random bytes, in documents of 1 to 60 tokens."""
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for source, count in (("long", 90), ("short", 30)):
        write_store(path / source, [rng.integers(0, 256, n) for n in rng.integers(0, 60, count)], source=source, tokenizer=TOKENIZER)
    return path


def pipeline(folder: Path, **fields) -> Pipeline:
    return open_pipeline(DataConfig(path=str(folder), **fields))


def only(folder: Path, source: str, **fields) -> Pipeline:
    return pipeline(folder, weights=((source, 1.0),), **fields)


def flat(folder: Path, source: str) -> tuple[np.ndarray, np.ndarray]:
    """A store's tokens end to end, and the document that each belongs to."""
    store = TokenStore.open(folder / source)
    documents = [store.document(index) for index in range(store.info.num_documents)]
    return np.concatenate(documents), np.repeat(np.arange(len(documents)), [len(document) for document in documents])


def require_equal(got: HashedBatch, expected: HashedBatch) -> None:
    assert got.hash == expected.hash
    for name, a, b in zip(got.batch._fields, got.batch, expected.batch, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=name)


def differ(one: HashedBatch, other: HashedBatch) -> list[str]:
    """Names of the arrays that differ."""
    return [name for name, a, b in zip(one.batch._fields, one.batch, other.batch, strict=True) if not np.array_equal(a, b)]


# Rows: functions of (seed, stage, index)


def test_any_order_of_asking_gives_the_same_batches(folder: Path):
    first = pipeline(folder, retrieval=PLANTED).dataset(PLAN)
    batches = [first[step] for step in range(len(first))]
    again = pipeline(folder, retrieval=PLANTED).dataset(PLAN)
    for step in reversed(range(len(again))):
        require_equal(again[step], batches[step])
        require_equal(again[step], batches[step])
    assert len({hashed.hash for hashed in batches}) == len(batches)


_IN_ANOTHER_PROCESS = """
import sys
from rope_lab.data.pipeline import DataConfig, open_pipeline, stages
from rope_lab.data.retrieval import RetrievalConfig
retrieval = RetrievalConfig(weight=0.5, num_keys=6, num_values=4, max_records=3)
dataset = open_pipeline(DataConfig(path=sys.argv[1], retrieval=retrieval)).dataset(stages(((16, 3), (32, 2), (16, 2)), 128))
for step in (6, 0, 3):
    batch, fingerprint = dataset[step]
    print(step, fingerprint, *(array.tobytes().hex() for array in batch))
"""


def test_another_process_gives_the_same_batches(folder: Path):
    command = [sys.executable, "-c", _IN_ANOTHER_PROCESS, str(folder)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    dataset = pipeline(folder, retrieval=PLANTED).dataset(PLAN)
    assert len(lines) == 3
    for line in lines:
        step, fingerprint, *arrays = line.split()
        batch, expected = dataset[int(step)]
        assert int(fingerprint) == expected
        assert arrays == [array.tobytes().hex() for array in batch]


def test_seed_and_stage_choose_other_rows(folder: Path):
    names = {seed: only(folder, "long", seed=seed).row_names(PLAN[0]) for seed in (0, 1)}
    assert [names[0][r].tolist() for r in range(40)] != [names[1][r].tolist() for r in range(40)]
    of_stage = {stage.index: only(folder, "long").row_names(stage) for stage in (PLAN[0], PLAN[2])}  # both of context length 16
    assert [of_stage[0][r].tolist() for r in range(40)] != [of_stage[2][r].tolist() for r in range(40)]


def test_records_depend_on_seed_and_stage_and_row(folder: Path):
    """The text rows being equal, records still differ: the reserved ids of a batch are compared, not its text."""
    all_planted = dataclasses.replace(PLANTED, weight=1.0)

    def reserved(seed: int, step: int, row: int) -> tuple:
        tokens = pipeline(folder, seed=seed, retrieval=all_planted).dataset(PLAN)[step].batch.tokens[row]
        return tuple((place, token) for place, token in enumerate(tokens.tolist()) if token > 256)

    base = reserved(0, 0, 0)
    assert base
    assert all(base != other for other in (reserved(1, 0, 0), reserved(0, 5, 0), reserved(0, 1, 0), reserved(0, 0, 1)))


@pytest.mark.parametrize(
    ("fields", "array"),
    [
        ({"attend_across_documents": True}, "segment_ids"),
        ({"restart_positions": True}, "positions"),
        ({"retrieval": dataclasses.replace(PLANTED, answer_loss_weight=2.0)}, "weights"),
    ],
)
def test_the_hash_sees_every_array(folder: Path, fields: dict, array: str):
    plain, other = (pipeline(folder, **{"retrieval": PLANTED, **more}).dataset(PLAN)[0] for more in ({}, fields))
    assert differ(plain, other) == [array]
    assert plain.hash != other.hash


# Sharing, resuming


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_halves_are_the_whole(folder: Path, processes: int):
    made = pipeline(folder, retrieval=PLANTED)
    whole = made.dataset(PLAN)
    parts = [made.dataset(PLAN, process, processes) for process in range(processes)]
    sums = []
    for step in range(len(whole)):
        shares = [part[step] for part in parts]
        sums.append(sum(share.hash for share in shares))
        batch = whole[step].batch
        joined = [np.concatenate(arrays) for arrays in zip(*(share.batch for share in shares), strict=True)]
        require_equal(HashedBatch(type(batch)(*joined), sums[-1] % 2**64), whole[step])
        rows = [{row.tobytes() for row in share.batch.tokens} for share in shares]
        assert sum(map(len, rows)) == len(set.union(*rows)) == len(batch.tokens)
    assert max(sums) >= 2**64, "no sum wrapped: nothing was learnt about the modulus"


def test_rows_that_processes_cannot_share_are_refused(folder: Path):
    with pytest.raises(ValueError, match=r"^8 rows a step at context length 16 cannot be shared by 3 processes$"):
        pipeline(folder).dataset(PLAN, 0, 3)


@pytest.mark.parametrize("done", [1, 3, 4, 6])
def test_resuming_is_slicing(folder: Path, done: int):
    whole = pipeline(folder, retrieval=PLANTED).dataset(PLAN)
    rest = pipeline(folder, retrieval=PLANTED).dataset(PLAN)[done:]
    assert len(whole) == 7
    assert len(rest) == 7 - done
    iterated = list(rest.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)))
    for offset, batch in enumerate(iterated):
        require_equal(batch, whole[done + offset])
    assert len(iterated) == len(rest)


def test_stages_follow_each_other(folder: Path):
    dataset = pipeline(folder).dataset(PLAN)
    assert [dataset[step].batch.tokens.shape for step in range(7)] == [(8, 16)] * 3 + [(4, 32)] * 2 + [(8, 16)] * 2
    for stage in PLAN:
        alone = pipeline(folder).dataset((stage,))
        require_equal(dataset[stage.first_step + 1], alone[1])


def test_an_iterator_restored_anywhere_goes_on_alike(folder: Path):
    dataset = pipeline(folder, retrieval=PLANTED).dataset(PLAN).to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
    grain.experimental.assert_equal_output_after_checkpoint(dataset)


# Which rows


def test_an_epoch_visits_every_row_once_and_the_next_in_another_order(folder: Path):
    tokens, _ = flat(folder, "short")
    stage = Stage(index=0, length=16, rows=5, first_step=0, num_steps=1000)
    starts = {tokens[start : start + 16].tobytes(): start for start in range(0, len(tokens) - 16, 16)}
    count = (len(tokens) - 1) // 16
    assert len(starts) == count
    assert count % 5, "an epoch that ends inside a step is the harder case"
    dataset = only(folder, "short").dataset((stage,))
    rows = [row for step in range(-(-2 * count // 5)) for row in dataset[step].batch.tokens]
    visited = [starts[row.tobytes()] for row in rows[: 2 * count]]
    assert sorted(visited[:count]) == sorted(visited[count:]) == list(range(0, 16 * count, 16))
    assert visited[:count] != visited[count:]
    assert visited[:count] != sorted(visited[:count])


def shares(made: Pipeline, rows: int) -> dict[tuple[int, int], float]:
    """(planted or not, number of the source) -> its share of the first rows."""
    names = made.row_names(PLAN[0])
    kinds = [tuple(names[row][:2].tolist()) for row in range(rows)]
    return {kind: kinds.count(kind) / rows for kind in set(kinds)}


def test_weights_are_obeyed(folder: Path):
    assert shares(pipeline(folder, weights=(("short", 3.0), ("long", 1.0))), 400) == {
        (0, 0): pytest.approx(0.25, abs=0.01),
        (0, 1): pytest.approx(0.75, abs=0.01),
    }
    sizes = [len(flat(folder, source)[0]) for source in ("long", "short")]
    assert shares(pipeline(folder), 400) == {(0, i): pytest.approx(size / sum(sizes), abs=0.01) for i, size in enumerate(sizes)}
    assert shares(pipeline(folder, weights=(("short", 0.0), ("long", 1.0))), 50) == {(0, 0): 1.0}


def test_planted_rows_have_their_share_of_each_source(folder: Path):
    retrieval = dataclasses.replace(PLANTED, weight=0.3)
    got = shares(pipeline(folder, weights=(("short", 0.8), ("long", 0.2)), retrieval=retrieval), 1000)
    expected = {(0, 0): 0.7 * 0.2, (0, 1): 0.7 * 0.8, (1, 0): 0.3 * 0.2, (1, 1): 0.3 * 0.8}
    assert got == {kind: pytest.approx(share, abs=0.01) for kind, share in expected.items()}
    assert set(shares(pipeline(folder, retrieval=dataclasses.replace(PLANTED, weight=1.0)), 100)) == {(1, 0), (1, 1)}


def test_each_row_comes_from_the_source_it_names(folder: Path):
    texts = [flat(folder, source)[0].astype(np.int32).tobytes() for source in ("long", "short")]
    made = pipeline(folder, weights=(("short", 0.5), ("long", 0.5)))
    names, batch = made.row_names(PLAN[0]), made.dataset(PLAN)[1].batch
    for row, tokens in enumerate(batch.tokens):
        _, source, place = names[8 + row].tolist()
        assert texts[source][4 * 16 * place :].startswith(tokens.tobytes())


def test_llama_proportions():
    assert sum(weight for _, weight in LLAMA_WEIGHTS) == pytest.approx(1)
    assert dict(LLAMA_WEIGHTS)["common_crawl"] == 0.67


def test_one_row_a_step(folder: Path):
    made = pipeline(folder)
    whole = made.dataset((Stage(0, 16, 4, 0, 2),))
    single = made.dataset((Stage(0, 16, 1, 0, 8),))
    rows = [single[step].batch.tokens for step in range(len(single))]
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate([whole[0].batch.tokens, whole[1].batch.tokens]))


# How rows are laid out


@pytest.mark.parametrize("attend_across_documents", [False, True])
@pytest.mark.parametrize("restart_positions", [False, True])
def test_layout_equals_the_naive_loop(folder: Path, attend_across_documents: bool, restart_positions: bool):
    tokens, document_of = flat(folder, "long")
    made = only(folder, "long", attend_across_documents=attend_across_documents, restart_positions=restart_positions)
    stage = Stage(index=0, length=64, rows=6, first_step=0, num_steps=5)
    names, dataset = made.row_names(stage), made.dataset((stage,))
    documents_met = 0
    for index in range(30):
        batch = dataset[index // 6].batch
        row = index % 6
        start = 64 * int(names[index][2])
        segment_ids, positions, segment, position = [], [], 1, 0
        for place in range(start, start + 64):
            if place > start and document_of[place] != document_of[place - 1]:
                segment += 1
                position = 0 if restart_positions else position
            segment_ids.append(1 if attend_across_documents else segment)
            positions.append(position)
            position += 1
        assert batch.tokens[row].tolist() == tokens[start : start + 64].tolist()
        assert batch.targets[row].tolist() == tokens[start + 1 : start + 65].tolist()
        assert batch.segment_ids[row].tolist() == segment_ids
        assert batch.positions[row].tolist() == positions
        assert (batch.weights[row] == 1).all()
        documents_met = max(documents_met, segment)
    assert documents_met >= 3
    assert [array.dtype for array in batch] == [np.int32] * 4 + [np.float32]


def test_a_planted_row_is_one_document(folder: Path):
    made = pipeline(folder, restart_positions=True, retrieval=PLANTED)
    names, batch = made.row_names(PLAN[1]), made.dataset((PLAN[1],))[0].batch
    planted = np.array([names[row][0] for row in range(4)], bool)
    assert planted.any()
    assert (batch.segment_ids[planted] == 1).all()
    assert (batch.positions[planted] == np.arange(32)).all()
    assert (batch.segment_ids[~planted] > 1).any()


def test_reserved_ids_are_counted_and_used(folder: Path):
    assert pipeline(folder).vocab_size == 257
    made = pipeline(folder, retrieval=dataclasses.replace(PLANTED, weight=1.0))
    assert made.vocab_size == 257 + 6 * 4 + 6 + 4
    seen = np.unique([made.dataset(PLAN)[step].batch.targets for step in range(3)])
    assert seen.max() == made.vocab_size - 1


# What is refused


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((("books", 1.0), ("long", 1.0)), r"^data\.weights names books, but the data folder has long, short$"),
        ((("short", -1.0), ("long", 2.0)), r"^data\.weights=\(.*-1\.0.*\) must be non-negative shares with a positive sum$"),
        ((("short", float("nan")), ("long", 2.0)), r"^data\.weights=\(.*nan.*\) must be non-negative shares with a positive sum$"),
        ((("short", float("inf")), ("long", 2.0)), r"^data\.weights=\(.*inf.*\) must be non-negative shares with a positive sum$"),
        ((("short", 0.0), ("long", 0.0)), r"^data\.weights=\(.*\) must be non-negative shares with a positive sum$"),
        ((("long", 1.0), ("long", 1.0)), r"^data\.weights=\(.*\) names a source twice$"),
    ],
)
def test_bad_weights(folder: Path, weights: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        pipeline(folder, weights=weights)


def test_a_source_shorter_than_a_row(tmp_path: Path):
    write_store(tmp_path / "tiny", [np.zeros(31, np.int64)], source="tiny", tokenizer=TOKENIZER)
    made = pipeline(tmp_path)
    made.check(Stage(0, 31, 1, 0, 1))
    assert made.dataset((Stage(0, 31, 1, 0, 1),))[0].batch.targets[0, -1] == 0
    with pytest.raises(ValueError, match=r"^source 'tiny' has 32 tokens, too few for one row of 32 and its target$"):
        made.check(Stage(0, 32, 1, 0, 1))


@pytest.mark.parametrize(("surface", "fits"), [("token", 2), ("pair", 3), ("text", 26)])
def test_a_context_too_short_for_a_record(folder: Path, surface: str, fits: int):
    made = pipeline(folder, retrieval=dataclasses.replace(PLANTED, surface=surface, weight=1.0))
    made.check(Stage(0, fits, 1, 0, 1))
    assert set(made.dataset((Stage(0, fits, 1, 0, 1),))[0].batch.weights[0]) == {0, 8}  # record, query and answer fill the row
    message = rf"^context length {fits - 1} is too short for a '{surface}' record, its query and its answer$"
    with pytest.raises(ValueError, match=message):
        made.check(Stage(0, fits - 1, 1, 0, 1))


@pytest.mark.parametrize(
    ("curriculum", "message"),
    [
        ((), r"^train\.curriculum=\(\) must name at least one \(context length, steps\) stage$"),
        (((1, 5),), r"^train\.curriculum stage \(1, 5\) must be \(context length of at least 2, at least 1 step\)$"),
        (((16, 5), (32, 0)), r"^train\.curriculum stage \(32, 0\) must be "),
        (((16, 5), (48, 5)), r"^train\.tokens_per_step=128 must be a multiple of the context length 48$"),
    ],
)
def test_bad_curriculum(curriculum: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        stages(curriculum, 128)


def test_stages_are_laid_end_to_end():
    assert list(PLAN) == [Stage(0, 16, 8, 0, 3), Stage(1, 32, 4, 3, 2), Stage(2, 16, 8, 5, 2)]


def test_stores_and_tokenizer_must_agree(folder: Path):
    stores = open_sources(folder)
    assert store_tokenizer(stores).name == "bytes"
    changed = {name: TokenStore(store.path, dataclasses.replace(store.info, tokenizer_fingerprint="old")) for name, store in stores.items()}
    with pytest.raises(ValueError, match=r"^tokenizer 'bytes' has changed since the stores were made with it; prepare them anew"):
        store_tokenizer(changed)
    with pytest.raises(ValueError, match=r"^the stores were made with different tokenizers: bytes, bytes; prepare them anew$"):
        store_tokenizer({"long": stores["long"], "short": changed["short"]})
