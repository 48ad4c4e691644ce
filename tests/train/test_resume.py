"""A run that is killed and started again is the run that was not."""

import random
import signal
import time

import pytest

from rope_lab.train.checkpoint import Checkpoints
from tests.train.runs import finish, repeatable, start

BY_TOKENS = "--config.probes.every_tokens=6000"  # steps 6, 12 and 18 of 1,024 tokens, none of which is saved; and the last


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    finish(start(folder, BY_TOKENS))
    return folder


def wait_for_step(folder, step: int) -> None:
    """Until the metrics show this step."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        path = folder / "metrics.jsonl"
        if path.exists() and f'"step": {step},' in path.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} never came")


@pytest.mark.slow
def test_kill_9_at_a_random_step_then_the_same_command_gives_the_same_run(uninterrupted, tmp_path):
    process = start(tmp_path / "run", BY_TOKENS)
    wait_for_step(tmp_path / "run", random.randrange(2, 18))
    process.kill()
    process.communicate()
    finish(start(tmp_path / "run", BY_TOKENS))
    assert repeatable(tmp_path / "run") == repeatable(uninterrupted)  # losses, batch hashes, probes: bit for bit


@pytest.mark.slow
def test_sigterm_saves_the_step_at_hand_and_exits_with_42(uninterrupted, tmp_path):
    process = start(tmp_path / "run", BY_TOKENS)
    wait_for_step(tmp_path / "run", 6)
    process.send_signal(signal.SIGTERM)
    message = finish(process, expect=42)
    saved = Checkpoints(tmp_path / "run").steps()[-1]
    assert f"SIGTERM: step {saved} of 20 is saved" in message
    assert "run the same command to go on" in message
    finish(start(tmp_path / "run", BY_TOKENS))
    assert repeatable(tmp_path / "run") == repeatable(uninterrupted)
