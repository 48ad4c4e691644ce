"""What a run leaves behind, and what it refuses to."""

import json

import numpy as np
import pytest

from rope_lab.commands.train import train_from_config
from rope_lab.config import resolve
from rope_lab.metrics import read_metrics
from rope_lab.train.checkpoint import CheckpointConfig, Checkpoints
from rope_lab.train.loop import TrainingDiverged
from tests.train.runs import config, losses


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train_from_config(config("--config.mesh.fsdp=8"), str(tmp_path_factory.mktemp("finished") / "run"))


@pytest.mark.slow
def test_a_run_learns_and_tells(finished):
    lines = {line["step"]: line for line in read_metrics(finished) if "train/loss_nats" in line}
    assert list(lines) == list(range(1, 21))
    assert lines[20]["train/loss_nats"] < lines[1]["train/loss_nats"] - 0.5
    assert [lines[step]["train/context_length_tokens"] for step in (12, 13)] == [32, 64]
    assert [lines[step]["train/tokens_seen"] for step in (1, 20)] == [1024, 20480]
    assert lines[4]["train/learning_rate"] == pytest.approx(3e-3 * 3 / 4)
    for line in lines.values():
        assert line["train/tokens_per_second"] == pytest.approx(1024 / line["train/step_seconds"])
        full, causal = (line[f"train/model_flops_per_second_per_device_{kind}_attention"] for kind in ("full", "causal"))
        assert full > causal > 0
    probed = [line for line in read_metrics(finished) if "probe/kv_by_distance/effective_length_tokens" in line]
    assert [line["step"] for line in probed] == [10, 20]
    with np.load(finished / "probes" / "perplexity" / "step_00000020.npz") as arrays:
        assert arrays["loss_by_position_nats"].shape == (64,)
    spectrum = json.loads((finished / "spectrum.json").read_text())
    assert spectrum["theta_radians_per_token"] == resolve(config()).rotary.spectrum(32, 64).theta.tolist()


@pytest.mark.slow
def test_only_the_newest_checkpoints_and_the_milestones_are_kept(finished, tmp_path):
    assert Checkpoints(finished).steps() == [15, 20]
    kept = train_from_config(config("--config.checkpoint.keep_every_steps=10", "--config.checkpoint.keep_last=1"), str(tmp_path / "run"))
    assert Checkpoints(kept).steps() == [10, 20]


@pytest.mark.slow
def test_a_finished_run_is_left_alone(finished):
    before = (finished / "metrics.jsonl").read_text()
    train_from_config(config("--config.mesh.fsdp=8"), str(finished))
    assert (finished / "metrics.jsonl").read_text() == before


@pytest.mark.slow
def test_mfu_is_told_in_both_conventions_where_the_peak_is_known(tmp_path):
    run = train_from_config(
        config("--config.train.peak_flops_per_device=1e10", "--config.train.curriculum=((32, 5),)"), str(tmp_path / "run")
    )
    line = read_metrics(run)[2]
    for kind in ("causal", "full"):
        assert line[f"train/mfu_{kind}_attention"] == line[f"train/model_flops_per_second_per_device_{kind}_attention"] / 1e10


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_the_run_and_is_never_saved(tmp_path):
    overrides = ("--config.optimizer.peak_learning_rate=1e30", "--config.optimizer.clip_norm=1e30", "--config.checkpoint.every_steps=1")
    with pytest.raises(TrainingDiverged, match=r"train/(loss_nats|gradient_norm)=(nan|inf) at step \d+: stopped, nothing saved since"):
        train_from_config(config(*overrides), str(tmp_path / "run"))
    assert all(np.isfinite(loss) for _, loss in losses(tmp_path / "run"))
    last_good = losses(tmp_path / "run")[-1][0]
    assert Checkpoints(tmp_path / "run").steps()[-1] == last_good


@pytest.mark.slow
def test_a_fork_starts_from_the_other_runs_parameters(finished, tmp_path):
    fork = train_from_config(
        config(f"--config.init.from={finished}", "--config.rotary.base=1e6", "--config.train.curriculum=((64, 5),)"), str(tmp_path / "run")
    )
    fresh = losses(finished)[0][1]
    assert losses(fork)[0][1] < fresh - 0.5
    assert losses(fork)[0][1] < losses(finished)[-1][1] + 0.5


def test_checkpoint_policies_are_checked():
    with pytest.raises(ValueError, match=r"checkpoint.keep_every_steps=7 must be a multiple of every_steps=5"):
        CheckpointConfig(every_steps=5, keep_every_steps=7)
    with pytest.raises(ValueError, match=r"checkpoint.keep_last=0 must be at least 1"):
        CheckpointConfig(keep_last=0)
