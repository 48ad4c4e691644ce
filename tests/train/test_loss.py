"""The loss in chunks is the plain loss, and never holds the logits of all tokens."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rope_lab.data.pipeline import Batch
from rope_lab.rotary import RoPE
from rope_lab.train.loss import chunked_token_losses, token_losses
from rope_lab.train.state import init_state
from rope_lab.train.step import make_train_step
from tests.model.small import model, positions, tokens

B, T, M, V = 2, 23, 12, 101


def arrays(dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Hidden states, projection, targets and each token's weight in the loss, some of them 0."""
    rng = np.random.default_rng(0)
    hidden, weights = rng.normal(size=(B, T, M)), rng.normal(size=(M, V))
    targets, of_token = rng.integers(0, V, (B, T)), rng.choice([0.0, 1.0, 8.0], (B, T))
    return jnp.asarray(hidden, dtype), jnp.asarray(weights, jnp.float32), jnp.asarray(targets), jnp.asarray(of_token, jnp.float32)


def plain(hidden: jax.Array, weights: jax.Array, targets: jax.Array) -> jax.Array:
    logits = jnp.einsum("BTM,MV->BTV", hidden, weights.astype(hidden.dtype), preferred_element_type=jnp.float32)
    return token_losses(logits, targets)


def in_chunks(chunk: int, z_loss: float = 0.0):
    return lambda hidden, weights, targets: chunked_token_losses(hidden, weights, targets, chunk, z_loss)


def gradients(losses, hidden: jax.Array, weights: jax.Array, targets: jax.Array, of_token: jax.Array):
    """The losses, and the gradients of their weighted sum to hidden states and projection."""

    def total(hidden: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        each = losses(hidden, weights, targets)
        return jnp.sum(each * of_token), each

    (_, each), found = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(hidden, weights)
    return each, *found


@pytest.mark.parametrize("chunk", [1, 8, 14, 46, 10_000])
def test_chunks_change_neither_loss_nor_gradient(chunk: int):
    """Chunks of one place, of four (the last one filled up), of seven, of the whole batch, and of more than there is."""
    want, got = (gradients(losses, *arrays()) for losses in (plain, in_chunks(chunk)))
    for one, other in zip(want, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


def test_in_bfloat16_sums_stay_float32():
    """Of the products only the logits' gradient is rounded once more, to 8 bits, where the plain path keeps it."""
    want, got = (gradients(losses, *arrays("bfloat16")) for losses in (plain, in_chunks(8)))
    assert [x.dtype for x in got] == [jnp.float32, jnp.bfloat16, jnp.float32]
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5)
    for one, other in zip(want[1:], got[1:], strict=True):
        one, other = one.astype(jnp.float32), other.astype(jnp.float32)
        assert jnp.linalg.norm(other - one) < 2**-8 * jnp.linalg.norm(one)


def test_the_z_loss_is_that_of_numpy():
    hidden, weights, targets, of_token = arrays()
    z_loss = 0.1
    each, of_hidden, of_weights = gradients(in_chunks(8, z_loss), hidden, weights, targets, of_token)
    h, w, g = (np.asarray(x, np.float64) for x in (hidden, weights, of_token))
    logits = h @ w
    log_Z = np.log(np.exp(logits).sum(axis=-1))
    target = np.eye(V)[np.asarray(targets)]
    np.testing.assert_allclose(each, log_Z - (logits * target).sum(axis=-1) + z_loss * log_Z**2, rtol=1e-5)
    of_logits = g[..., None] * (np.exp(logits - log_Z[..., None]) * (1 + 2 * z_loss * log_Z)[..., None] - target)
    np.testing.assert_allclose(of_hidden, of_logits @ w.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_weights, np.einsum("btm,btv->mv", h, of_logits), rtol=1e-4, atol=1e-4)


def largest_with_vocabulary(losses) -> int:
    """Elements of the largest array of the compiled value and gradient that has an axis of V."""
    compiled = jax.jit(lambda *each: gradients(losses, *each)).lower(*arrays()).compile().as_text()
    shapes = [tuple(map(int, dims.split(","))) for dims in re.findall(r"\[([\d,]+)\]", compiled)]
    return max(int(np.prod(shape)) for shape in shapes if V in shape)


def test_the_logits_of_all_tokens_are_never_there():
    assert largest_with_vocabulary(plain) >= B * T * V  # the plain loss is seen to hold them
    assert largest_with_vocabulary(in_chunks(8)) == M * V  # the projection itself; a chunk's logits are B * 4 * V


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_with_its_loss_in_chunks_is_the_plain_step(tied: bool):
    """The final norm's gradient and the embedding's two uses included; chunks of one place within each of two micro-batches."""
    graph, params = model(RoPE(), tie_embeddings=tied)
    rows, weights = tokens(4, 12), np.random.default_rng(0).choice([0.0, 1.0, 8.0], (4, 11)).astype(np.float32)
    batch = Batch(rows[:, :-1], rows[:, 1:], positions(4, 11), np.ones((4, 11), np.int32), weights)
    descent = optax.sgd(1.0)  # the update is the gradient
    state = init_state(params, descent)
    (plain, want), (chunked, got) = (jax.jit(make_train_step(graph, descent, 2, chunk))(state, batch) for chunk in (None, 3))
    np.testing.assert_allclose(got["train/loss_nats"], want["train/loss_nats"], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5), plain.params, chunked.params)
