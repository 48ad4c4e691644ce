"""Next-token cross-entropy.

Shape letters: B batch, T length, M hidden size, V vocabulary, N chunks, C places of a row in a chunk.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def token_losses(logits_BTV: jax.Array, targets_BT: jax.Array | np.ndarray) -> jax.Array:
    """`log sum exp(logits) - logits[target]` of every target, in nats: float32, shape `(B, T)`."""
    logits_BTV = logits_BTV.astype(jnp.float32)
    of_target = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BTV, axis=-1) - of_target


def chunked_token_losses(
    hidden_BTM: jax.Array, weights_MV: jax.Array, targets_BT: jax.Array | np.ndarray, chunk: int, z_loss: float = 0.0
) -> jax.Array:
    """`token_losses(hidden @ weights, targets) + z_loss * log Z ** 2`, without the logits of all tokens at any time.

    Chunks are cut along the length, all rows in each, so that a batch split over devices stays split. The backward pass makes each chunk's
    logits again: one more product with the weights than the plain loss. `log Z`, the log of the softmax's sum, is kept.

    Args:
      hidden_BTM: what the output projection reads, after the final norm; its dtype is that of the products, which add up in float32.
      weights_MV: the projection, float32 or as `hidden_BTM`; its gradient adds up in float32.
      targets_BT: ids below V.
      chunk: tokens of the batch whose logits exist at once: `chunk // B` places of each row, at least 1.
      z_loss: coefficient of the penalty on `log Z`, which keeps logits from drifting; 0: none.

    Returns:
      float32, shape `(B, T)`, in nats.

    Source: the penalty is that of Chowdhery et al., "PaLM", arXiv:2204.02311, section 5, with 1e-4 there.
    """
    return _chunked(hidden_BTM, weights_MV, jnp.asarray(targets_BT), chunk, z_loss)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _chunked(hidden_BTM: jax.Array, weights_MV: jax.Array, targets_BT: jax.Array, chunk: int, z_loss: float) -> jax.Array:
    return _forward(hidden_BTM, weights_MV, targets_BT, chunk, z_loss)[0]


def _forward(
    hidden_BTM: jax.Array, weights_MV: jax.Array, targets_BT: jax.Array, chunk: int, z_loss: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    weights = weights_MV.astype(hidden_BTM.dtype)

    def of_chunk(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        hidden_BCM, targets_BC = part
        logits_BCV = _logits(hidden_BCM, weights)
        log_Z = jax.nn.logsumexp(logits_BCV, axis=-1)
        of_target = jnp.take_along_axis(logits_BCV, targets_BC[..., None], axis=-1)[..., 0]
        return log_Z - of_target + z_loss * log_Z**2, log_Z

    losses, log_Z = jax.lax.map(of_chunk, (_split(hidden_BTM, chunk), _split(targets_BT, chunk)))
    losses_BT, log_Z_BT = (_joined(x, targets_BT.shape[1]) for x in (losses, log_Z))
    return losses_BT, (hidden_BTM, weights_MV, targets_BT, log_Z_BT)


def _backward(chunk: int, z_loss: float, saved: tuple[jax.Array, ...], cotangent_BT: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    hidden_BTM, weights_MV, targets_BT, log_Z_BT = saved
    weights = weights_MV.astype(hidden_BTM.dtype)

    def of_chunk(of_weights_MV: jax.Array, part: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        hidden_BCM, targets_BC, log_Z_BC, cotangent_BC = part
        softmax_BCV = jnp.exp(_logits(hidden_BCM, weights) - log_Z_BC[..., None])
        is_target_BCV = targets_BC[..., None] == jnp.arange(weights.shape[1])
        of_logits_BCV = softmax_BCV * (cotangent_BC * (1 + 2 * z_loss * log_Z_BC))[..., None]
        of_logits_BCV = (of_logits_BCV - jnp.where(is_target_BCV, cotangent_BC[..., None], 0.0)).astype(hidden_BTM.dtype)
        of_hidden_BCM = jnp.einsum("BCV,MV->BCM", of_logits_BCV, weights, preferred_element_type=jnp.float32)
        of_weights_MV += jnp.einsum("BCM,BCV->MV", hidden_BCM, of_logits_BCV, preferred_element_type=jnp.float32)
        return of_weights_MV, of_hidden_BCM.astype(hidden_BTM.dtype)

    parts = tuple(_split(x, chunk) for x in (hidden_BTM, targets_BT, log_Z_BT, cotangent_BT))
    of_weights_MV, of_hidden = jax.lax.scan(of_chunk, jnp.zeros(weights.shape, jnp.float32), parts)
    return _joined(of_hidden, hidden_BTM.shape[1]), of_weights_MV.astype(weights_MV.dtype), None


_chunked.defvjp(_forward, _backward)


def _logits(hidden_BCM: jax.Array, weights_MV: jax.Array) -> jax.Array:
    return jnp.einsum("BCM,MV->BCV", hidden_BCM, weights_MV, preferred_element_type=jnp.float32)


def _split(x_BT: jax.Array, chunk: int) -> jax.Array:
    """`(B, T, ...)` in chunks of at most `chunk` tokens, `(N, B, C, ...)`; zeros fill up the last, whose gradients are zero as well."""
    B, T = x_BT.shape[:2]
    N = -(-T // max(chunk // B, 1))
    C = -(-T // N)
    x_BT = jnp.pad(x_BT, [(0, 0), (0, N * C - T)] + [(0, 0)] * (x_BT.ndim - 2))
    return x_BT.reshape(B, N, C, *x_BT.shape[2:]).swapaxes(0, 1)


def _joined(x_NBC: jax.Array, length: int) -> jax.Array:
    x = x_NBC.swapaxes(0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]
