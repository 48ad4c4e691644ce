"""Text to token stores: `prepare` for any RedPajama-like files, `prepare_sample` for the text that ships with rope_lab.

A run works in `<out>.partial`: datatrove tasks turn each input file into a part there (see `steps`), then the parts are merged into
one store per source, in the order of the sorted paths and of the lines in them; so tasks and workers never show in the result. `out`
appears by one rename at the very end, complete or not at all. After an interruption or an error the parts stay, and the same command
goes on from them.

Every store of `out` comes from one run. A file whose lines name several sources feeds several stores; `lines` has the rules.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from rope_lab.data.lines import InputFile, check_source_name, find_inputs, source_of_file
from rope_lab.data.store import StoreInfo, StoreWriter, open_sources
from rope_lab.data.tokenizer import AbstractTokenizer, load_tokenizer, token_dtype

SAMPLE_DIR = Path(__file__).parent / "sample"
# Changes whenever the same text would be stored differently, so that nobody reads a cache of an older layout.
_FORMAT = 1
_MOST_TASKS = 1024
_RECORD = "prepare.json"  # beside the stores: what they were made from
_POLL_SECONDS = 0.25


def prepare(
    inputs: Sequence[str],
    out: str | os.PathLike,
    *,
    tokenizer: str = "bytes",
    workers: int | None = None,
    tasks: int | None = None,
    source: str | None = None,
    skip_bad: bool = False,
    progress: bool = True,
    verbose: bool = False,
) -> dict[str, StoreInfo]:
    """Tokenises text into `out/<source>`, one store per source; does nothing where that was done before.

    Args:
      inputs: files, globs and folders of `.jsonl`, `.jsonl.gz` or `.jsonl.zst`, local or anything fsspec opens.
      out: a local folder (or one all workers share); copy it to a bucket afterwards, stores open from there.
      tokenizer: for `load_tokenizer`.
      workers: processes; None for one per usable core.
      tasks: units of work the files are dealt to; None for one per file, up to 1024.
      source: the source of all lines, or None to find it.
      skip_bad: count lines that cannot be used, per file, and go on; the counts are in `out/prepare.json` and shown in the end.
      progress: show a progress bar and what was skipped, on stderr.
      verbose: let datatrove log.

    Returns:
      What each store holds, by source.

    Raises:
      ValueError: a bad input (named, with its line), a source without documents, `out` holding something else, or a missing package.
    """
    if "://" in str(out):
        raise ValueError(f"out={str(out)!r} must be a local folder: prepare there, then copy the folder to the bucket")
    for name, value in (("workers", workers), ("tasks", tasks)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    try:
        from rope_lab.data import steps
    except ModuleNotFoundError as error:
        raise ValueError(f'prepare needs {str(error.name).partition(".")[0]}: pip install "rope-lab[prepare]"') from None
    if source is not None and source != check_source_name(source):
        raise ValueError(f"{source=} must be made of a-z, 0-9, '_', '-' and '.': try {check_source_name(source)!r}")
    out = Path(out).expanduser().absolute()
    partial = out.with_name(f"{out.name}.partial")
    loaded = load_tokenizer(tokenizer)
    files = find_inputs(inputs)
    order = {
        "format": _FORMAT,
        "tokenizer": loaded.name,
        "tokenizer_fingerprint": loaded.fingerprint,
        "source": source,
        "skip_bad": skip_bad,
        "inputs": [[file.name, file.size, file.digest] for file in files],
    }
    parts = {file.index: partial / "parts" / _key(order, file) for file in files}
    console = Console(stderr=True, quiet=not progress)
    ran = False
    if partial.exists() or not _occupied(out):
        with _lock(partial, console):
            if not _occupied(out):
                todo = [file for file in files if not parts[file.index].exists()]
                if todo:
                    tasks = min(tasks or _MOST_TASKS, len(todo))
                    executor = steps.LocalExecutor(
                        [steps.LineReader(todo, source, skip_bad), steps.PartWriter(loaded.name, parts, partial / "progress")],
                        tasks=tasks,
                        workers=min(workers or os.cpu_count() or 1, tasks),
                        logging_dir=str(partial / "logs"),
                        verbose=verbose,
                    )
                    with _progress_bar(files, parts, partial / "progress", console):
                        executor.run()
                _merge(files, parts, partial / "merged", order, loaded)
                (partial / "merged").replace(out)
                ran = True
            _remove(partial)
    _check_same(out, order)
    if not ran:
        console.print(f"{out} is prepared already: nothing to do", soft_wrap=True)
    for path, count in skipped_lines(out).items():
        console.print(f"{path}: {count} bad lines skipped", soft_wrap=True)
    return {name: store.info for name, store in open_sources(out).items()}


def prepare_sample(
    tokenizer: str = "bytes",
    out: str | os.PathLike | None = None,
    *,
    workers: int | None = None,
    progress: bool = True,
    verbose: bool = False,
) -> Path:
    """Prepares the shipped sample: `train/` with book, encyclopedia, play and speech, and `eval/` with the held-out book.

    Done once for each tokenizer; callers at the same time wait for the first.

    Args:
      tokenizer: for `load_tokenizer`.
      out: where to; None for rope_lab's cache (`$XDG_CACHE_HOME/rope_lab`, else `~/.cache/rope_lab`).
      workers, progress, verbose: as for `prepare`.

    Returns:
      The folder that holds `train` and `eval`.

    Raises:
      ValueError: as for `prepare`.
    """
    loaded = load_tokenizer(tokenizer)
    files = {split: sorted(SAMPLE_DIR.glob(f"{split}_*.jsonl.zst")) for split in ("train", "eval")}
    if out is None:
        content = hashlib.sha256(f"{_FORMAT} {loaded.fingerprint}".encode())
        for file in files["train"] + files["eval"]:
            content.update(file.read_bytes())
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "rope_lab" / f"sample-{Path(loaded.name).stem}-{content.hexdigest()[:16]}"
        if all((folder / split / _RECORD).exists() for split in files):
            return folder
    else:
        folder = Path(out).expanduser().absolute()
    # The held-out file's own name, eval_book, keeps it from being taken for a source to train on; here its folder says as much.
    for split, source in (("train", None), ("eval", "book")):
        inputs = [str(file) for file in files[split]]
        prepare(inputs, folder / split, tokenizer=loaded.name, workers=workers, source=source, progress=progress, verbose=verbose)
    return folder


def skipped_lines(out: str | os.PathLike) -> dict[str, int]:
    """How many bad lines each input file of a prepared folder had, for those that had any."""
    return json.loads((Path(out) / _RECORD).read_text())["skipped_lines"]


def _key(order: dict, file: InputFile) -> str:
    """The name of a file's part: what it is made from and how."""
    how = [order["format"], order["tokenizer_fingerprint"], order["source"], order["skip_bad"], file.path, file.size, file.digest]
    return hashlib.sha256(json.dumps(how).encode()).hexdigest()[:24]


def _occupied(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _lock(partial: Path, console: Console) -> IO:
    """Holds `partial` against other processes until the file is closed; whoever held it before may have removed it meanwhile."""
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            file = (partial / "lock").open("a")
        except FileNotFoundError:
            continue
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"waiting for another process that works in {partial}", soft_wrap=True)
            fcntl.lockf(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(partial / "lock").st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()


def _remove(partial: Path) -> None:
    """Removes what a run put into `partial`, and the folder where nothing else is in it."""
    for name in ("parts", "progress", "logs", "merged"):
        shutil.rmtree(partial / name, ignore_errors=True)
    (partial / "lock").unlink()
    with contextlib.suppress(OSError):
        partial.rmdir()


def _merge(files: Sequence[InputFile], parts: dict[int, Path], merged: Path, order: dict, tokenizer: AbstractTokenizer) -> None:
    """Joins the parts to one store per source, in the order of the files.

    Raises:
      ValueError: there is no document, or none of the source a file stands for.
    """
    shutil.rmtree(merged, ignore_errors=True)
    made = {file.index: json.loads((parts[file.index] / "part.json").read_text()) for file in files}
    sources = sorted({source for part in made.values() for source in part["sources"]})
    for file in files:
        name = order["source"] or source_of_file(file.path)
        if not made[file.index]["sources"] and name not in sources:
            skipped = made[file.index]["bad_lines"]
            raise ValueError(f"source {name!r} is empty: {file.path} has no documents ({skipped} bad lines skipped); leave the file out")
    for source in sources:
        with StoreWriter(merged / source, source=source, tokenizer=tokenizer) as writer:
            for file in files:
                if source in made[file.index]["sources"]:
                    tokens = np.memmap(parts[file.index] / f"{source}.tokens", token_dtype(tokenizer.vocab_size), "r")
                    writer.append(tokens, np.fromfile(parts[file.index] / f"{source}.lengths", np.int64))
    skipped = {file.path: made[file.index]["bad_lines"] for file in files if made[file.index]["bad_lines"]}
    record = {"sources": sources, "skipped_lines": skipped, **order}
    (merged / _RECORD).write_text(json.dumps(record, indent=2) + "\n")


def _check_same(out: Path, order: dict) -> None:
    if not (out / _RECORD).exists():
        raise ValueError(f"out={str(out)!r} holds something else than prepared data (no {_RECORD}): choose another --out")
    held = json.loads((out / _RECORD).read_text())
    remedy = "choose another --out, or remove it first"
    if held["tokenizer_fingerprint"] != order["tokenizer_fingerprint"]:
        raise ValueError(
            f"out={str(out)!r} was prepared with tokenizer={held['tokenizer']!r} ({held['tokenizer_fingerprint'][:8]}), not "
            f"{order['tokenizer']!r} ({order['tokenizer_fingerprint'][:8]}): {remedy}"
        )
    if held["inputs"] != order["inputs"]:
        was, now = (_summary(one["inputs"]) for one in (held, order))
        raise ValueError(f"out={str(out)!r} was prepared from {was}, not from {now}: {remedy}")
    for name in ("source", "skip_bad", "format"):
        if held[name] != order[name]:
            raise ValueError(f"out={str(out)!r} was prepared with {name}={held[name]!r}, not {order[name]!r}: {remedy}")


def _summary(inputs: list[list]) -> str:
    names = [f"{name} ({size} bytes)" for name, size, _ in inputs]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@contextlib.contextmanager
def _progress_bar(files: Sequence[InputFile], parts: dict[int, Path], folder: Path, console: Console) -> Iterator[None]:
    """One bar over all processes: input read, documents, MB of input and tokens per second, those of earlier runs included."""
    from rope_lab.data.steps import read_progress

    shutil.rmtree(folder, ignore_errors=True)
    done = [file for file in files if parts[file.index].exists()]
    counts = [count for file in done for count in json.loads((parts[file.index] / "part.json").read_text())["sources"].values()]
    documents_before, bytes_before = sum(count[0] for count in counts), sum(file.size for file in done)
    texts = ("{task.fields[documents]:,} documents", "{task.fields[megabytes]:,.1f} MB", "{task.fields[rate]:,.0f} tokens/s")
    finished = threading.Event()
    begun = time.monotonic()
    with Progress(TextColumn("preparing"), BarColumn(), TaskProgressColumn(), *map(TextColumn, texts), console=console) as bar:
        task = bar.add_task("", total=sum(file.size for file in files), documents=documents_before, megabytes=0.0, rate=0.0)

        def show() -> None:
            documents, tokens, read = read_progress(folder)
            bar.update(
                task,
                completed=bytes_before + read,
                documents=documents_before + documents,
                megabytes=(bytes_before + read) / 1e6,
                rate=tokens / (time.monotonic() - begun),
            )

        def watch() -> None:
            while not finished.wait(_POLL_SECONDS):
                show()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            finished.set()
            watcher.join()
            show()
