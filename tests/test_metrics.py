"""Numbers of a run: one JSON object a line, cut where a resumed run goes on, and the same scalars for TensorBoard."""

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from tensorboardX.proto.event_pb2 import Event, SessionLog

from rope_lab.metrics import MetricWriter, read_metrics


def written(folder: Path, steps: range, keep_through: int = -1, process: int = 0) -> None:
    writer = MetricWriter(folder, keep_through, process)
    for step in steps:
        writer.write(step, {"train/loss_nats": step / 4, "data/batch_hash": f"{step:08x}"})
    writer.close()


def events(folder: Path) -> list[Event]:
    """What the TensorBoard files hold: TFRecords, each a uint64 length, a checksum, the bytes, a checksum."""
    found = []
    for path in sorted(folder.glob("tensorboard/events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def steps(folder: Path) -> list[int]:
    return [record["step"] for record in read_metrics(folder)]


def test_each_line_is_one_object(tmp_path: Path):
    writer = MetricWriter(tmp_path)
    writer.write(0, {"init/parameters_fingerprint": "0badcafe"})
    writer.write(1, {"train/loss_nats": 2.5, "train/tokens": 4096, "data/batch_hash": "ff\u2028\n"})
    lines = (tmp_path / "metrics.jsonl").read_text().split("\n")  # there before the writer is closed: a killed run loses none
    writer.close()
    assert [json.loads(line) for line in lines[:-1]] == [
        {"step": 0, "init/parameters_fingerprint": "0badcafe"},
        {"step": 1, "train/loss_nats": 2.5, "train/tokens": 4096, "data/batch_hash": "ff\u2028\n"},
    ]
    assert lines[-1] == ""
    assert read_metrics(tmp_path) == [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    ("keep_through", "kept"), [(-1, []), (0, [0]), (3, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4, 5]), (99, [0, 1, 2, 3, 4, 5])]
)
def test_a_resumed_run_keeps_what_it_will_not_write_again(tmp_path: Path, keep_through: int, kept: list[int]):
    written(tmp_path, range(6))
    before = (tmp_path / "metrics.jsonl").read_text().splitlines()
    written(tmp_path, range(100, 102), keep_through)
    after = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert after[:-2] == before[: len(kept)]
    assert steps(tmp_path) == [*kept, 100, 101]
    assert [path.name for path in tmp_path.glob("metrics*")] == ["metrics.jsonl"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_the_line_that_a_killed_process_was_writing_is_dropped(tmp_path: Path, cut: int):
    written(tmp_path, range(4))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "train/loss_nats": 1.0}'[: 3 * cut])
    written(tmp_path, range(4, 6), keep_through=4)
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path):
    written(tmp_path, range(4))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    written(tmp_path, range(4, 6), keep_through=3)
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_tensorboard_gets_every_number_and_no_string(tmp_path: Path):
    written(tmp_path, range(1, 4))
    scalars = [(event.step, value.tag, value.simple_value) for event in events(tmp_path) for value in event.summary.value]
    assert scalars == [(1, "train/loss_nats", 0.25), (2, "train/loss_nats", 0.5), (3, "train/loss_nats", 0.75)]


def test_tensorboard_shows_a_figure_as_it_would_be_saved(tmp_path: Path):
    figure = Figure(figsize=(2, 1), dpi=50, facecolor=(1, 0, 0))
    figure.subplots().plot([1, 2])
    writers = MetricWriter(tmp_path), MetricWriter(tmp_path, process=1)
    for writer in writers:
        writer.figure(3, "probe/needle", figure)
        writer.close()
    ((step, value),) = [(event.step, value) for event in events(tmp_path) for value in event.summary.value]
    assert (step, value.tag) == (3, "probe/needle")
    shown = imread(io.BytesIO(value.image.encoded_image_string))
    figure.savefig(saved := io.BytesIO(), format="png", dpi=50)
    saved.seek(0)
    np.testing.assert_array_equal(shown, imread(saved)[..., :3])
    assert shown[0, 0].tolist() == [1, 0, 0]


def test_a_resumed_run_tells_tensorboard_from_where_to_forget(tmp_path: Path):
    MetricWriter(tmp_path, keep_through=3).close()
    starts = [(event.step, event.session_log.status) for event in events(tmp_path) if event.HasField("session_log")]
    assert starts == [(4, SessionLog.START)]  # readers drop what they hold of step 4 and later


def test_other_processes_write_beside_and_leave_tensorboard_alone(tmp_path: Path):
    written(tmp_path, range(2), process=1)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics-1.jsonl"]
    written(tmp_path, range(5), process=0)
    written(tmp_path, range(2, 3), keep_through=0, process=1)
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics-1.jsonl").read_text().splitlines()] == [0, 2]
    assert steps(tmp_path) == [0, 1, 2, 3, 4]
