"""Sweeps: what is trained, in which order, and what is refused. Processes here are stand-ins that end when they are told to."""

import io
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import rope_lab.sweep as sweep_module
from rope_lab.__main__ import main
from rope_lab.commands.sweep import SCALES, open_sweep, select
from rope_lab.config import load, resolve
from rope_lab.runs import open_run
from rope_lab.sweep import Run, finished, run_sweep

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
SWEEPS = sorted(path.parent for path in EXPERIMENTS.glob("*/sweep.py"))


class Processes:
    """Stands in for `subprocess.Popen`: every process runs for three looks at it, then exits as `codes` says (0 by default)."""

    def __init__(self):
        self.codes: dict[str, int] = {}
        self.commands: dict[str, list[str]] = {}
        self.events: list[tuple[str, str]] = []
        self.going: set[str] = set()
        self.most_at_once = 0

    def __call__(self, command: list[str], **streams) -> "Process":
        name = Path(next(word for word in command if word.startswith("--workdir=")).partition("=")[2]).name
        self.commands[name] = command
        self.happened("start", name)
        self.going.add(name)
        self.most_at_once = max(self.most_at_once, len(self.going))
        return Process(self, name)

    def happened(self, what: str, name: str) -> None:
        self.events.append((what, name))

    def names(self, what: str) -> list[str]:
        return [name for kind, name in self.events if kind == what]


class Process:
    def __init__(self, processes: Processes, name: str):
        self.processes, self.name, self.looks, self.pid, self.returncode = processes, name, 0, os.getpid(), None

    def poll(self) -> int | None:
        self.looks += 1
        if self.looks == 3:
            self.returncode = self.processes.codes.get(self.name, 0)
            self.processes.happened("end", self.name)
            self.processes.going.discard(self.name)
        return self.returncode

    def terminate(self) -> None:
        self.processes.happened("terminate", self.name)

    def wait(self) -> None:
        self.processes.happened("wait", self.name)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    stand_in = Processes()
    monkeypatch.setattr(sweep_module, "subprocess", SimpleNamespace(Popen=stand_in, STDOUT=subprocess.STDOUT))
    monkeypatch.setattr(sweep_module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(sweep_module, "_shares", lambda jobs: [()] * jobs)  # this process must not be pinned
    return stand_in


def short(name: str, *overrides: str, start: str | None = None) -> Run:
    return Run(name=name, config="configs/tiny.py", overrides=("train.curriculum=((32, 4),)", *overrides), start=start)


def go(runs: list[Run], workdir: Path, jobs: int = 1) -> tuple[list[str], str]:
    """The names that `run_sweep` returns, and what it printed."""
    printed = io.StringIO()
    failed = run_sweep(runs, workdir, jobs, Console(file=printed, width=300))
    return [run.name for run in failed], printed.getvalue()


def test_a_run_waits_for_the_one_it_starts_from(processes: Processes, tmp_path: Path):
    runs = [short("child", start="parent"), short("grandchild", start="child"), short("parent"), short("other"), short("last")]
    failed, printed = go(runs, tmp_path, jobs=2)
    assert failed == []
    assert processes.names("start") == ["parent", "other", "child", "last", "grandchild"]
    assert processes.events.index(("end", "parent")) < processes.events.index(("start", "child"))
    assert processes.events.index(("end", "child")) < processes.events.index(("start", "grandchild"))
    assert processes.most_at_once == 2
    assert "5/5  grandchild" in printed


def test_one_at_a_time_is_in_the_order_given(processes: Processes, tmp_path: Path):
    go([short("b"), short("a"), short("c", start="a")], tmp_path)
    assert processes.names("start") == ["b", "a", "c"]
    assert processes.most_at_once == 1


def test_a_failed_run_takes_those_that_wait_for_it_with_it_and_no_other(processes: Processes, tmp_path: Path):
    processes.codes["parent"] = 3
    runs = [short("parent"), short("child", start="parent"), short("grandchild", start="child"), short("other")]
    failed, printed = go(runs, tmp_path)
    assert failed == ["parent", "child", "grandchild"]
    assert processes.names("start") == ["parent", "other"]
    assert f"failed with 3: parent; see {tmp_path / 'parent'}.log" in printed
    assert "1/4  other" in printed


def test_a_run_is_the_train_command_with_its_overrides_and_its_start(processes: Processes, tmp_path: Path):
    go([short("parent"), short("child", "rotary.base=1e6", start="parent")], tmp_path / "new")
    common = ["-m", "rope_lab", "train", "--config=configs/tiny.py"]
    child = [f"--workdir={tmp_path / 'new' / 'child'}", "--config.train.curriculum=((32, 4),)", "--config.rotary.base=1e6"]
    assert processes.commands["child"][1:] == [*common, *child, f"--config.init.from={tmp_path / 'new' / 'parent'}"]
    assert processes.commands["parent"][1:] == [*common, f"--workdir={tmp_path / 'new' / 'parent'}", child[1]]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"parent.log", "child.log"}


def test_an_interrupt_ends_the_processes_and_waits_for_them(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_module.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go([short("a"), short("b"), short("c")], tmp_path, jobs=2)
    assert processes.events == [("start", "a"), ("start", "b"), ("terminate", "a"), ("terminate", "b"), ("wait", "a"), ("wait", "b")]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([short("a"), short("b"), short("a")], "the sweep names 'a' twice"),
        ([short("a", start="b")], "run 'a' starts from 'b', which is not in the sweep: select it as well"),
    ],
)
def test_names_that_cannot_be(processes: Processes, tmp_path: Path, runs: list[Run], message: str):
    with pytest.raises(ValueError, match=f"^{message}$"):
        go(runs, tmp_path)
    assert processes.events == []


def test_a_run_is_finished_when_its_last_step_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved: list[int] = []
    monkeypatch.setattr(sweep_module, "checkpoint_steps", lambda folder: saved)
    run = short("run")
    assert not finished(run, tmp_path)
    open_run(str(tmp_path / "run"), load(run.config, run.flags(tmp_path)))
    assert not finished(run, tmp_path)
    saved.append(2)
    assert not finished(run, tmp_path)
    saved.append(4)
    assert finished(run, tmp_path)


def test_what_is_finished_is_not_trained_again(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sweep_module, "checkpoint_steps", lambda folder: [4] if folder.name == "parent" else [2])
    runs = [short("parent"), short("child", start="parent")]
    for run in runs:
        open_run(str(tmp_path / run.name), load(run.config, run.flags(tmp_path)))
    _, printed = go(runs, tmp_path)
    assert processes.names("start") == ["child"]
    assert printed.startswith("2 runs, 1 of them done; 1 at a time in ")


def test_a_folder_with_another_config_is_refused_before_anything_starts(processes: Processes, tmp_path: Path):
    held = short("run", "rotary.base=1e2")
    open_run(str(tmp_path / "run"), load(held.config, held.flags(tmp_path)))
    with pytest.raises(ValueError, match=r"holds a run with another config: rotary.base is 100.0 there, 1000000.0 here"):
        go([short("first"), short("run", "rotary.base=1e6")], tmp_path)
    assert processes.events == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin a process to cores")
@pytest.mark.parametrize(("cores", "jobs", "shares"), [({3, 5, 7}, 2, [(3, 7), (5,)]), ({3, 5}, 1, [(3, 5)]), ({3}, 2, [(), ()])])
def test_runs_share_the_cores(monkeypatch: pytest.MonkeyPatch, cores: set[int], jobs: int, shares: list[tuple[int, ...]]):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    assert sweep_module._shares(jobs) == shares


# --- the command ---------------------------------------------------------------------------------------------------------------------


def test_selected_runs_bring_what_they_start_from_in_the_sweeps_order():
    runs = [short("start_1"), short("middle_1", start="start_1"), short("start_2"), short("end_1", start="middle_1"), short("end_2")]
    assert [run.name for run in select(runs, "end_1")] == ["start_1", "middle_1", "end_1"]
    assert [run.name for run in select(runs, "*_2")] == ["start_2", "end_2"]
    assert select(runs, "*") == runs
    with pytest.raises(ValueError, match=r"^--only='no\*' matches no run; they are start_1, middle_1, start_2, end_1, end_2$"):
        select(runs, "no*")


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    folder = tmp_path / "07_question"
    folder.mkdir()
    (folder / "sweep.py").write_text(
        "from rope_lab.sweep import Run\n\n\n"
        "def sweep(scale):\n"
        "    if scale == 'paper':\n"
        "        return []\n"
        "    short = ('train.curriculum=((32, 4),)',)\n"
        "    return [\n"
        "        Run(name='a', config='configs/tiny.py', overrides=short),\n"
        "        Run(name='b', config='configs/tiny.py', overrides=short, start='a'),\n"
        "        Run(name='c', config='configs/tiny.py', overrides=short),\n"
        "    ]\n"
    )
    return folder


def test_the_command_trains_what_is_selected_under_the_experiments_name(
    processes: Processes, experiment: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(experiment.parent)
    assert main(["sweep", str(experiment), "--only=b"]) == 0
    assert processes.names("start") == ["a", "b"]
    assert f"--workdir={Path('runs/07_question/b')}" in processes.commands["b"]


def test_the_command_exits_with_1_when_a_run_fails(processes: Processes, experiment: Path, tmp_path: Path):
    processes.codes["c"] = 1
    assert main(["sweep", str(experiment), f"--workdir={tmp_path / 'runs'}"]) == 1
    assert processes.names("end") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nowhere"], "'nowhere' holds no sweep.py; name an experiment's folder, such as experiments/02_pretrain_base"),
        (["{experiment}", "--scale=paper"], "{experiment}/sweep.py has no runs at --scale=paper"),
        (["{experiment}", "--jobs=0"], "--jobs=0 must be at least 1"),
    ],
)
def test_the_command_says_what_is_wrong(
    processes: Processes, experiment: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
):
    assert main(["sweep", *(flag.format(experiment=experiment) for flag in flags)]) == 2
    assert capsys.readouterr().err == f"rope-lab sweep: {message.format(experiment=experiment)}\n"
    assert processes.events == []


# --- the experiments' own sweeps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("folder", SWEEPS, ids=lambda folder: folder.name)
def test_every_run_of_an_experiment_has_a_config_that_holds_and_a_start_of_its_shape(folder: Path, scale: str, tmp_path: Path):
    runs = open_sweep(folder, scale)
    configs = {run.name: resolve(load(run.config, run.flags(tmp_path))) for run in runs}
    assert len(configs) == len(runs)
    for run in runs:
        if run.start is not None:
            ours, theirs = configs[run.name], configs[run.start]
            assert ours.model == theirs.model
            for field in ("surface", "num_keys", "num_values"):
                assert getattr(ours.data.retrieval, field) == getattr(theirs.data.retrieval, field)
