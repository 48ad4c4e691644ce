"""Reading files of JSON lines: every layout, every archive, and every way a file can be bad."""

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from rope_lab.data.lines import BadLineError, find_inputs, parse_line, read_lines, source_of_file

LINES = [b"first", b"", "gr\u00fcn".encode(), b"x" * 3_000_000, b"last"]
CONTENT = b"\n".join(LINES)


def pack(path: Path, content: bytes, frames: int = 1) -> Path:
    """Writes content as the kind the name says, in one or several frames end to end."""
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    step = -(-len(content) // frames)
    path.write_bytes(b"".join(compress(content[begin : begin + step]) for begin in range(0, len(content), step)))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_lines_come_back(tmp_path: Path, name: str, frames: int, ending: bytes):
    path = pack(tmp_path / name, CONTENT + ending, frames)
    positions = []
    assert list(read_lines(str(path), positions.append)) == LINES
    assert positions == sorted(positions)
    assert positions[-1] == path.stat().st_size


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_cut_archive_is_not_taken_for_a_whole_one(tmp_path: Path, name: str, frames: int, cut: int):
    path = pack(tmp_path / name, CONTENT, frames)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(
        ValueError, match=rf"^{path} is truncated: it ends after \d+ bytes, inside its (gzip|zstd) data; download it again$"
    ):
        list(read_lines(str(path)))


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl.gz", "gzip"), ("a.jsonl.zst", "zstd")])
@pytest.mark.parametrize("damage", ["plain text", "flipped"])
def test_what_is_no_archive_is_refused(tmp_path: Path, name: str, kind: str, damage: str):
    path = pack(tmp_path / name, b"".join(b'{"text": "%d"}\n' % number for number in range(9999)))
    packed = bytearray(path.read_bytes())
    packed[len(packed) // 2 : len(packed) // 2 + 64] = bytes(64)
    path.write_bytes(b'{"text": "never packed"}\n' if damage == "plain text" else packed)
    with pytest.raises(ValueError, match=rf"^{path} is not a {kind} file, or a corrupt one \(.*\): rename it or download it again$"):
        list(read_lines(str(path)))


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ({"text": "t"}, None),
        ({"text": "t", "meta": {"title": "Emma", "source": "Jane Austen"}}, None),
        ({"text": "t", "meta": {"timestamp": "2020", "source": "github"}}, "github"),
        ({"text": "t", "meta": json.dumps({"source": "stackexchange"})}, "stackexchange"),
        ({"text": "t", "meta": "{no json"}, None),
        ({"text": "t", "meta": {"source": "cc/2019-30/en_middle_0053.json.gz/line1"}}, None),
        ({"text": "t", "meta": "{}", "red_pajama_subset": "arxiv"}, "arxiv"),
        ({"text": "t", "meta": {"redpajama_set_name": "RedPajamaCommonCrawl"}}, "common_crawl"),
        ({"text": "t", "meta": {"redpajama_set_name": "RedPajamaStackExchange"}}, "stackexchange"),
        ({"text": "t", "meta": {"redpajama_set_name": "../My Set"}}, "_my_set"),
        ({"raw_content": "t", "url": "u", "source_domain": "d"}, "common_crawl"),
    ],
)
def test_layouts(line: dict, source: str | None):
    assert parse_line(json.dumps(line).encode(), "f.jsonl", 1) == ("t", source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/data/train_book.jsonl.zst", "book"),
        ("/data/eval_book.jsonl.zst", "eval_book"),
        ("/rp/arxiv/arxiv_023827cd.jsonl", "arxiv"),
        ("/rp/common_crawl/2019-30/en_head_0000.json.gz.dedup.classifier.jsonl.zst", "common_crawl"),
        ("/home/github/project/data/mine.jsonl", "mine"),
        ("/data/news-00012-of-01024.jsonl.gz", "news"),
        ("/data/News 3.jsonl", "news"),
        ("/data/c4.jsonl", "c4"),
        ("/data/0003.jsonl", "0003"),
    ],
)
def test_a_file_stands_for_a_source(path: str, source: str):
    assert source_of_file(path) == source


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "a', r"broken JSON line \(Unterminated string"),
        (b'{"text": "\xff"}', r"broken JSON line \('utf-8' codec can't decode"),
        (b"[1]", "line without text"),
        (b'{"txt": "a"}', "line without text"),
        (b'{"text": ""}', "line without text"),
        (b'{"text": 3}', "line without text"),
        (rb'{"text": "\ud800"}', r"text is not Unicode \(surrogates not allowed\)"),
    ],
)
def test_a_bad_line_is_named(line: bytes, problem: str):
    with pytest.raises(BadLineError, match=rf"^f\.jsonl:7: {problem}.*; mend it, or skip such lines with --skip-bad$"):
        parse_line(line, "f.jsonl", 7)


def test_inputs_are_sorted_and_counted_once(tmp_path: Path):
    for name in ("b.jsonl", "a.jsonl.gz", "deep/er/c.json.gz", "notes.txt", "dataset_info.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    files = find_inputs([str(tmp_path / "b.jsonl"), str(tmp_path), str(tmp_path / "*.jsonl*")])
    assert [(file.index, file.path) for file in files] == [
        (0, str(tmp_path / "a.jsonl.gz")),
        (1, str(tmp_path / "b.jsonl")),
        (2, str(tmp_path / "deep/er/c.json.gz")),
    ]


def test_inputs_that_name_nothing_are_refused(tmp_path: Path):
    for given in ("none.jsonl", "*.jsonl", "."):
        with pytest.raises(ValueError, match=r"^input='.*' names no file: give files, globs or folders of .jsonl, .jsonl.gz, .jsonl.zst"):
            find_inputs([str(tmp_path / given)])
    (tmp_path / "a.parquet").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"^input='.*a.parquet' is none of .jsonl, .*: convert it to lines of JSON$"):
        find_inputs([str(tmp_path / "a.parquet")])
