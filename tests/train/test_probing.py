"""Probes inside training: when they run, what they leave behind, and that a broken one changes nothing."""

import io
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

import rope_lab.assembly
from rope_lab.assembly import assemble
from rope_lab.commands.train import train_from_config
from rope_lab.config import resolve
from rope_lab.metrics import MetricWriter, read_metrics
from rope_lab.plotting import probe_figure
from rope_lab.runs import probe_results
from rope_lab.train.checkpoint import Checkpoints
from rope_lab.train.loop import Preempted
from rope_lab.train.probing import Probing, keep_result, kept_scalars
from tests.test_metrics import events
from tests.train.runs import config

ARRAYS = {"edges_tokens": np.array([16, 32]), "accuracy": np.array([1.0, 0.5])}


def probing(every_steps: int = 1, every_tokens: int | None = None, **probes) -> Probing:
    settings = {name: {"length": 64, name: {"samples": 4, "edges": (16, 32)}} for name in probes}
    return Probing(probes=probes, settings=settings, draw=probe_figure, every_steps=every_steps, every_tokens=every_tokens)


def fine(params: dict) -> tuple[dict, dict]:
    return {"accuracy": float(params["layer"]["weight"].sum())}, ARRAYS


def broken(params: dict) -> tuple[dict, dict]:
    for inner in params.values():
        inner.clear() if isinstance(inner, dict) else None
    params.clear()
    raise ZeroDivisionError("no\nprompt")


def run(folder: Path, plan: Probing, params: dict) -> tuple[dict[str, float], str]:
    writer, log = MetricWriter(folder), io.StringIO()
    found = plan.run(params, 7, folder, writer, Console(file=log, width=200))
    writer.close()
    return found, log.getvalue()


@pytest.mark.parametrize("every_tokens", [1024, 1500, 2048, 3000, 10_000])
def test_by_tokens_a_run_cut_anywhere_probes_where_the_whole_one_would(every_tokens: int):
    """The rule, slowly: the first step at whose end each multiple of the cadence has been seen."""
    tokens_per_step, last = 1024, 35
    multiples = range(every_tokens, tokens_per_step * last + 1, every_tokens)
    wanted = {next(step for step in range(last + 1) if step * tokens_per_step >= multiple) for multiple in multiples}
    plan = probing(every_steps=3, every_tokens=every_tokens)
    for cut in (0, 1, 9, 10, 11):
        seen = cut * tokens_per_step  # a counter that a checkpoint carries
        due = set()
        for step in range(cut + 1, last + 1):
            if plan.due(step, seen, seen + tokens_per_step):
                due.add(step)
            seen += tokens_per_step
        assert due == {step for step in wanted if step > cut}


def test_by_steps_the_count_of_tokens_does_not_matter():
    plan = probing(every_steps=3)
    assert [step for step in range(1, 11) if plan.due(step, 0, 10**9)] == [3, 6, 9]


def test_a_result_is_kept_with_its_settings_and_shown(tmp_path: Path):
    params = {"layer": {"weight": np.array([1.0, 2.0])}}
    found, log = run(tmp_path, probing(perplexity=fine), params)
    assert (found, log) == ({"probe/perplexity/accuracy": 3.0}, "")
    (line,) = read_metrics(tmp_path)
    assert line.keys() == {"step", "probe/perplexity/accuracy", "probe/perplexity/seconds"}
    assert json.loads((tmp_path / "probes/perplexity/step_00000007.json").read_text()) == {
        "step": 7,
        "scalars": {"accuracy": 3.0},
        "settings": {"length": 64, "perplexity": {"samples": 4, "edges": [16, 32]}},
    }
    (result,) = probe_results(tmp_path, "perplexity")
    assert (result.step, result.scalars) == (7, {"accuracy": 3.0})
    np.testing.assert_equal(result.arrays, ARRAYS)
    images = [(event.step, value.tag) for event in events(tmp_path) for value in event.summary.value if value.HasField("image")]
    assert images == [(7, "probe/perplexity")]


def test_a_probe_that_breaks_is_told_and_the_next_one_runs_on_the_same_parameters(tmp_path: Path):
    params = {"layer": {"weight": np.array([1.0, 2.0])}}
    found, log = run(tmp_path, probing(needle=broken, perplexity=fine), params)
    assert found == {"probe/perplexity/accuracy": 3.0}
    told, after = read_metrics(tmp_path)
    assert told == {"step": 7, "probe/needle/failed": 1, "probe/needle/error": "ZeroDivisionError: no prompt"}
    assert after["probe/perplexity/accuracy"] == 3.0
    assert "probe needle failed at step 7; training goes on\nTraceback (most recent call last)" in log
    assert not (tmp_path / "probes" / "needle").exists()
    tags = {value.tag for event in events(tmp_path) for value in event.summary.value}
    assert tags == {"probe/needle/failed", *(f"probe/perplexity{end}" for end in ("", "/accuracy", "/seconds"))}


@pytest.mark.parametrize(
    "result",
    [
        ({"accuracy": 1.0}, {"accuracy": np.array([{}])}),  # arrays that need a pickle
        ({"accuracy": object()}, {}),  # a scalar that JSON does not know
        ({"accuracy": 1.0}, {"edges_tokens": np.zeros(3), "accuracy": np.zeros(2)}),  # a figure that cannot be drawn
        None,
    ],
)
def test_a_result_that_cannot_be_kept_is_a_failure_too(tmp_path: Path, result):
    found, log = run(tmp_path, probing(needle=lambda params: result), {})
    assert found == {}
    assert read_metrics(tmp_path)[0]["probe/needle/failed"] == 1
    assert "Traceback" in log


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(1), Preempted("SIGTERM")])
def test_an_interrupt_inside_a_probe_is_no_failure_of_it(tmp_path: Path, stop: BaseException):
    def interrupted(params: dict):
        raise stop

    with pytest.raises(type(stop)):
        run(tmp_path, probing(needle=interrupted), {})
    assert read_metrics(tmp_path) == []


def test_kept_scalars_are_those_of_the_same_settings(tmp_path: Path):
    settings = {"length": 64, "path": None, "needle": {"lengths": (32, 64)}}
    assert kept_scalars(tmp_path, "needle", 3, settings) is None
    keep_result(tmp_path, "needle", 3, {"accuracy": 0.5}, ARRAYS, settings)
    assert kept_scalars(tmp_path, "needle", 3, settings) == {"accuracy": 0.5}
    assert kept_scalars(tmp_path, "needle", 4, settings) is None
    assert kept_scalars(tmp_path, "needle", 3, settings | {"length": 32}) is None
    with pytest.raises(ValueError, match="allow_pickle"):
        keep_result(tmp_path, "needle", 3, {"accuracy": 0.7}, {"x": np.array([{}])}, settings)
    assert kept_scalars(tmp_path, "needle", 3, settings) is None  # nothing vouches for arrays that were being replaced


@pytest.mark.slow
def test_training_is_the_same_to_the_last_bit_with_probes_without_and_with_one_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    short = (
        *("--config.train.curriculum=((32, 5),)", "--config.checkpoint.every_steps=1", "--config.checkpoint.keep_last=5"),
        *("--config.probes.every_steps=2", "--config.checkpoint.keep_best=2"),
    )
    with_probes = train_from_config(config(*short), str(tmp_path / "with"))
    without = train_from_config(config(*short[:-1], "--config.probes.names=()"), str(tmp_path / "without"))
    monkeypatch.setattr(rope_lab.assembly, "make_probes", lambda bench, names: dict.fromkeys(names, broken))
    breaking = train_from_config(config(*short), str(tmp_path / "breaking"))

    def trained(folder: Path) -> list[tuple]:
        wanted = ("step", "init/parameters_fingerprint", "train/loss_nats", "train/gradient_norm", "data/batch_hash")
        lines = [line for line in read_metrics(folder) if not any(key.startswith("probe/") for key in line)]
        return [tuple(line.get(key) for key in wanted) for line in lines]

    assert len(trained(without)) == 6
    assert trained(with_probes) == trained(without) == trained(breaking)
    probed = {line["step"]: line for line in read_metrics(with_probes) if "probe/kv_by_distance/accuracy" in line}
    assert list(probed) == [2, 4, 5]
    saved = {int(path.parent.parent.name): json.loads(path.read_text()) for path in with_probes.glob("checkpoints/*/metrics/metrics")}
    best = "probe/kv_by_distance/effective_length_tokens"
    assert saved == {step: {best: line[best]} for step, line in probed.items()}  # and none for step 3, after which no probe ran
    failed = [(line["step"], key) for line in read_metrics(breaking) for key in line if key.endswith("/failed")]
    assert failed == [(step, f"probe/{name}/failed") for step in (2, 4, 5) for name in ("perplexity", "kv_by_distance")]
    assert not [line for line in read_metrics(without) if any(key.startswith("probe/") for key in line)]
    abstract = assemble(resolve(config(*short))).trainable.abstract
    states = {}
    for folder in (with_probes, without, breaking):
        checkpoints = Checkpoints(folder)
        assert checkpoints.steps() == [1, 2, 3, 4, 5]
        states[folder.name] = [jax.device_get(checkpoints.restore(step, abstract)) for step in (3, 4, 5)]
        checkpoints.close()
    jax.tree.map(np.testing.assert_array_equal, states["with"], states["without"])
    jax.tree.map(np.testing.assert_array_equal, states["breaking"], states["without"])
