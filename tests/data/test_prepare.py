"""`prepare`: the same store however the work is dealt out or interrupted, and one line for everything that can be wrong."""

import argparse
import contextlib
import gzip
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard

import rope_lab.data
from rope_lab.commands import prepare as command
from rope_lab.data.prepare import SAMPLE_DIR, prepare, skipped_lines
from rope_lab.data.store import TokenStore, open_sources
from rope_lab.data.tokenizer import load_tokenizer
from tests.data.texts import sample_texts


def write_lines(path: Path, lines: Sequence[dict | str]) -> str:
    content = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode()
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compress(content))
    return str(path)


def named(source: str, text: str) -> dict:
    return {"text": text, "meta": {"redpajama_set_name": source}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, list[str]]]:
    """A folder of five files in all layouts, sizes out of order, and what each source's store must hold, in order."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = sample_texts(6)
    write_lines(folder / "0_mixed.jsonl.zst", [named("web" if k % 3 else "book", text) for k, text in enumerate(texts[:9])])
    write_lines(folder / "a" / "train_book.jsonl.gz", [{"text": text, "meta": {"source": "someone"}} for text in texts[9:11]])
    write_lines(folder / "b" / "v2.json.gz", [{"raw_content": text} for text in texts[11:13]])
    write_lines(folder / "c" / "arxiv" / "arxiv_0.jsonl", [{"text": text} for text in texts[13:25]])
    write_lines(folder / "z_mixed.jsonl", [named(("web", "book")[k % 2], text) for k, text in enumerate(texts[25:])])
    expected = {
        "arxiv": texts[13:25],
        "book": [*texts[0:9:3], *texts[9:11], *texts[26::2]],
        "common_crawl": texts[11:13],
        "web": [*(text for k, text in enumerate(texts[:9]) if k % 3), *texts[25::2]],
    }
    return str(folder), expected


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_back(store: TokenStore) -> list[str]:
    tokenizer = load_tokenizer(store.info.tokenizer)
    documents = [store.document(index) for index in range(store.info.num_documents)]
    assert {int(document[0]) for document in documents} == {tokenizer.separator}
    return [tokenizer.decode(document[1:]) for document in documents]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe_8k"])
def test_stores_hold_the_texts_in_the_order_of_paths_and_lines(corpus: tuple[str, dict[str, list[str]]], tmp_path: Path, tokenizer: str):
    folder, expected = corpus
    made = prepare([folder], tmp_path / "out", tokenizer=tokenizer, workers=1, progress=False)
    stores = open_sources(tmp_path / "out")
    assert {source: read_back(store) for source, store in stores.items()} == expected
    assert made == {source: store.info for source, store in stores.items()}
    assert os.listdir(tmp_path) == ["out"]


def test_tasks_and_workers_do_not_show(corpus: tuple[str, dict[str, list[str]]], tmp_path: Path, capfd: pytest.CaptureFixture):
    folder, _ = corpus
    for tasks, workers in ((1, 1), (2, 2), (3, 2), (5, 1)):
        prepare([folder], tmp_path / f"{tasks}", tasks=tasks, workers=workers, progress=False)
    one = files_of(tmp_path / "1")
    assert {"arxiv/store.json", "book/tokens/c/0", "web/offsets/c/0", "prepare.json"} <= one.keys()
    for tasks in (2, 3, 5):
        assert files_of(tmp_path / f"{tasks}") == one
    assert capfd.readouterr() == ("", ""), "nothing of datatrove's log is to be seen"


def test_inputs_off_the_local_disk(tmp_path: Path):
    import fsspec

    fsspec.filesystem("memory").pipe_file("corpus/train_web.jsonl.gz", gzip.compress(b'{"text": "remote"}\n'))
    prepare(["memory://corpus/*.jsonl.gz"], tmp_path / "out", workers=1, progress=False)
    assert read_back(open_sources(tmp_path / "out")["web"]) == ["remote"]


@pytest.mark.parametrize("killed", ["process", "group"])
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str):
    """`kill -9`, of the command alone (its workers outlive it for a moment) or of everything it started."""
    texts = sample_texts(4, 16_000)
    inputs = [write_lines(tmp_path / f"{k}.jsonl", [named("web", text) for text in texts[k % 3 :]]) for k in range(6)]
    prepare(inputs, tmp_path / "whole", tokenizer="bpe_8k", workers=1, progress=False)

    out, partial = tmp_path / "out", tmp_path / "out.partial"
    script = f"from rope_lab.data.prepare import prepare; prepare({inputs}, {str(out)!r}, tokenizer='bpe_8k', workers=2, progress=False)"
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        while not (done := list(partial.glob("parts/[!.]*"))):
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
        (os.kill if killed == "process" else os.killpg)(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        with pytest.raises(ValueError, match="holds no token store"):
            open_sources(out)
        with pytest.raises(ValueError, match="holds no token store"):
            open_sources(partial)

        from rope_lab.data import steps

        read = []
        monkeypatch.setattr(steps, "read_lines", lambda path, on_read, real=steps.read_lines: read.append(path) or real(path, on_read))
        prepare(inputs, out, tokenizer="bpe_8k", workers=1, tasks=2, progress=False)
        assert len(set(read)) == len(read) <= len(inputs) - len(done)
        assert files_of(out) == files_of(tmp_path / "whole")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_nothing_shows_until_the_last_source_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rope_lab.data import prepare as module
    from rope_lab.data import steps

    path = write_lines(tmp_path / "mixed.jsonl", [named("book", "a"), named("web", "b")])

    class Interrupted(module.StoreWriter):
        def __enter__(self) -> module.StoreWriter:
            if self._source == "web":
                raise KeyboardInterrupt
            return super().__enter__()

    with monkeypatch.context() as patch:
        patch.setattr(module, "StoreWriter", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare([path], tmp_path / "out", workers=1, progress=False)
    assert not (tmp_path / "out").exists()
    monkeypatch.delattr(steps, "read_lines")  # no need to read anything again
    assert list(prepare([path], tmp_path / "out", workers=1, progress=False)) == ["book", "web"]


def test_a_killed_worker_does_not_keep_the_command_waiting(tmp_path: Path):
    inputs = [write_lines(tmp_path / f"{k}.jsonl", [{"text": text} for text in sample_texts(4)]) for k in range(4)]

    def kill_one() -> None:
        while not (making := list((tmp_path / "out.partial").glob("parts/.*"))):
            time.sleep(0.01)
        os.kill(int(making[0].suffix[1:]), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(ValueError, match=r"^workers=2: one was killed, most likely for want of memory; give the same command with fewer"):
        prepare(inputs, tmp_path / "out", tokenizer="bpe_8k", workers=2, progress=False)
    killer.join()
    assert multiprocessing.active_children() == []
    prepare(inputs, tmp_path / "out", tokenizer="bpe_8k", workers=1, progress=False)


def test_an_error_mended_goes_on_from_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rope_lab.data import steps

    good = write_lines(tmp_path / "good.jsonl", [{"text": "a longer file is read first"}])
    bad = write_lines(tmp_path / "bad.jsonl", [{"text": "a"}, "{"])
    with pytest.raises(ValueError, match=r"bad.jsonl:2: broken"):
        prepare([good, bad], tmp_path / "out", workers=1, progress=False)
    write_lines(tmp_path / "bad.jsonl", [{"text": "a"}, {"text": "b"}])
    read = []
    monkeypatch.setattr(steps, "read_lines", lambda path, on_read, real=steps.read_lines: read.append(path) or real(path, on_read))
    prepare([good, bad], tmp_path / "out", workers=1, progress=False)
    assert read == [bad]
    assert read_back(open_sources(tmp_path / "out")["bad"]) == ["a", "b"]


def test_parts_made_otherwise_are_not_taken_up(tmp_path: Path):
    good = write_lines(tmp_path / "good.jsonl", [{"text": "a longer file is read first"}])
    bad = write_lines(tmp_path / "bad.jsonl", [{"text": "a"}, "{"])
    for source in (None, "mine"):
        with pytest.raises(ValueError, match=r"bad.jsonl:2: broken"):
            prepare([good, bad], tmp_path / "out", source=source, workers=1, progress=False)
    prepare([good, bad], tmp_path / "out", tokenizer="bpe_8k", skip_bad=True, workers=1, progress=False)
    assert {source: read_back(store) for source, store in open_sources(tmp_path / "out").items()} == {
        "bad": ["a"],
        "good": ["a longer file is read first"],
    }


def test_a_run_waits_for_another_in_the_same_place(tmp_path: Path):
    path = write_lines(tmp_path / "web.jsonl", [{"text": "a"}])
    lock = tmp_path / "out.partial" / "lock"
    lock.parent.mkdir()
    hold = f"import fcntl; file = open({str(lock)!r}, 'a'); fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); input()"
    script = f"from rope_lab.data.prepare import prepare; print(list(prepare([{path!r}], {str(tmp_path / 'out')!r}, workers=1)))"
    pipe = subprocess.PIPE
    with (
        subprocess.Popen([sys.executable, "-c", hold], stdin=pipe, stdout=pipe, text=True) as holder,
        subprocess.Popen([sys.executable, "-c", f"input(); {script}"], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as waiter,
    ):
        assert holder.stdout
        assert waiter.stdin
        assert waiter.stderr
        assert holder.stdout.readline() == "held\n"
        waiter.stdin.write("go\n")
        waiter.stdin.flush()
        assert waiter.stderr.readline() == f"waiting for another process that works in {lock.parent}\n"
        assert not (tmp_path / "out").exists()
        holder.kill()
        assert waiter.communicate(timeout=60)[0] == "['web']\n"
    assert sorted(os.listdir(tmp_path)) == ["out", "web.jsonl"]


def test_a_finished_run_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = write_lines(tmp_path / "train_web.jsonl", [{"text": "a"}])
    first = prepare([path], tmp_path / "out", workers=1, progress=False)
    (tmp_path / "moved").mkdir()
    Path(path).rename(tmp_path / "moved" / "train_web.jsonl")
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in files_of(tmp_path / "out")}
    assert prepare([str(tmp_path / "moved")], tmp_path / "out", workers=1) == first
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in files_of(tmp_path / "out")} == times
    assert capsys.readouterr().err == f"{tmp_path / 'out'} is prepared already: nothing to do\n"


def test_nothing_is_mixed_into_what_is_there(tmp_path: Path):
    path = write_lines(tmp_path / "web.jsonl", [{"text": "a"}])
    other = write_lines(tmp_path / "news.jsonl", [{"text": "a"}])
    prepare([path], tmp_path / "out", workers=1, progress=False)
    before = files_of(tmp_path / "out")
    with pytest.raises(ValueError, match=r"^out='.*out' was prepared with tokenizer='bytes' \(\w{8}\), not 'bpe_8k' \(\w{8}\): choose"):
        prepare([path], tmp_path / "out", tokenizer="bpe_8k", progress=False)
    with pytest.raises(ValueError, match=r"was prepared from web.jsonl \(14 bytes\), not from news.jsonl \(14 bytes\), web.jsonl"):
        prepare([path, other], tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match=r"was prepared with source=None, not 'mine': choose another --out"):
        prepare([path], tmp_path / "out", source="mine", progress=False)
    with pytest.raises(ValueError, match=r"was prepared with skip_bad=False, not True"):
        prepare([path], tmp_path / "out", skip_bad=True, progress=False)
    Path(path).write_text('{"text": "b"}\n')
    with pytest.raises(ValueError, match=r"was prepared from web.jsonl \(14 bytes\), not from web.jsonl \(14 bytes\)"):
        prepare([path], tmp_path / "out", progress=False)
    assert files_of(tmp_path / "out") == before
    with pytest.raises(ValueError, match=r"holds something else than prepared data \(no prepare.json\): choose another --out"):
        prepare([path], tmp_path, progress=False)


BROKEN = [{"text": "a"}, '{"text": "b', {"text": "c"}, {"txt": "d"}, "", {"text": "e"}]


def test_bad_lines_are_skipped_and_counted_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture):
    paths = [write_lines(tmp_path / name, lines) for name, lines in (("one.jsonl.gz", BROKEN), ("two.jsonl", [{"text": "f"}]))]
    prepare(paths, tmp_path / "out", skip_bad=True, source="web", workers=1)
    assert read_back(open_sources(tmp_path / "out")["web"]) == ["a", "c", "e", "f"]
    assert skipped_lines(tmp_path / "out") == {paths[0]: 2}
    assert f"{paths[0]}: 2 bad lines skipped\n" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (zstandard.compress(b'{"text": "a"}\n{"text": "b\n'), r"a.jsonl.zst:2: broken JSON line \(.*\); mend it, or skip such lines"),
        (b'{"text": "never packed"}\n', r"a.jsonl.zst is not a zstd file, or a corrupt one \(.*\): rename it or download it again"),
    ],
    ids=["line", "file"],
)
def test_one_line_reaches_the_user_from_any_process(
    tmp_path: Path, capfd: pytest.CaptureFixture, workers: int, content: bytes, problem: str
):
    good = write_lines(tmp_path / "good.jsonl", [{"text": "fine"}])
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=problem) as caught:
        prepare([good, str(path)], tmp_path / "out", workers=workers, progress=False)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="holds no token store"):
        open_sources(tmp_path / "out.partial")


def test_a_source_without_documents_is_refused(tmp_path: Path):
    full = write_lines(tmp_path / "web.jsonl", [{"text": "a"}])
    empty = write_lines(tmp_path / "news.jsonl", [])
    with pytest.raises(ValueError, match=r"^source 'news' is empty: .*news.jsonl has no documents \(0 bad lines skipped\); leave"):
        prepare([full, empty], tmp_path / "out", workers=1, progress=False)
    write_lines(tmp_path / "news.jsonl", ["{", "}"])
    with pytest.raises(ValueError, match=r"^source 'news' is empty: .* \(2 bad lines skipped\)"):
        prepare([full, empty], tmp_path / "out", skip_bad=True, workers=1, progress=False)
    assert not (tmp_path / "out").exists()
    # An empty shard among others of its source is no empty source.
    shards = [write_lines(tmp_path / f"wiki-{k}.jsonl", lines) for k, lines in enumerate(([], [{"text": "a"}]))]
    assert prepare(shards, tmp_path / "out", workers=1, progress=False)["wiki"].num_documents == 1


def test_arguments_that_cannot_be_meant(tmp_path: Path):
    path = write_lines(tmp_path / "web.jsonl", [{"text": "a"}])
    with pytest.raises(ValueError, match=r"^workers=0 must be at least 1$"):
        prepare([path], tmp_path / "out", workers=0)
    with pytest.raises(ValueError, match=r"^source='My Web' must be made of a-z, 0-9, '_', '-' and '.': try 'my_web'$"):
        prepare([path], tmp_path / "out", source="My Web")
    with pytest.raises(ValueError, match=r"^out='gs://bucket/data' must be a local folder: prepare there, then copy"):
        prepare([path], "gs://bucket/data")


def test_missing_packages_are_named_with_their_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_lines(tmp_path / "web.jsonl.zst", [{"text": "a"}])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(ValueError, match=r'web.jsonl.zst needs zstandard: pip install "rope-lab\[prepare\]"$'):
            prepare([path], tmp_path / "out", workers=1, progress=False)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "rope_lab.data.steps")
        patch.delattr(rope_lab.data, "steps")
        for module in [name for name in sys.modules if name.partition(".")[0] == "datatrove"]:
            patch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=r'^prepare needs datatrove: pip install "rope-lab\[prepare\]"$'):
            prepare([path], tmp_path / "out", workers=1, progress=False)


def test_the_sample_is_prepared_once_by_callers_at_the_same_time(tmp_path: Path):
    script = "from rope_lab.data.prepare import prepare_sample; print(prepare_sample('bytes'))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    callers = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [caller.communicate(timeout=120) for caller in callers]
    assert [caller.returncode for caller in callers] == [0, 0], outputs
    (folder,) = {Path(output.strip()) for output, _ in outputs}
    assert folder.parent == tmp_path / "rope_lab"
    assert sorted(os.listdir(folder)) == ["eval", "train"]
    train, held_out = open_sources(folder / "train"), open_sources(folder / "eval")
    assert {name: store.info.num_documents for name, store in train.items()} == {
        "book": 163,
        "encyclopedia": 262,
        "play": 38,
        "speech": 233,
    }
    assert {name: store.info.num_documents for name, store in held_out.items()} == {"book": 8}
    for split, stores in (("train", train), ("eval", held_out)):
        for source, store in stores.items():
            lines = zstandard.decompress((SAMPLE_DIR / f"{split}_{source}.jsonl.zst").read_bytes()).splitlines()
            assert read_back(store) == [json.loads(line)["text"] for line in lines]


def run_command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_the_command_shows_what_it_made_and_what_to_type_next(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = write_lines(tmp_path / "train_web.jsonl", [{"text": "abc"}, {"text": "de"}])
    assert run_command(path, "--out", str(tmp_path / "out"), "--workers=1") == 0
    shown = capsys.readouterr()
    assert shown.out.endswith(f"next: rope-lab train --config=configs/tiny.py --workdir=runs/first --config.data.path={tmp_path / 'out'}\n")
    row = next(line for line in shown.out.splitlines() if "web" in line)
    assert row.replace("│", " ").split() == ["web", "2", "7", "0.0"]
    assert "100%" in shown.err
    assert "2 documents" in shown.err
    assert "tokens/s" in shown.err


def test_the_command_without_inputs_takes_no_options_about_them(tmp_path: Path):
    with pytest.raises(ValueError, match=r"^source='x' means nothing for the shipped sample: give INPUTS, or leave it out$"):
        run_command("--out", str(tmp_path / "out"), "--source=x")
    assert os.listdir(tmp_path) == []
