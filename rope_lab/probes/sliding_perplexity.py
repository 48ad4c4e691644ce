"""Perplexity by context length: every held-out token scored once for each length, in windows that slide over its document.

Shape letters: N windows, c tokens that the model reads in one, S context lengths, D documents.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rope_lab.data.store import TokenStore
from rope_lab.probes.perplexity import document_places
from rope_lab.probes.score import Scorer
from rope_lab.probes.tasks.task import default_lengths


@dataclass(frozen=True, kw_only=True)
class SlidingPerplexityConfig:
    """Attributes:
    lengths: context lengths, tokens, increasing; empty: powers of two from 128 on, and the context length.
    stride: tokens between windows, one for all lengths; None: half of each length.
    documents: how many are read, the longest ones.
    tokens_per_document: scored at most, from its beginning; None: four times the longest context length.
    """

    lengths: tuple[int, ...] = ()
    stride: int | None = None
    documents: int = 8
    tokens_per_document: int | None = None

    def __post_init__(self) -> None:
        if any(b <= a for a, b in zip(self.lengths, self.lengths[1:], strict=False)) or any(length < 2 for length in self.lengths):
            raise ValueError(f"probes.sliding_perplexity.lengths={self.lengths} must increase, from 2 tokens or more")
        for name in ("stride", "documents", "tokens_per_document"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"probes.sliding_perplexity.{name}={value} must be at least 1")


class Windows(NamedTuple):
    """Attributes:
    rows: int32 `(N, c + 1)`, inputs and the last target.
    scored: bool `(N, c)`: this target is new; over all windows each token but the document's first is, once.
    """

    rows: np.ndarray
    scored: np.ndarray


def sliding_windows(document: np.ndarray, length: int, stride: int) -> Windows:
    """Windows over one document, each `stride` tokens after the one before; the last ends with the document.

    A token that is scored is given at least `length - stride` tokens of context, or everything before it. What a short document
    leaves of its only window is filled behind it, where no scored token looks.

    Args:
      document: int32, at least two tokens.
      length: c, tokens that the model reads in a window.
      stride: 1 .. c.
    """
    targets = len(document) - 1
    beyond_first = max(targets - length, 0)
    starts = np.minimum(np.arange(1 - beyond_first // -stride) * stride, beyond_first)
    filled = np.pad(document, (0, max(length - targets, 0)), mode="edge")
    rows = filled[starts[:, None] + np.arange(length + 1)]
    places = starts[:, None] + np.arange(1, length + 1)
    done = np.concatenate([[0], starts[:-1] + length])  # the last token that earlier windows have scored
    return Windows(rows, (places > done[:, None]) & (places <= targets))


def longest_documents(stores: dict[str, TokenStore], count: int, most: int) -> list[np.ndarray]:
    """The beginnings of the `count` longest documents, longest first, each with its separator and at most `most` tokens after it."""
    opened = list(stores.values())
    number, first, size = document_places(stores)
    chosen = [index for index in np.argsort(-size, kind="stable")[:count] if size[index] > 1]
    return [opened[number[index]].read(first[[index]], min(int(size[index]), most + 1))[0][0] for index in chosen]


class SlidingPerplexityProbe:
    """Loss of the same held-out tokens in windows of several lengths: PG19's protocol.

    Only a window's new tokens are scored, so each token counts once for every length, and lengths compare. Positions start at 0 in
    every window. The separator (BOS) stands where the document has it: it opens the first window and is never a target; later windows
    begin in mid-text without one. Both means in use are reported: over all tokens (`loss_at_C_nats`, `token_weighted_at_C`), and over
    documents, each weighing the same (`per_document_loss_at_C_nats`, `per_document_mean_at_C` of perplexities).

    Args:
      scorer: runs the model; each length is one shape for it.
      stores: held-out documents.
      context_length: used where the config names no lengths, tokens.
      config: lengths, stride and how much is read.

    Raises:
      ValueError: if the stride leaves tokens out, or no document is longer than the longest window.

    Source: Rae et al., "Compressive Transformers for Long-Range Sequence Modelling", arXiv:1911.05507, for the books; Press et
    al., "Train Short, Test Long", arXiv:2108.12409, for windows that overlap and of which only the new part counts.
    """

    def __init__(self, scorer: Scorer, stores: dict[str, TokenStore], context_length: int, config: SlidingPerplexityConfig):
        lengths = config.lengths or default_lengths(context_length)
        if config.stride is not None and config.stride > lengths[0]:
            raise ValueError(
                f"probes.sliding_perplexity.stride={config.stride} must not exceed the shortest length {lengths[0]}: "
                "tokens between windows would never be scored"
            )
        most = config.tokens_per_document or 4 * lengths[-1]
        if most < lengths[-1]:
            raise ValueError(
                f"probes.sliding_perplexity.tokens_per_document={most} must be at least the longest length {lengths[-1]}: no token would "
                "be given so much context"
            )
        documents = longest_documents(stores, config.documents, most)
        if not documents or len(documents[0]) <= lengths[-1]:
            raise ValueError(
                f"no held-out document has {lengths[-1] + 1} tokens; set probes.sliding_perplexity.lengths shorter, or probes.path to "
                "longer documents"
            )
        self._scorer = scorer
        self._counts = np.array([len(document) - 1 for document in documents])
        self._windows: dict[int, tuple[Windows, np.ndarray]] = {}
        for length in lengths:
            parts = [sliding_windows(document, length, config.stride or length // 2) for document in documents]
            numbers = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
            self._windows[length] = Windows(*map(np.concatenate, zip(*parts, strict=True))), numbers

    def __call__(self, params: dict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        scalars, by_document = {}, []
        for length, (windows, numbers) in self._windows.items():
            losses = self._scorer(params, windows.rows).losses.astype(np.float64)
            sums = np.bincount(numbers, np.where(windows.scored, losses, 0).sum(axis=1))
            mean, by_document = sums.sum() / self._counts.sum(), [*by_document, sums / self._counts]
            scalars |= {
                f"loss_at_{length}_nats": float(mean),
                f"token_weighted_at_{length}": float(np.exp(mean)),
                f"per_document_loss_at_{length}_nats": float(by_document[-1].mean()),
                f"per_document_mean_at_{length}": float(np.exp(by_document[-1]).mean()),
            }
        arrays = {
            "lengths_tokens": np.array(list(self._windows)),
            "loss_by_document_nats": np.array(by_document),
            "tokens_by_document": self._counts,
        }
        return scalars, arrays
