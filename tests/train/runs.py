"""Very small training runs, in this process or in one of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rope_lab.config import load
from rope_lab.metrics import read_metrics

SHORT = (
    "--config.model.num_layers=1",
    "--config.model.scan_unroll=1",
    "--config.train.curriculum=((32, 12), (64, 8))",
    "--config.train.tokens_per_step=1024",
    "--config.data.retrieval.max_records=8",
    "--config.optimizer.warmup_steps=4",
    "--config.checkpoint.every_steps=5",
    "--config.probes.every_steps=10",
    "--config.probes.perplexity.windows_per_document=1",
    "--config.probes.kv_by_distance.rows=32",
)


def config(*overrides: str) -> ConfigDict:
    """`configs/tiny.py` cut down to 20 steps of 1,024 tokens."""
    return load("configs/tiny.py", [*SHORT, *overrides])


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["train/loss_nats"]) for line in read_metrics(folder) if "train/loss_nats" in line]


def repeatable(folder: Path) -> list[dict[str, Any]]:
    """A run's metrics without what a clock gave."""
    clocked = ("seconds", "per_second", "wait_share", "mfu")
    return [{key: value for key, value in line.items() if not any(word in key for word in clocked)} for line in read_metrics(folder)]


def command(workdir: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "rope_lab", "train", "--config=configs/tiny.py", f"--workdir={workdir}", *SHORT, *flags]


def start(workdir: Path, *flags: str, devices: int = 1) -> subprocess.Popen:
    """`rope-lab train` in a process of its own with so many CPU devices."""
    xla = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla}
    return subprocess.Popen(command(workdir, *flags), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen, expect: int = 0) -> str:
    """Waits for it, checks its exit code, and returns its standard error."""
    _, errors = process.communicate(timeout=300)
    assert process.returncode == expect, errors
    return errors
