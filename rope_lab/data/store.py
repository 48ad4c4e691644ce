"""The token store: one source's documents as tokens end to end, with the offset of each, in tensorstore (zarr3).

    <store>/tokens    (num_tokens,) uint16 or uint32: documents end to end, each opened by the separator
    <store>/offsets   (num_documents + 1,) int64: document k is tokens[offsets[k]:offsets[k + 1]]
    <store>/store.json  `StoreInfo`; written last, so a folder without it is not a store

A local folder, `gs://bucket/path` and `s3://bucket/path` open alike.
"""

import dataclasses
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import tensorstore as ts

from rope_lab.data.tokenizer import AbstractTokenizer, pack_ids, token_dtype

SHARD_TOKENS = 2**22
CHUNK_TOKENS = 2**14
_CACHE_BYTES = 100_000_000
_HINT = "prepare one: rope-lab prepare FILES --out"


@dataclass(frozen=True, kw_only=True)
class StoreInfo:
    """What a store holds.

    Attributes:
      source: its name, and that of its folder.
      tokenizer: for `load_tokenizer`.
      tokenizer_fingerprint: sha256 (hex) of the tokenizer's definition.
      vocab_size: number of ids, the separator included.
      separator: the id that opens every document.
      num_tokens, num_documents: separators counted as tokens.
      dtype: of the tokens on disk, "uint16" or "uint32".
      content_hash: sha256 (hex) of tokens and offsets; equal hashes are equal data.
    """

    source: str
    tokenizer: str
    tokenizer_fingerprint: str
    vocab_size: int
    separator: int
    num_tokens: int
    num_documents: int
    dtype: str
    content_hash: str


def _url(path: str | os.PathLike) -> str:
    text = str(path)
    return text.rstrip("/") + "/" if "://" in text else f"file://{Path(text).expanduser().absolute()}/"


@functools.cache
def _context() -> ts.Context:
    """One cache for all stores of a process."""
    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


def _open_array(url: str, **creation) -> ts.TensorStore:
    if creation:
        return ts.open({"driver": "zarr3", "kvstore": url, "metadata": creation}, create=True).result()
    # The data never change under their name, so what is cached need not be checked again.
    spec = {"driver": "zarr3", "kvstore": url, "recheck_cached_data": "open", "recheck_cached_metadata": "open"}
    return ts.open(spec, context=_context(), read=True).result()


class TokenStore:
    """Random access to a store; opened on first use in each process, and picklable.

    Attributes:
      path: as given.
      info: `StoreInfo`.
    """

    def __init__(self, path: str, info: StoreInfo):
        self.path = path
        self.info = info

    @classmethod
    def open(cls, path: str | os.PathLike) -> "TokenStore":
        """Opens the store at a local folder or a `gs://` or `s3://` URL.

        Raises:
          ValueError: there is no store.
        """
        found = ts.KvStore.open(_url(path)).result().read("store.json").result()
        if found.state != "value":
            raise ValueError(f"path={str(path)!r} holds no token store (no store.json); {_HINT} DIR")
        return cls(str(path), StoreInfo(**json.loads(found.value)))

    def __getstate__(self) -> dict:
        return {"path": self.path, "info": self.info}

    @functools.cached_property
    def _tokens(self) -> ts.TensorStore:
        return _open_array(_url(self.path) + "tokens/")

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """int64 (num_documents + 1,): where each document begins, and the end; read on first use."""
        return np.asarray(_open_array(_url(self.path) + "offsets/").read().result())

    def read(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of tokens from anywhere in the store, all requested at once.

        Args:
          starts: int64 (n,), first token of each row.
          length: tokens per row.

        Returns:
          tokens, int32 (n, length); and segment_ids, int32 (n, length): 1 for the document the row begins in, one more after each
          document boundary.

        Raises:
          ValueError: a row reaches outside the store.
        """
        starts = np.asarray(starts, np.int64)
        if starts.size and (starts.min() < 0 or starts.max() + length > self.info.num_tokens):
            worst = int(starts.min() if starts.min() < 0 else starts.max())
            raise ValueError(f"start={worst} with {length=} reaches outside {self.path} of {self.info.num_tokens} tokens: use fewer")
        futures = [self._tokens[start : start + length].read() for start in starts.tolist()]
        segments = np.zeros((len(starts), length), np.int32)
        # Offsets strictly inside a row, (start, start + length): those are where its next documents begin.
        first = np.searchsorted(self.offsets, starts, side="right")
        counts = np.maximum(np.searchsorted(self.offsets, starts + length, side="left") - first, 0)
        rows = np.repeat(np.arange(len(starts)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        segments[rows, self.offsets[first[rows] + within] - starts[rows]] = 1
        tokens = np.empty((len(starts), length), np.int32)
        for row, future in enumerate(futures):
            tokens[row] = future.result()
        return tokens, np.cumsum(segments, axis=1, dtype=np.int32) + 1

    def document(self, index: int) -> np.ndarray:
        """int32 (tokens,): one document, its separator included."""
        start, end = self.offsets[index : index + 2]
        return np.asarray(self._tokens[start:end].read().result()).astype(np.int32)


class StoreWriter:
    """Writes a store in one pass; used as a context, on leaving which it appears, whole, at `path`.

    Args:
      path: a local folder that does not exist yet.
      source: name of the source.
      tokenizer: what the tokens were made with.

    Attributes:
      info: `StoreInfo`, after leaving the context.

    Raises:
      ValueError: `path` exists.
    """

    info: StoreInfo

    def __init__(self, path: str | os.PathLike, *, source: str, tokenizer: AbstractTokenizer):
        self._path = Path(path).absolute()
        if self._path.exists():
            raise ValueError(f"path={str(path)!r} exists already: remove it or write elsewhere")
        self._making = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self._source, self._tokenizer = source, tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)

    def __enter__(self) -> "StoreWriter":
        shutil.rmtree(self._making, ignore_errors=True)
        self._making.mkdir(parents=True)
        self._array = self._create("tokens", self._dtype)
        self._hash = hashlib.sha256()
        self._lengths: list[np.ndarray] = []
        self._shard = np.empty(SHARD_TOKENS, self._dtype)
        self._filled = self._written = 0
        return self

    def append(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Adds documents.

        Args:
          tokens: integers (sum of lengths,), the documents end to end, each with its separator.
          lengths: integers (documents,), at least 1 each.

        Raises:
          ValueError: an id does not fit the vocabulary.
        """
        assert int(lengths.sum()) == len(tokens)
        self._lengths.append(np.array(lengths, np.int64))
        for begin in range(0, len(tokens), SHARD_TOKENS):
            block = pack_ids(np.asarray(tokens[begin : begin + SHARD_TOKENS]), self._tokenizer.vocab_size)
            self._hash.update(block.tobytes())
            taken = min(len(block), SHARD_TOKENS - self._filled)
            self._shard[self._filled : self._filled + taken] = block[:taken]
            self._filled += taken
            if self._filled == SHARD_TOKENS:
                self._flush()
                self._shard[: len(block) - taken] = block[taken:]
                self._filled = len(block) - taken

    def _create(self, name: str, dtype: np.dtype) -> ts.TensorStore:
        inner = {"chunk_shape": [CHUNK_TOKENS], "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}]}
        return _open_array(
            _url(self._making / name),
            shape=[0],
            data_type=dtype.name,
            chunk_grid={"name": "regular", "configuration": {"chunk_shape": [SHARD_TOKENS]}},
            codecs=[{"name": "sharding_indexed", "configuration": inner}],
        )

    def _flush(self) -> None:
        """Writes the shard in hand, grown by just that much."""
        end = self._written + self._filled
        self._array = self._array.resize(exclusive_max=[end], expand_only=True).result()
        self._array[self._written : end].write(self._shard[: self._filled]).result()
        self._written, self._filled = end, 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            shutil.rmtree(self._making)
            return
        if self._filled:
            self._flush()
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        array = self._create("offsets", offsets.dtype)
        array.resize(exclusive_max=[len(offsets)], expand_only=True).result().write(offsets).result()
        self._hash.update(offsets.tobytes())
        self.info = StoreInfo(
            source=self._source,
            tokenizer=self._tokenizer.name,
            tokenizer_fingerprint=self._tokenizer.fingerprint,
            vocab_size=self._tokenizer.vocab_size,
            separator=self._tokenizer.separator,
            num_tokens=self._written,
            num_documents=len(lengths),
            dtype=self._dtype.name,
            content_hash=self._hash.hexdigest(),
        )
        (self._making / "store.json").write_text(json.dumps(dataclasses.asdict(self.info), indent=2) + "\n")
        self._making.rename(self._path)


def write_store(path: str | os.PathLike, documents: Iterable[np.ndarray], *, source: str, tokenizer: AbstractTokenizer) -> StoreInfo:
    """Writes documents of ids, opening each with the separator.

    Args:
      path: a local folder that does not exist yet.
      documents: integers (tokens,) each, without separator.
      source: name of the source.
      tokenizer: what they were encoded with.

    Raises:
      ValueError: `path` exists, or an id does not fit the vocabulary.
    """
    with StoreWriter(path, source=source, tokenizer=tokenizer) as writer:
        for ids in documents:
            writer.append(np.concatenate([[tokenizer.separator], ids]), np.array([len(ids) + 1]))
    return writer.info


def open_sources(folder: str | os.PathLike) -> dict[str, TokenStore]:
    """Opens every store of a data folder, by source name, sorted.

    Args:
      folder: a local folder with one store per source; or the URL of one that `rope-lab prepare` made and was copied there whole
        (its `prepare.json` names the sources, so that no bucket has to be listed).

    Raises:
      ValueError: there is no store, or they were made with different tokenizers.
    """
    if "://" in str(folder):
        found = ts.KvStore.open(_url(folder)).result().read("prepare.json").result()
        names = json.loads(found.value)["sources"] if found.state == "value" else []
        paths = [f"{str(folder).rstrip('/')}/{name}" for name in names]
    else:
        paths = [str(path.parent) for path in Path(folder).expanduser().glob("[!.]*/store.json")]
    stores = {store.info.source: store for store in map(TokenStore.open, sorted(paths))}
    if not stores:
        raise ValueError(f"folder={str(folder)!r} holds no token store; {_HINT} {folder}")
    first = next(iter(stores.values()))
    for store in stores.values():
        if store.info.tokenizer_fingerprint != first.info.tokenizer_fingerprint:
            raise ValueError(
                f"folder={str(folder)!r} mixes tokenizers: {first.info.source} is {first.info.tokenizer!r} and {store.info.source} "
                f"{store.info.tokenizer!r}; {_HINT} DIR, all with one --tokenizer"
            )
    return stores
