"""The token store against a list of documents in memory."""

import dataclasses
import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from rope_lab.data.store import CHUNK_TOKENS, SHARD_TOKENS, StoreWriter, TokenStore, open_sources, write_store
from rope_lab.data.tokenizer import BytesTokenizer, load_tokenizer
from tests.data.texts import TEXTS

TOKENIZER = BytesTokenizer()


class WideTokenizer(BytesTokenizer):
    """Bytes, with more ids than uint16 has."""

    name = "wide"
    vocab_size = 2**16 + 1
    fingerprint = "wide"


def naive_read(documents: list[list[int]], starts: list[int], length: int) -> tuple[list[list[int]], list[list[int]]]:
    """Walks over every token: its row's tokens, and the count of documents met in the row so far."""
    flat = [(token, index) for index, document in enumerate(documents) for token in document]
    tokens, segments = [], []
    for start in starts:
        row = flat[start : start + length]
        tokens.append([token for token, _ in row])
        segments.append([index - row[0][1] + 1 for _, index in row])
    return tokens, segments


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    """Short documents, empty ones (a separator alone) and one longer than an inner chunk; each with its separator."""
    rng = np.random.default_rng(0)
    lengths = [0, 5, 0, 0, 1, *rng.integers(0, 40, 300).tolist(), CHUNK_TOKENS + 7, 3, 0]
    return [[256, *rng.integers(0, 256, length).tolist()] for length in lengths]


@pytest.fixture(scope="module")
def store(documents: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    path = tmp_path_factory.mktemp("store") / "small"
    write_store(path, [np.array(document[1:], np.int64) for document in documents], source="small", tokenizer=TOKENIZER)
    return TokenStore.open(path)


@pytest.mark.parametrize("length", [1, 2, 17, 64, CHUNK_TOKENS + 100])
def test_read_equals_the_naive_loop(store: TokenStore, documents: list[list[int]], length: int):
    last = store.info.num_tokens - length
    starts = [last, 0, 1, 2, *np.random.default_rng(length).integers(0, last + 1, 20).tolist(), last]
    tokens, segment_ids = store.read(np.array(starts), length)
    assert tokens.dtype == segment_ids.dtype == np.int32
    expected_tokens, expected_segments = naive_read(documents, starts, length)
    assert tokens.tolist() == expected_tokens
    assert segment_ids.tolist() == expected_segments


def test_info_and_offsets_are_those_of_the_documents(store: TokenStore, documents: list[list[int]]):
    lengths = [len(document) for document in documents]
    assert store.offsets.tolist() == [0, *np.cumsum(lengths).tolist()]
    assert (store.info.num_tokens, store.info.num_documents) == (sum(lengths), len(lengths))
    assert (store.info.vocab_size, store.info.separator, store.info.dtype, store.info.source) == (257, 256, "uint16", "small")
    assert store.info.tokenizer_fingerprint == TOKENIZER.fingerprint
    assert [store.document(k).tolist() for k in (0, 1, 4, len(documents) - 1)] == [documents[k] for k in (0, 1, 4, -1)]


def test_a_row_outside_the_store_is_refused(store: TokenStore):
    total = store.info.num_tokens
    for start, length in ((-1, 4), (total - 4, 5), (0, total + 1)):
        with pytest.raises(ValueError, match=rf"^start={start} with length={length} reaches outside .* of {total} tokens"):
            store.read(np.array([0, start]), length)


def test_a_store_travels_to_another_process_before_and_after_use(store: TokenStore):
    store.read(np.array([0]), 4)
    copy = pickle.loads(pickle.dumps(store))
    assert vars(copy).keys() == {"path", "info"}
    assert copy.read(np.array([3]), 9)[0].tolist() == store.read(np.array([3]), 9)[0].tolist()


@pytest.mark.parametrize(("tokenizer", "dtype"), [(TOKENIZER, "uint16"), (WideTokenizer(), "uint32")])
def test_more_than_one_shard(tmp_path: Path, tokenizer: BytesTokenizer, dtype: str):
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, tokenizer.vocab_size, SHARD_TOKENS + CHUNK_TOKENS + 5)
    cuts = [0, 11, SHARD_TOKENS - 3, SHARD_TOKENS, SHARD_TOKENS + 2, len(tokens)]
    with StoreWriter(tmp_path / "large", source="large", tokenizer=tokenizer) as writer:
        for begin, end in itertools.pairwise(cuts[:3]):
            writer.append(tokens[begin:end], np.array([end - begin]))
        writer.append(tokens[cuts[2] :], np.diff(cuts[2:]))
    store = TokenStore.open(tmp_path / "large")
    assert store.info == writer.info
    assert store.info.dtype == dtype
    starts = np.array([0, SHARD_TOKENS - 8, SHARD_TOKENS - 16, len(tokens) - 16])
    read, segment_ids = store.read(starts, 16)
    assert read.tolist() == [tokens[start : start + 16].tolist() for start in starts]
    assert segment_ids[1].tolist() == [1] * 5 + [2] * 3 + [3] * 2 + [4] * 6
    layout = json.loads((tmp_path / "large" / "tokens" / "zarr.json").read_text())
    assert layout["data_type"] == dtype
    assert layout["chunk_grid"]["configuration"]["chunk_shape"] == [2**22]
    assert layout["codecs"][0]["name"] == "sharding_indexed"
    assert layout["codecs"][0]["configuration"]["chunk_shape"] == [2**14]


def test_how_documents_were_handed_over_does_not_show(tmp_path: Path):
    tokens, lengths = np.arange(100) % 256, np.array([10, 20, 30, 40])
    with StoreWriter(tmp_path / "once", source="x", tokenizer=TOKENIZER) as once:
        once.append(tokens, lengths)
    with StoreWriter(tmp_path / "thrice", source="x", tokenizer=TOKENIZER) as thrice:
        for piece, length in zip(np.split(tokens, np.cumsum(lengths)[:-1]), lengths, strict=True):
            thrice.append(piece, np.array([length]))
    assert once.info == thrice.info
    with StoreWriter(tmp_path / "other", source="x", tokenizer=TOKENIZER) as other:
        other.append(tokens, lengths[::-1])
    assert other.info.content_hash != once.info.content_hash


@pytest.mark.parametrize("spec", ["bytes", "bpe_8k"])
def test_text_survives_the_store(tmp_path: Path, spec: str):
    tokenizer = load_tokenizer(spec)
    write_store(tmp_path / "texts", tokenizer.encode_batch(TEXTS), source="texts", tokenizer=tokenizer)
    store = TokenStore.open(tmp_path / "texts")
    stored = [store.document(index) for index in range(store.info.num_documents)]
    assert [tokenizer.decode(document[1:]) for document in stored] == TEXTS
    assert {int(document[0]) for document in stored} == {tokenizer.separator}


def test_an_id_that_does_not_fit_leaves_no_store(tmp_path: Path):
    with pytest.raises(ValueError, match=r"^token id 257 does not fit a store of vocab_size=257 \(uint16\)"):
        write_store(tmp_path / "a" / "x", [np.array([1, 2]), np.array([257])], source="x", tokenizer=TOKENIZER)
    assert list((tmp_path / "a").iterdir()) == []
    with pytest.raises(ValueError, match=r"x' holds no token store \(no store.json\); prepare one: rope-lab prepare FILES --out DIR"):
        TokenStore.open(tmp_path / "a" / "x")


def test_a_store_is_never_written_over(tmp_path: Path):
    write_store(tmp_path / "x", [np.array([1])], source="x", tokenizer=TOKENIZER)
    with pytest.raises(ValueError, match=r"x' exists already: remove it or write elsewhere"):
        write_store(tmp_path / "x", [np.array([1])], source="x", tokenizer=TOKENIZER)


def test_open_sources_finds_every_finished_store(tmp_path: Path):
    for source in ("web", "book"):
        write_store(tmp_path / source, [np.array([1])], source=source, tokenizer=TOKENIZER)
    (tmp_path / ".web.123").mkdir()
    (tmp_path / ".web.123" / "store.json").write_text("{}")
    (tmp_path / "unfinished" / "tokens").mkdir(parents=True)
    assert list(open_sources(tmp_path)) == ["book", "web"]
    assert open_sources(tmp_path)["web"].info.source == "web"


def test_open_sources_by_url_goes_by_the_record(tmp_path: Path):
    for source in ("web", "book", "left_out"):
        write_store(tmp_path / source, [np.array([1])], source=source, tokenizer=TOKENIZER)
    (tmp_path / "prepare.json").write_text(json.dumps({"sources": ["web", "book"]}))
    stores = open_sources(f"file://{tmp_path}")
    assert list(stores) == ["book", "web"]
    assert stores["web"].read(np.array([0]), 2)[0].tolist() == [[256, 1]]


def test_a_folder_without_stores_says_what_to_type(tmp_path: Path):
    remedy = rf"^folder='{tmp_path}' holds no token store; prepare one: rope-lab prepare FILES --out {tmp_path}$"
    with pytest.raises(ValueError, match=remedy):
        open_sources(tmp_path)
    with pytest.raises(ValueError, match=r"holds no token store"):
        open_sources(f"file://{tmp_path}")


def test_stores_of_two_tokenizers_do_not_mix(tmp_path: Path):
    write_store(tmp_path / "a", [np.array([1])], source="a", tokenizer=TOKENIZER)
    write_store(tmp_path / "b", [np.array([1])], source="b", tokenizer=WideTokenizer())
    with pytest.raises(ValueError, match=r"mixes tokenizers: a is 'bytes' and b 'wide'; prepare one: .* all with one --tokenizer$"):
        open_sources(tmp_path)


def test_store_info_is_plain_json(store: TokenStore):
    written = json.loads((Path(store.path) / "store.json").read_text())
    assert written == dataclasses.asdict(store.info)
