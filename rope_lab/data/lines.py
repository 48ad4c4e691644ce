"""Reading RedPajama's files: which files an input names, what their lines hold, which source each line belongs to.

Every problem is reported with the file and, where there is one, the 1-based line number. Nothing is skipped silently: a truncated
or corrupt archive never ends early as if it were complete.

A line's source, the first that applies:

1. the name the caller gave for all of them;
2. SlimPajama: `meta.redpajama_set_name`; RedPajama-1T: `red_pajama_subset`, or `meta.source` where it is one of the seven set
   names (elsewhere `meta.source` is an author, an address, a shard: not a source);
3. RedPajama-V2 (`raw_content`): common_crawl;
4. the folder the file lies in, or the one above, where it bears one of the seven set names (RedPajama-1T as downloaded);
5. the file's name without extensions, a leading `train_` and a trailing shard number: `train_book.jsonl.zst` is book.
   `eval_book` stays eval_book: text held out is never merged into text trained on.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import fsspec

# `.json.gz` is what RedPajama-V2 calls its lines of JSON.
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz")
SET_NAMES = ("common_crawl", "c4", "github", "wikipedia", "book", "arxiv", "stackexchange")
_SLIMPAJAMA_NAMES = {f"redpajama{name.replace('_', '')}": name for name in SET_NAMES}
_CHUNK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file to read.

    Attributes:
      index: its place in the order of the store.
      path: with its protocol where it is not local.
      size: bytes on disk.
      digest: sha256 (hex) of its first and last MiB: with the name and size, what tells one input from another.
    """

    index: int
    path: str
    size: int
    digest: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


class BadLineError(ValueError):
    """A line that cannot be used; the message names the file and the line."""


def find_inputs(inputs: Sequence[str]) -> list[InputFile]:
    """Expands files, globs and folders (searched recursively), in local or fsspec paths, to files sorted by path.

    Raises:
      ValueError: an input names no file, or a file whose name says it holds something else.
    """
    found: dict[str, tuple[fsspec.AbstractFileSystem, int]] = {}
    for given in inputs:
        filesystem, path = fsspec.url_to_fs(given)
        if filesystem.isdir(path):
            paths = [name for name in filesystem.find(path) if name.endswith(SUFFIXES)]
        elif filesystem.isfile(path):
            paths = [path]
        else:
            paths = [name for name in filesystem.glob(path) if filesystem.isfile(name)]
        if not paths:
            raise ValueError(f"input={given!r} names no file: give files, globs or folders of {', '.join(SUFFIXES)}")
        for name in paths:
            full = name if "file" in filesystem.protocol else filesystem.unstrip_protocol(name)
            if not name.endswith(SUFFIXES):
                raise ValueError(f"input={full!r} is none of {', '.join(SUFFIXES)}: convert it to lines of JSON")
            found[full] = (filesystem, filesystem.size(name))
    return [
        InputFile(index=index, path=path, size=found[path][1], digest=_edges_digest(path, found[path][1]))
        for index, path in enumerate(sorted(found))
    ]


def _open(path: str) -> Any:
    """The bytes of a local or fsspec path; a context."""
    return fsspec.open(path, "rb")


def _edges_digest(path: str, size: int) -> str:
    with _open(path) as file:
        head = file.read(_CHUNK_BYTES)
        file.seek(max(size - _CHUNK_BYTES, 0))
        return hashlib.sha256(head + file.read(_CHUNK_BYTES)).hexdigest()


def source_of_file(path: str) -> str:
    """The source of a file's lines where the lines themselves don't say."""
    pure = PurePosixPath(path)
    for folder in (pure.parent.name, pure.parent.parent.name):
        if folder in SET_NAMES:
            return folder
    stem = next(pure.name.removesuffix(suffix) for suffix in sorted(SUFFIXES, key=len, reverse=True) if pure.name.endswith(suffix))
    return check_source_name(re.sub(r"[-_. ]+\d+(-of-\d+)?$", "", stem.removeprefix("train_")) or stem)


def check_source_name(name: str) -> str:
    """A source's name as that of its folder: lower case, and `_` for what a folder's name had better not hold."""
    return re.sub(r"[^a-z0-9_.-]+", "_", name.lower()).lstrip(".") or "_"


def read_lines(path: str, on_read: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """The lines of a plain, gzip or zstd file (by its name), without their newline.

    Args:
      path: a local or fsspec path.
      on_read: called with the number of bytes of the file read so far.

    Raises:
      ValueError: the file is not of the kind its name says, is corrupt, or ends early.
    """
    with _open(path) as file:
        rest = b""
        for block in _unpacked(file, path, on_read):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
        if rest:
            yield rest


def _unpacked(file: Any, path: str, on_read: Callable[[int], None]) -> Iterator[bytes]:
    """Blocks of the content of a file open for reading bytes.

    Archives are followed frame by frame: the libraries' stream readers take a cut zstd file for a whole one.
    """
    kind, new, errors = _kind(path)
    archive, total = None, 0
    while block := file.read(_CHUNK_BYTES):
        total += len(block)
        on_read(total)
        if new is None:
            yield block
        while new is not None and block:
            archive = archive or new()
            try:
                yield archive.decompress(block)
            except errors as error:
                raise ValueError(f"{path} is not a {kind} file, or a corrupt one ({error}): rename it or download it again") from None
            block = archive.unused_data
            archive = None if archive.eof else archive
    if archive is not None or (new is not None and not total):
        raise ValueError(f"{path} is truncated: it ends after {total} bytes, inside its {kind} data; download it again")


def _kind(path: str) -> tuple[str, Callable | None, tuple[type[Exception], ...]]:
    if path.endswith(".gz"):
        return "gzip", lambda: zlib.decompressobj(wbits=31), (zlib.error, gzip.BadGzipFile)
    if not path.endswith(".zst"):
        return "plain", None, ()
    try:
        import zstandard
    except ModuleNotFoundError:
        raise ValueError(f'{path} needs zstandard: pip install "rope-lab[prepare]"') from None
    # Files packed with `zstd --long=31` need a window of 2 GiB to read.
    return "zstd", zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj, (zstandard.ZstdError,)


def parse_line(line: bytes, path: str, number: int) -> tuple[str, str | None]:
    """Text of one line in any of RedPajama's layouts, and the source it names, or None.

    Args:
      line: one JSON object: `text` and `meta` (RedPajama-1T, SlimPajama) or `raw_content` (RedPajama-V2).
      path, number: where it stands, for the message; 1-based.

    Raises:
      BadLineError: broken JSON, no object, no text, or text that is not Unicode.
    """
    try:
        data = json.loads(line)
    except ValueError as error:  # JSONDecodeError, or UnicodeDecodeError for what is not UTF-8
        raise BadLineError(f"{path}:{number}: broken JSON line ({error}); mend it, or skip such lines with --skip-bad") from None
    text = data.get("text", data.get("raw_content")) if isinstance(data, dict) else None
    if not isinstance(text, str) or not text:
        wanted = "no string under 'text' or 'raw_content', or an empty one"
        raise BadLineError(f"{path}:{number}: line without text ({wanted}); mend it, or skip such lines with --skip-bad")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadLineError(f"{path}:{number}: text is not Unicode ({error.reason}); mend it, or skip such lines with --skip-bad") from None
    return text, _source_in(data)


def _source_in(data: dict) -> str | None:
    meta = data.get("meta")
    if isinstance(meta, str):  # RedPajama-1T as loaded through `datasets` holds it as JSON in a string
        try:
            meta = json.loads(meta)
        except ValueError:
            return None
    meta = meta if isinstance(meta, dict) else {}
    for named in (meta.get("redpajama_set_name"), data.get("red_pajama_subset")):
        if isinstance(named, str):
            name = check_source_name(named)
            return _SLIMPAJAMA_NAMES.get(name, name)
    if meta.get("source") in SET_NAMES:
        return meta["source"]
    return "common_crawl" if "raw_content" in data and "text" not in data else None
