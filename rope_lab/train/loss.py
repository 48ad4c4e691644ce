"""Next-token cross-entropy.

Shape letters: B batch, T length, V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np


def token_losses(logits_BTV: jax.Array, targets_BT: jax.Array | np.ndarray) -> jax.Array:
    """`log sum exp(logits) - logits[target]` of every target, in nats: float32, shape `(B, T)`."""
    logits_BTV = logits_BTV.astype(jnp.float32)
    of_target = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BTV, axis=-1) - of_target
