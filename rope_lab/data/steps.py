"""The datatrove pipeline of `prepare`: a reader that refuses bad lines, and a step that turns documents into scratch parts.

A part is a folder with what one input file gave: for each source `<source>.tokens` (the documents' ids end to end, each opened
by the separator) and `<source>.lengths` (int64, tokens per document), and `part.json`. It appears by one rename when its file
was read to the end, so a part that exists is whole, and its name says what it was made from and how. That is what resumes.

Any datatrove executor can run these steps: they share nothing but the file system.
"""

import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import BinaryIO

import numpy as np
from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.readers.base import BaseReader
from loguru import logger

from rope_lab.data.lines import BadLineError, InputFile, parse_line, read_lines, source_of_file
from rope_lab.data.tokenizer import AbstractTokenizer, load_tokenizer, pack_ids

_BATCH_CHARACTERS = 2**20
_BATCH_DOCUMENTS = 1024
_REPORT_SECONDS = 0.2


class LocalExecutor(LocalPipelineExecutor):
    """datatrove's local executor with a pool of its own, and without its log unless asked for.

    datatrove's pool waits for ever for a worker that was killed (out of memory, most often), and after a `kill -9` of the command
    leaves processes behind. A finished part is the one completion marker; datatrove's name tasks, which mean other files when a
    run is resumed with another number of tasks.

    Args:
      pipeline: the steps.
      tasks: units of work.
      workers: processes; one works in this process.
      logging_dir: where datatrove keeps statistics and logs.
      verbose: let it log to stderr as well.
    """

    def __init__(self, pipeline: list[PipelineStep], *, tasks: int, workers: int, logging_dir: str, verbose: bool):
        super().__init__(pipeline, tasks=tasks, workers=workers, logging_dir=logging_dir, skip_completed=False)
        self.verbose = verbose

    def run(self) -> None:
        """Runs all tasks; the first error ends the others.

        Raises:
          ValueError: from a step, or a worker was killed.
        """
        if self.workers == 1:
            _set_log(self.verbose)
            try:
                for rank in range(self.tasks):
                    self._run_for_rank(rank)
            finally:
                _set_log(True)
            return
        # Not "fork": this process may hold threads, JAX's among them, which a fork would leave locked.
        context = multiprocessing.get_context("forkserver")
        others = set(multiprocessing.active_children())
        with ProcessPoolExecutor(self.workers, context, initializer=_start_worker, initargs=(self.verbose,)) as pool:
            try:
                for done in as_completed([pool.submit(self._run_for_rank, rank) for rank in range(self.tasks)]):
                    done.result()
            except BaseException as error:
                # The pool would let the other tasks finish; and one whose worker dies while it starts the next forgets that next one.
                for worker in set(multiprocessing.active_children()) - others:
                    worker.terminate()
                if not isinstance(error, BrokenProcessPool):
                    raise
                reason = "one was killed, most likely for want of memory; give the same command with fewer --workers"
                raise ValueError(f"workers={self.workers}: {reason}") from None


def _set_log(on: bool) -> None:
    (logger.enable if on else logger.disable)("datatrove")


def _start_worker(verbose: bool) -> None:
    _set_log(verbose)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one of several workers: threads on top of them would only contend
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose command was killed would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class LineReader(BaseReader):
    """Reads files of JSON lines into documents, and stops at the first bad one.

    datatrove's own `JsonlReader` logs a broken line and a cut archive and goes on. The last document of a file is empty and
    marked `end`: what follows knows that the file was read to its end, and how many bad lines were left out.

    Args:
      files: what to read; task `rank` of `world_size` takes every world_size-th, the largest first.
      source: the source of all lines, or None to find it.
      skip_bad: count a bad line and go on.
    """

    name = "lines of RedPajama"

    def __init__(self, files: Sequence[InputFile], source: str | None, skip_bad: bool):
        super().__init__()
        self.files = sorted(files, key=lambda file: -file.size)
        self.source = source
        self.skip_bad = skip_bad

    def run(self, data: Iterator[Document] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for file in self.files[rank::world_size]:
            yield from self.read_file(file)

    def read_file(self, file: InputFile) -> Iterator[Document]:
        """The documents of one file, in order, then the marked one."""
        default, bad, position = source_of_file(file.path), 0, 0

        def on_read(total: int) -> None:
            nonlocal position
            position = total

        for number, line in enumerate(read_lines(file.path, on_read), start=1):
            if not line.strip():
                continue
            try:
                text, named = parse_line(line, file.path, number)
            except BadLineError:
                if not self.skip_bad:
                    raise
                bad += 1
                continue
            about = {"index": file.index, "source": self.source or named or default, "bytes": position}
            yield Document(text=text, id=f"{file.path}:{number}", metadata=about)
        yield Document(text="", id=f"{file.path}:end", metadata={"index": file.index, "bytes": file.size, "end": True, "bad": bad})


class PartWriter(PipelineStep):
    """Tokenises documents and writes one part per input file.

    Args:
      tokenizer: for `load_tokenizer`; each process loads its own.
      parts: the folder of every file's part, by the file's index.
      progress: folder in which each task keeps a file of what it has done, for `read_progress`.
    """

    name = "tokenise"
    type = "rope_lab"

    def __init__(self, tokenizer: str, parts: dict[int, Path], progress: Path):
        super().__init__()
        self.tokenizer = tokenizer
        self.parts = parts
        self.progress = progress

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> None:
        tokenizer = load_tokenizer(self.tokenizer)
        report = _Report(self.progress / f"{rank:05d}.json")
        part: _Part | None = None
        batch: list[Document] = []
        characters = 0
        for document in data:
            part = part or _Part(self.parts[document.metadata["index"]])
            ended = document.metadata.get("end", False)
            if not ended:
                batch.append(document)
                characters += len(document.text)
            if batch and (ended or characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS):
                tokens = part.write(batch, tokenizer)
                report.add(len(batch), tokens)
                batch, characters = [], 0
            report.show(document.metadata["bytes"], ended)
            if ended:
                part.commit(document.metadata["bad"])
                part = None


class _Part:
    """A part being written, beside the place where it will appear."""

    def __init__(self, path: Path):
        self._path = path
        self._making = path.with_name(f".{path.name}.{os.getpid()}")
        shutil.rmtree(self._making, ignore_errors=True)
        self._making.mkdir(parents=True)
        self._files: dict[str, tuple[BinaryIO, BinaryIO]] = {}
        self._counts: dict[str, list[int]] = {}

    def write(self, documents: Sequence[Document], tokenizer: AbstractTokenizer) -> int:
        """Appends documents to their sources; returns the number of tokens, separators included."""
        written = 0
        opening = np.array([tokenizer.separator], np.int32)
        for document, ids in zip(documents, tokenizer.encode_batch([document.text for document in documents]), strict=True):
            source = document.metadata["source"]
            if source not in self._files:
                self._files[source] = ((self._making / f"{source}.tokens").open("wb"), (self._making / f"{source}.lengths").open("wb"))
                self._counts[source] = [0, 0]
            tokens, lengths = self._files[source]
            tokens.write(pack_ids(np.concatenate([opening, ids]), tokenizer.vocab_size).tobytes())
            lengths.write(np.int64(len(ids) + 1).tobytes())
            self._counts[source][0] += 1
            self._counts[source][1] += len(ids) + 1
            written += len(ids) + 1
        return written

    def commit(self, bad_lines: int) -> None:
        for tokens, lengths in self._files.values():
            tokens.close()
            lengths.close()
        (self._making / "part.json").write_text(json.dumps({"sources": self._counts, "bad_lines": bad_lines}))
        try:
            self._making.rename(self._path)
        except OSError:  # a worker that outlived a killed run may have finished the same file: its part is the same
            if not self._path.exists():
                raise
            shutil.rmtree(self._making)


class _Report:
    """What a task has done so far, in a small file rewritten a few times a second."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._documents = self._tokens = self._finished_bytes = 0
        self._due = 0.0

    def add(self, documents: int, tokens: int) -> None:
        self._documents += documents
        self._tokens += tokens

    def show(self, file_bytes: int, ended: bool) -> None:
        if ended:
            self._finished_bytes += file_bytes
            file_bytes = 0
        now = time.monotonic()
        if now < self._due and not ended:
            return
        self._due = now + _REPORT_SECONDS
        making = self._path.with_suffix(".new")
        making.write_text(json.dumps([self._documents, self._tokens, self._finished_bytes + file_bytes]))
        making.replace(self._path)


def read_progress(folder: Path) -> tuple[int, int, int]:
    """Documents, tokens and bytes of input done by all tasks that report to `folder`."""
    done = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    documents, tokens, read = (sum(column) for column in zip(*done, strict=True)) if done else (0, 0, 0)
    return documents, tokens, read
