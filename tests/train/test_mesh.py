"""The same training on one device, on eight, and on two processes."""

import json
import socket

import jax
import numpy as np
import pytest

from rope_lab.assembly import assemble, first_state
from rope_lab.commands.train import train_from_config
from rope_lab.config import resolve
from rope_lab.data.pipeline import stages
from rope_lab.train import sharding
from rope_lab.train.checkpoint import Checkpoints
from rope_lab.train.loop import build
from rope_lab.train.sharding import MeshConfig, make_mesh
from rope_lab.train.step import make_train_step
from tests.train.runs import config, finish, losses, start

MESHES = {"fsdp8": ("--config.mesh.fsdp=8",), "fsdp4_tensor2": ("--config.mesh.fsdp=4", "--config.mesh.tensor=2")}


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_device") / "run"
    finish(start(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mesh", sorted(MESHES))
def test_a_mesh_changes_no_loss(one_device, tmp_path, mesh: str):
    folder = train_from_config(config(*MESHES[mesh]), str(tmp_path / "run"))
    ours, theirs = losses(folder), losses(one_device)
    assert [step for step, _ in ours] == list(range(1, 21))
    np.testing.assert_allclose([loss for _, loss in ours], [loss for _, loss in theirs], rtol=1e-5)


def test_parameters_really_are_split():
    assembly = assemble(resolve(config("--config.mesh.fsdp=4", "--config.mesh.tensor=2")))
    state = first_state(assembly)
    query = state.params["layers"]["attention"]["query"]
    assert query.sharding.spec == jax.sharding.PartitionSpec(None, "fsdp", "tensor", None)
    assert query.addressable_shards[0].data.size == query.size // 8
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.shape == query.shape]
    assert len(moments) >= 2
    assert all(leaf.addressable_shards[0].data.size == leaf.size // 8 for leaf in moments)


@pytest.mark.slow
def test_a_checkpoint_of_one_mesh_resumes_on_another(one_device, tmp_path):
    """Stopped on fsdp=8 at step 10, the run goes on with fsdp=4 x tensor=2 and meets the one-device run."""
    eight = assemble(resolve(config("--config.mesh.fsdp=8")))
    other = assemble(resolve(config("--config.mesh.fsdp=4", "--config.mesh.tensor=2")))
    state, _ = steps(eight, first_state(eight), range(10))
    checkpoints = Checkpoints(tmp_path, eight.config.checkpoint)
    checkpoints.save(10, state)
    checkpoints.wait()
    restored = checkpoints.restore(10, other.trainable.abstract)
    checkpoints.close()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), jax.device_get(state))
    assert restored.params["output"].sharding == other.trainable.abstract.params["output"].sharding
    _, after = steps(other, restored, range(10, 20))
    np.testing.assert_allclose(after, [loss for step, loss in losses(one_device) if step > 10], rtol=1e-5)


def steps(assembly, state, numbers: range):
    batches = assembly.pipeline.dataset(assembly.stages)
    train_step = jax.jit(make_train_step(assembly.trainable.graph, assembly.trainable.optimizer, 1))
    found = []
    for number in numbers:
        state, metrics = train_step(state, jax.tree.map(jax.device_put, batches[number].batch))
        found.append(float(metrics["train/loss_nats"]))
    return state, found


@pytest.mark.slow
def test_two_processes_train_on_disjoint_halves_of_the_same_batches(one_device, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folder = tmp_path / "run"
    pair = [start(folder, "--config.mesh.fsdp=2", f"--distributed={address},2,{index}") for index in range(2)]
    for process in pair:
        finish(process)
    np.testing.assert_allclose([loss for _, loss in losses(folder)], [loss for _, loss in losses(one_device)], rtol=1e-5)

    def hashes(path) -> dict[int, int]:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return {line["step"]: int(line["data/batch_hash"], 16) for line in lines if "data/batch_hash" in line}

    whole = hashes(one_device / "metrics.jsonl")
    first, second = hashes(folder / "metrics.jsonl"), hashes(folder / "metrics-1.jsonl")
    assert {step: (first[step] + second[step]) % 2**64 for step in whole} == whole
    assert all(first[step] != second[step] for step in whole)


def test_the_devices_must_be_all_used():
    with pytest.raises(ValueError, match=r"mesh.data=3 x mesh.fsdp=2 x mesh.tensor=1 must equal the 8 devices here"):
        make_mesh(MeshConfig(data=3, fsdp=2))
    assert make_mesh(MeshConfig(fsdp=2)).shape == {"data": 4, "fsdp": 2, "tensor": 1}


def test_what_does_not_divide_is_refused_by_name():
    with pytest.raises(ValueError, match=r"parameter layers.attention.key: axis 'kv_heads' of size 2 cannot be split 8 ways"):
        assemble(resolve(config("--config.mesh.tensor=8")))
    with pytest.raises(ValueError, match=r"gives 8 rows at context length 128, which mesh.data x mesh.fsdp x train.microbatches = 16"):
        assemble(resolve(config("--config.mesh.fsdp=8", "--config.train.microbatches=2", "--config.train.curriculum=((128, 20),)")))


def test_a_large_parameter_is_never_left_whole(monkeypatch):
    assembly = assemble(resolve(config("--config.mesh.fsdp=8")))
    monkeypatch.setitem(sharding.LOGICAL_RULES, "embed", None)
    monkeypatch.setattr(sharding, "LARGE", 1000)
    with pytest.raises(ValueError, match=r"parameter embedding of shape \(832, 64\) would stay whole on every device"):
        build(assembly.trainable.make, assembly.config.optimizer, 20, assembly.mesh)


def test_the_curriculum_is_laid_out_in_steps():
    first, second = stages(((32, 12), (64, 8)), 1024)
    assert (first.rows, first.first_step, second.rows, second.first_step, second.num_steps) == (32, 0, 16, 12, 8)
