"""One writer for a run's numbers: a JSON line a step, and TensorBoard beside it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tensorboardX import SummaryWriter


class MetricWriter:
    """Appends scalars to `metrics.jsonl` (`metrics-P.jsonl` in process P > 0) and, in process 0, to TensorBoard.

    Names carry scope and unit: `train/loss_nats`, `probe/kv_by_distance/effective_length_tokens`.

    Args:
      folder: the run folder.
      keep_through: lines of later steps are dropped: the run is about to write them again; -1: start anew.
      process: index of this process.
    """

    def __init__(self, folder: Path, keep_through: int = -1, process: int = 0):
        path = folder / ("metrics.jsonl" if process == 0 else f"metrics-{process}.jsonl")
        if path.exists():
            _drop_after(path, keep_through)
        self._file = path.open("a", buffering=1)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=keep_through + 1) if process == 0 else None

    def write(self, step: int, scalars: Mapping[str, float | int | str]) -> None:
        """Records scalars of one step; strings (fingerprints) go to the JSON line only."""
        self._file.write(json.dumps({"step": step, **scalars}) + "\n")
        if self._board:
            for name, value in scalars.items():
                if not isinstance(value, str):
                    self._board.add_scalar(name, value, step)

    def figure(self, step: int, name: str, figure: Figure) -> None:
        """Shows a figure of one step among TensorBoard's images."""
        if self._board:
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            self._board.add_image(name, np.asarray(canvas.buffer_rgba())[..., :3], step, dataformats="HWC")

    def close(self) -> None:
        """Flushes both files."""
        self._file.close()
        if self._board:
            self._board.close()


def read_metrics(folder: Path) -> list[dict]:
    """The lines of a run's `metrics.jsonl`, oldest first."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _drop_after(path: Path, step: int) -> None:
    kept = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break  # the line that a killed process was writing: nothing whole follows it
        if record["step"] <= step:
            kept.append(line)
    fresh = path.with_suffix(".rewrite")
    fresh.write_text("".join(line + "\n" for line in kept))
    os.replace(fresh, path)
