"""What comes with rope_lab: each config says what it asks and costs, resolves, and is the size its name says."""

import math
from functools import partial
from pathlib import Path

import jax
import pytest

from rope_lab.config import Config, load, resolve
from rope_lab.data.pipeline import stages
from rope_lab.model.flops import parameter_count, train_flops_per_token
from rope_lab.model.llama import Llama
from rope_lab.train.loop import Trainable, build
from rope_lab.train.sharding import LARGE, make_mesh

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(path.name for path in FOLDER.glob("*.py"))


def resolved(name: str, *overrides: str) -> Config:
    return resolve(load(str(FOLDER / name), [f"--config.{override}" for override in overrides]))


def trainable(config: Config) -> Trainable:
    last = stages(config.train.curriculum, config.train.tokens_per_step)[-1]
    return build(partial(Llama, config.model, config.rotary), config.optimizer, last.first_step + last.num_steps, make_mesh(config.mesh))


def tokens(config: Config) -> int:
    return config.train.tokens_per_step * sum(steps for _, steps in config.train.curriculum)


@pytest.mark.parametrize("name", FILES)
def test_a_config_opens_with_question_command_cost_and_expectation(name: str):
    text = (FOLDER / name).read_text()
    header = text.split('"""')[1].splitlines()
    assert text.startswith('"""')
    assert header[0].partition(".")[0].endswith("?") or "?" in header[0]
    said = [line.split()[0] for line in header[1:] if line[:1].strip()]
    assert said[:4] == ["Question", "Command", "Cost", "Expect"]
    assert all(len(line.split()) > 3 for line in header[1:] if line[:1].strip())
    assert f"rope-lab train --config=configs/{name} --workdir=runs/" in text


@pytest.mark.parametrize("name", FILES)
def test_the_commands_in_the_header_give_configs_that_resolve(name: str):
    commands = [line for line in (FOLDER / name).read_text().split('"""')[1].splitlines() if "rope-lab train" in line]
    assert commands
    for command in commands:
        overrides = [word.removeprefix("--config.") for word in command.split() if word.startswith("--config.")]
        assert overrides
        assert isinstance(resolved(name, *overrides), Config)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("llama_60m.py", 55e6, 65e6), ("llama_350m.py", 330e6, 385e6), ("llama_2b.py", 2.1e9, 2.2e9), ("llama_7b.py", 6.6e9, 6.8e9)],
)
def test_parameters_are_as_many_as_the_name_says(name: str, least: float, most: float):
    config = resolved(name, "mesh.fsdp=1")
    shapes = trainable(config).abstract.params
    assert least < parameter_count(shapes) < most
    M, V, L, F = config.model.hidden_size, config.model.vocab_size, config.model.num_layers, config.model.mlp_size
    assert parameter_count(shapes) == 2 * V * M + L * (4 * M * M + 3 * M * F + 2 * M) + M


@pytest.mark.parametrize("mesh", [("mesh.fsdp=8",), ("mesh.fsdp=4", "mesh.tensor=2"), ("mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2")])
@pytest.mark.parametrize("name", ["llama_2b.py", "llama_7b.py"])
def test_no_large_array_of_a_large_model_lies_whole_on_a_device(name: str, mesh: tuple[str, ...]):
    config = resolved(name, *mesh)
    state = trainable(config).abstract
    ways = config.mesh.fsdp * config.mesh.tensor
    large = [leaf for leaf in jax.tree.leaves((state.params, state.opt_state)) if math.prod(leaf.shape) > LARGE]
    assert len(large) == 3 * 9  # seven matrices of a layer, two embeddings; and both of Adam's moments of each
    for leaf in large:
        assert math.prod(leaf.sharding.shard_shape(leaf.shape)) * ways == math.prod(leaf.shape)
    whole = [leaf for leaf in jax.tree.leaves(state) if leaf.sharding.is_fully_replicated]
    assert sum(math.prod(leaf.shape) for leaf in whole) < 100


def test_the_2b_is_the_papers():
    config = resolved("llama_2b.py")
    model = config.model
    assert (model.num_layers, model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim) == (32, 2048, 16, 16, 128)
    assert (model.mlp_size, model.vocab_size, model.tie_embeddings) == (5504, 125_696, False)
    assert not model.query_key_norm
    assert not model.attention_bias
    assert [length for length, _ in config.train.curriculum] == [4096]
    assert config.train.tokens_per_step == 1024 * 4096
    assert tokens(config) == pytest.approx(1e12, rel=1e-5)
    assert tokens(config) >= 1e12
    optimizer = config.optimizer
    assert (optimizer.peak_learning_rate, optimizer.weight_decay, optimizer.schedule) == (2e-4, 0.1, "cosine")
    header = (FOLDER / "llama_2b.py").read_text().split('"""')[1]
    assert "2e-4" in header
    assert "1e-4" in header  # where the paper disagrees with itself is told


# What each header says it costs: tokens, and FLOPs a token with full attention.
COSTS = [("llama_60m.py", 1.2e9, 3.5e8), ("llama_350m.py", 7.3e9, 3.2e9), ("llama_2b.py", 1e12, 1.4e10), ("llama_7b.py", 1e12, 4.6e10)]


@pytest.mark.parametrize(("name", "trained", "flops"), COSTS)
def test_the_cost_in_the_header_is_what_the_config_costs(name: str, trained: float, flops: float):
    config = resolved(name)
    assert f"{tokens(config):.1e}" == f"{trained:.1e}"
    each = train_flops_per_token(config.model, config.train.curriculum[-1][0], causal=False)
    assert f"{each:.1e}" == f"{flops:.1e}"
    header = (FOLDER / name).read_text().split('"""')[1]
    for number in (flops, tokens(config) * each):
        assert f"{number:.1e}".replace("+", "").replace("e0", "e") + " FLOPs" in " ".join(header.split())


@pytest.mark.parametrize("name", FILES)
def test_residual_projections_start_at_one_over_the_root_of_twice_the_layers(name: str):
    model = resolved(name).model
    if name != "tiny.py":  # its own was tuned
        assert model.residual_init_scale == pytest.approx((2 * model.num_layers) ** -0.5, abs=5e-4)
