"""The pure parts: loss, micro-batches, optimizer, schedules, the token counter."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rope_lab.data.pipeline import Batch
from rope_lab.model.llama import Llama
from rope_lab.rotary import RoPE
from rope_lab.train.loss import token_losses
from rope_lab.train.optimizer import OptimizerConfig, learning_rate, make_optimizer
from rope_lab.train.state import add_tokens, fingerprint, init_state, split_model, tokens_seen
from rope_lab.train.step import make_train_step
from tests.model.small import VOCAB, config, logits, model


def batch(rows: int = 8, length: int = 12) -> Batch:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (rows, length + 1)).astype(np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    weights = rng.choice([0.0, 1.0, 8.0], (rows, length)).astype(np.float32)  # rows of unequal weight
    return Batch(tokens[:, :-1], tokens[:, 1:], positions, np.ones((rows, length), np.int32), weights)


def test_the_loss_is_the_negative_log_probability():
    logits = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32) * 30
    targets = np.array([[0, 6, 3], [1, 1, 5]], np.int32)
    for b, t in np.ndindex(2, 3):
        row = logits[b, t].astype(np.float64)
        want = np.log(np.sum(np.exp(row - row.max()))) + row.max() - row[targets[b, t]]
        np.testing.assert_allclose(token_losses(jnp.asarray(logits), jnp.asarray(targets))[b, t], want, rtol=1e-6)


@pytest.fixture(scope="module")
def one_step():
    """What one update gives in one piece and with 4 micro-batches."""
    optimizer = make_optimizer(OptimizerConfig(warmup_steps=0), 10)
    graph, _ = split_model(partial(Llama, config(), RoPE()), lambda x, axes: x)
    state = init_state(model(RoPE())[1], optimizer)
    return {n: jax.jit(make_train_step(graph, optimizer, n))(state, batch()) for n in (1, 4)}, state, graph


def test_micro_batches_change_nothing(one_step):
    results, state, _ = one_step
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6), results[4][1], results[1][1])
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), results[4][0].params, state.params)
    assert min(jax.tree.leaves(moved)) > 0


def test_the_loss_is_a_weighted_mean_over_the_global_batch(one_step):
    results, state, graph = one_step
    rows = batch()

    @jax.jit
    def mean(params: dict) -> jax.Array:
        each = token_losses(logits(graph, params, rows.tokens), jnp.asarray(rows.targets))
        return jnp.sum(each * rows.weights) / rows.weights.sum()

    want, gradient = jax.value_and_grad(mean)(state.params)
    np.testing.assert_allclose(results[4][1]["train/loss_nats"], want, rtol=1e-5)
    np.testing.assert_allclose(results[4][1]["train/gradient_norm"], optax.tree.norm(gradient), rtol=1e-4)


def test_the_step_counts_itself_and_its_tokens(one_step):
    results, _, _ = one_step
    assert int(results[4][0].step) == 1
    assert tokens_seen(results[4][0].tokens_seen) == 8 * 12


def test_the_token_counter_passes_32_bits():
    counter = jnp.array([0, 2**32 - 5], jnp.uint32)
    assert tokens_seen(add_tokens(counter, 4)) == 2**32 - 1
    assert tokens_seen(add_tokens(add_tokens(counter, 4), 7)) == 2**32 + 6


def test_weight_decay_spares_norms_and_biases():
    _, params = model(RoPE(), query_key_norm=True, attention_bias=True)
    optimizer = make_optimizer(OptimizerConfig(warmup_steps=0, weight_decay=0.5, peak_learning_rate=0.1, schedule="constant"), 10)
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates, _ = jax.jit(lambda grads, params: optimizer.update(grads, optimizer.init(params), params))(nothing, params)
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        name, value = path[-1].key, params
        for key in path:
            value = value[key.key]
        decayed = not (name.endswith("bias") or name == "scale")
        np.testing.assert_allclose(update, -0.05 * value if decayed else np.zeros_like(value), rtol=1e-5, err_msg=name)


def test_gradients_are_clipped_by_their_global_norm():
    optimizer = make_optimizer(OptimizerConfig(clip_norm=2.0, warmup_steps=0, weight_decay=0.0), 10)
    params = {"a": jnp.ones(3), "b": jnp.ones(4)}
    big = {"a": 30 * jnp.ones(3), "b": -40 * jnp.ones(4)}
    norm = float(optax.tree.norm(big))
    _, state = jax.jit(lambda grads, params: optimizer.update(grads, optimizer.init(params), params))(big, params)
    first_moment = optax.tree.get(state, "mu")
    np.testing.assert_allclose(first_moment["a"], 0.1 * 30 * 2 / norm, rtol=1e-5)  # (1 - b1) times the clipped gradient


@pytest.mark.parametrize(
    ("fields", "points"),
    [
        ({"schedule": "constant"}, {0: 0.0, 5: 0.5, 10: 1.0, 60: 1.0, 100: 1.0}),
        ({"schedule": "cosine", "final_fraction": 0.1}, {5: 0.5, 10: 1.0, 55: 0.55, 100: 0.1}),
        ({"schedule": "wsd", "decay_steps": 20, "final_fraction": 0.0}, {5: 0.5, 10: 1.0, 80: 1.0, 90: 0.5, 100: 0.0}),
    ],
)
def test_schedules(fields: dict, points: dict):
    schedule = learning_rate(OptimizerConfig(peak_learning_rate=3.0, warmup_steps=10, **fields), 100)
    for step, share in points.items():
        np.testing.assert_allclose(schedule(step), 3.0 * share, rtol=1e-5, atol=1e-7, err_msg=str(step))


def test_a_schedule_must_fit_the_run():
    with pytest.raises(ValueError, match=r"warm-up and decay take 30 steps, more than the run's 20 \(train.curriculum\)"):
        learning_rate(OptimizerConfig(schedule="wsd", warmup_steps=10, decay_steps=20), 20)
    with pytest.raises(ValueError, match=r"optimizer.schedule='linear' must be one of cosine, constant, wsd"):
        OptimizerConfig(schedule="linear")
    with pytest.raises(ValueError, match=r"'wsd' needs decay_steps, the others none"):
        OptimizerConfig(schedule="cosine", decay_steps=5)


def test_the_fingerprint_sees_any_bit_and_any_place():
    _, params = model(RoPE())
    of = jax.jit(fingerprint)
    whole = int(of(params))
    gate = params["layers"]["mlp"]["gate"]
    for changed in (gate.at[1, 2, 3].add(1e-6), gate.at[0].set(gate[1]).at[1].set(gate[0]), gate[..., ::-1]):
        layers = params["layers"] | {"mlp": params["layers"]["mlp"] | {"gate": changed}}
        assert int(of(params | {"layers": layers})) != whole
