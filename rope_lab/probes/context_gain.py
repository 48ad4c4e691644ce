"""Context gain: the loss of the same tokens given more and more of what stands before them, and the power law that it follows.

Shape letters: N blocks of target tokens, S context lengths.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rope_lab.data.store import TokenStore
from rope_lab.probes.perplexity import document_places
from rope_lab.probes.score import Scorer


@dataclass(frozen=True, kw_only=True)
class ContextGainConfig:
    """Attributes:
    contexts: tokens before a block, increasing; empty: powers of two from 16 on, and the most that the context length holds.
    blocks: how many, evenly spaced over all places that have the longest context before them; fewer where they would overlap.
    block_tokens: targets in each.
    """

    contexts: tuple[int, ...] = ()
    blocks: int = 128
    block_tokens: int = 4

    def __post_init__(self) -> None:
        if any(b <= a for a, b in zip(self.contexts, self.contexts[1:], strict=False)) or any(context < 1 for context in self.contexts):
            raise ValueError(f"probes.context_gain.contexts={self.contexts} must increase, from 1 token or more")
        for name in ("blocks", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"probes.context_gain.{name}={getattr(self, name)} must be at least 1")


class PowerLaw(NamedTuple):
    """`loss(c) = (alpha / c) ** beta + gamma`.

    Attributes:
      alpha_tokens: context at which a nat is left to gain.
      beta: how fast it is gained.
      gamma_nats: loss given endless context.
      rms_nats: root mean square of what the law leaves over at the points.
    """

    alpha_tokens: float
    beta: float
    gamma_nats: float
    rms_nats: float

    def __call__(self, contexts: np.ndarray) -> np.ndarray:
        """Loss at these context lengths, nats."""
        return (self.alpha_tokens / contexts) ** self.beta + self.gamma_nats


LEAST_BETA, MOST_BETA = 0.02, 8.0
SIGNIFICANCE = 0.05


def fit_power_law(contexts: np.ndarray, losses: np.ndarray) -> PowerLaw | None:
    """Least squares of `(alpha / c) ** beta + gamma`, or None where the points do not determine one.

    Given beta the law is linear in `alpha ** beta` and gamma; beta is scanned over `LEAST_BETA .. MOST_BETA` and refined. None means
    fewer than four points; a curve that is flat or rises; a best beta at the end of the scan (a straight line in log c, or a step); a
    gamma below 0, which no loss has; or a fall that noise explains as well: an F test of the law against a constant, whose two extra
    parameters leave `p = (residual sum / total sum) ** ((S - 3) / 2)`, is not below `SIGNIFICANCE`.

    Args:
      contexts: c, tokens, positive and distinct, shape `(S,)`.
      losses: nats, shape `(S,)`.

    Source: Xiong et al., "Effective Long-Context Scaling of Foundation Models", arXiv:2309.16039, Figure 1.
    """
    x, y = np.asarray(contexts, np.float64), np.asarray(losses, np.float64)
    if len(x) < 4 or np.ptp(y) == 0:
        return None
    scale = np.exp(np.log(x).mean())
    deviation = y - y.mean()

    def project(betas: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Coefficient of `(scale / c) ** beta`, gamma and residual sum of squares of each beta's best line."""
        powers = (scale / x) ** betas[:, None]
        centred = powers - powers.mean(axis=1, keepdims=True)
        slopes = centred @ deviation / (centred**2).sum(axis=1)
        residuals = deviation - slopes[:, None] * centred
        return slopes, y.mean() - slopes * powers.mean(axis=1), (residuals**2).sum(axis=1)

    betas = np.geomspace(LEAST_BETA, MOST_BETA, 300)
    best = int(project(betas)[2].argmin())
    if best in (0, len(betas) - 1):
        return None
    for _ in range(8):
        betas = np.linspace(betas[max(best - 1, 0)], betas[min(best + 1, len(betas) - 1)], 50)
        best = int(project(betas)[2].argmin())
    slopes, gammas, sums = project(betas)
    slope, gamma, beta = float(slopes[best]), float(gammas[best]), float(betas[best])
    by_chance = (sums[best] / (deviation**2).sum()) ** ((len(x) - 3) / 2)
    if slope <= 0 or gamma < 0 or by_chance >= SIGNIFICANCE:
        return None
    return PowerLaw(float(scale * slope ** (1 / beta)), beta, gamma, float(np.sqrt(sums[best] / len(x))))


def default_contexts(length: int, block_tokens: int) -> tuple[int, ...]:
    """16, 32, 64, ... and the longest context with which the model reads `length` tokens."""
    longest = length + 1 - block_tokens
    return (*(2**power for power in range(4, 41) if 2**power < longest), longest)


def spaced_blocks(stores: dict[str, TokenStore], context: int, block_tokens: int, blocks: int) -> np.ndarray:
    """Rows of `context` tokens and the block they precede, at evenly spaced places of the documents long enough; no separator in any.

    Returns:
      int32 `(N, context + block_tokens)`.

    Raises:
      ValueError: if no document has a separator and a row's tokens.
    """
    width = context + block_tokens
    number, first, size = document_places(stores)
    fits = size > width
    number, first, room = number[fits], first[fits] + 1, (size - width)[fits]  # so many places for a row's first token
    if not len(room):
        raise ValueError(
            f"no held-out document has {width + 1} tokens; set probes.context_gain.contexts shorter, or probes.path to longer documents"
        )
    # Rows that begin a block's length apart have blocks that do not overlap, and those of two documents never do.
    count = max(1, min(blocks, int(room.sum()) // block_tokens))
    places = ((np.arange(count) + 0.5) * room.sum() / count).astype(np.int64)
    ends = np.cumsum(room)
    document = np.searchsorted(ends, places, side="right")
    starts = first[document] + places - (ends - room)[document]
    return np.concatenate([store.read(starts[number[document] == k], width)[0] for k, store in enumerate(stores.values())])


class ContextGainProbe:
    """Loss of fixed blocks of held-out tokens given c tokens of context, for several c, and the power law through it.

    A block's first token is given exactly c tokens and its last `block_tokens - 1` more. Every row begins in mid-text: positions
    start at 0, and no separator (BOS) stands in it. The law's parameters are reported where the points determine them.

    Args:
      scorer: runs the model; each context length is one shape for it.
      stores: held-out documents.
      context_length: the most that the model reads where the config names no contexts, tokens.
      config: contexts and blocks.

    Raises:
      ValueError: if a block does not fit the context length, or no document is long enough.
    """

    def __init__(self, scorer: Scorer, stores: dict[str, TokenStore], context_length: int, config: ContextGainConfig):
        if not config.contexts and config.block_tokens > context_length:
            raise ValueError(f"probes.context_gain.block_tokens={config.block_tokens} must not exceed the context length {context_length}")
        self._scorer, self._block_tokens = scorer, config.block_tokens
        self._contexts = config.contexts or default_contexts(context_length, config.block_tokens)
        self._rows = spaced_blocks(stores, self._contexts[-1], config.block_tokens, config.blocks)

    def __call__(self, params: dict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        blocks = []
        for context in self._contexts:
            rows = self._rows[:, self._contexts[-1] - context :]
            blocks.append(self._scorer(params, rows).losses[:, -self._block_tokens :].astype(np.float64).mean(axis=1))
        contexts, losses = np.array(self._contexts), np.mean(blocks, axis=1)
        scalars = {f"loss_at_{context}_nats": float(loss) for context, loss in zip(self._contexts, losses, strict=True)}
        scalars["gain_nats"] = float(losses[0] - losses[-1])
        law = fit_power_law(contexts, losses)
        if law is not None:
            scalars |= {"alpha_tokens": law.alpha_tokens, "beta": law.beta, "gamma_nats": law.gamma_nats, "fit_rms_nats": law.rms_nats}
        return scalars, {"contexts_tokens": contexts, "loss_nats": losses, "loss_by_block_nats": np.array(blocks)}
