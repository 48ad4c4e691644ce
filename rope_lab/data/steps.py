"""The datatrove pipeline of `prepare`: a reader that refuses bad lines, and a step that turns documents into scratch parts.

A part is a folder with what one input file gave: for each source `<source>.tokens` (the documents' ids end to end, each opened
by the separator) and `<source>.lengths` (int64, tokens per document), and `part.json`. It appears by one rename when its file
was read to the end, so a part that exists is whole, and its name says what it was made from and how. That is what resumes.

Any datatrove executor can run these steps: they share nothing but the file system.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import multiprocess
import numpy as np
from datatrove.data import Document, DocumentsPipeline
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.readers.base import BaseReader
from datatrove.utils.stats import PipelineStats
from loguru import logger

from rope_lab.data.lines import BadLineError, InputFile, parse_line, read_lines, source_of_file
from rope_lab.data.tokenizer import AbstractTokenizer, load_tokenizer, pack_ids

_BATCH_CHARACTERS = 2**22
_BATCH_DOCUMENTS = 1024
_REPORT_SECONDS = 0.2


class LocalExecutor(LocalPipelineExecutor):
    """datatrove's local executor, without its log unless asked for; and no fork of a process that may hold threads of JAX.

    A finished part is the one completion marker, so datatrove's own are not consulted: theirs name tasks, which mean other
    files when a run is resumed with another number of tasks.
    """

    def __init__(self, pipeline: list[PipelineStep], *, tasks: int, workers: int, logging_dir: str, verbose: bool):
        super().__init__(pipeline, tasks=tasks, workers=workers, logging_dir=logging_dir, skip_completed=False)
        self.verbose = verbose

    def run(self) -> None:
        before = multiprocess.get_start_method(allow_none=True)
        multiprocess.set_start_method(self.start_method, force=True)
        self._quieten()
        try:
            super().run()
        finally:
            logger.enable("datatrove")
            multiprocess.set_start_method(before, force=True)

    def _launch_run_for_rank(self, *args, **kwargs) -> PipelineStats:
        self._quieten()
        return super()._launch_run_for_rank(*args, **kwargs)

    def _quieten(self) -> None:
        if not self.verbose:
            logger.disable("datatrove")


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

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
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

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> None:
        if multiprocess.parent_process() is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one of several workers: threads on top of them would only contend
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
        self._making.rename(self._path)


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
        parent = multiprocess.parent_process()
        if parent is not None and not parent.is_alive():
            raise RuntimeError("the process that started this worker is gone; its next run takes over")
        making = self._path.with_suffix(".new")
        making.write_text(json.dumps([self._documents, self._tokens, self._finished_bytes + file_bytes]))
        making.replace(self._path)


def read_progress(folder: Path) -> tuple[int, int, int]:
    """Documents, tokens and bytes of input done by all tasks that report to `folder`."""
    done = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    documents, tokens, read = (sum(column) for column in zip(*done, strict=True)) if done else (0, 0, 0)
    return documents, tokens, read
