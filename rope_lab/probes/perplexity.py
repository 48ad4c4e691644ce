"""Perplexity by position, on long held-out documents.

Shape letters: N windows, T context length.
"""

from dataclasses import dataclass

import numpy as np

from rope_lab.data.store import TokenStore
from rope_lab.probes.score import Scorer


@dataclass(frozen=True, kw_only=True)
class PerplexityConfig:
    """Attributes:
    windows_per_document: windows of the context length cut from each held-out document, evenly spaced; fewer where they would overlap.
    """

    windows_per_document: int = 8

    def __post_init__(self) -> None:
        if self.windows_per_document < 1:
            raise ValueError(f"probes.perplexity.windows_per_document={self.windows_per_document} must be at least 1")


def document_places(stores: dict[str, TokenStore]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where every document stands, in the order of the stores.

    Returns:
      int64 `(documents,)` each: the store's number, the document's first token in it (the separator), and its tokens.
    """
    numbers = np.repeat(np.arange(len(stores)), [store.info.num_documents for store in stores.values()])
    first = np.concatenate([store.offsets[:-1] for store in stores.values()])
    return numbers, first, np.concatenate([np.diff(store.offsets) for store in stores.values()])


def held_out_windows(stores: dict[str, TokenStore], length: int, per_document: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows of `length + 1` tokens, evenly spaced in every document that is long enough, and no token a target twice.

    The first starts with the document's separator (BOS); the others begin in mid-text, without one.

    Returns:
      int32 tokens `(N, length + 1)`, and each window's document number `(N,)`.

    Raises:
      ValueError: if no document has `length + 1` tokens.
    """
    rows, documents = [], []
    for store in stores.values():
        for first, end in zip(store.offsets[:-1], store.offsets[1:], strict=True):
            if end - first > length:
                count = min(per_document, (end - first - 1) // length)
                starts = np.linspace(first, end - length - 1, count).astype(np.int64)
                rows.append(store.read(starts, length + 1)[0])
                documents.append(np.full(len(starts), len(documents)))
    if not rows:
        raise ValueError(f"no held-out document has {length + 1} tokens; set probes.length lower, or probes.path to longer documents")
    return np.concatenate(rows), np.concatenate(documents)


class PerplexityProbe:
    """Loss of held-out text at each position of the context.

    Reports both means in use: over all tokens (`loss_nats`, `token_weighted`), and over documents, each weighing the same
    (`per_document_loss_nats`, `per_document_mean` of perplexities). By position there is the loss at each, and in octaves of context:
    bucket i holds the tokens given `edges[i] <= c < edges[i + 1]` tokens of it, the last one also those given all T.

    Args:
      scorer: runs the model.
      rows: int32 `(N, T + 1)`, from `held_out_windows`.
      documents: each row's document.
    """

    def __init__(self, scorer: Scorer, rows: np.ndarray, documents: np.ndarray):
        self._scorer, self._rows, self._documents = scorer, rows, documents

    def __call__(self, params: dict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        losses = self._scorer(params, self._rows).losses.astype(np.float64)
        by_document = np.array([losses[self._documents == number].mean() for number in np.unique(self._documents)])
        scalars = {
            "loss_nats": float(losses.mean()),
            "token_weighted": float(np.exp(losses.mean())),
            "per_document_loss_nats": float(by_document.mean()),
            "per_document_mean": float(np.exp(by_document).mean()),
            "loss_last_quarter_nats": float(losses[:, -(losses.shape[1] // 4) :].mean()),
        }
        by_position = losses.mean(axis=0)
        starts = 2 ** np.arange((len(by_position) - 1).bit_length())  # of context; the first position is given one token
        edges = np.append(starts, len(by_position) + 1)
        arrays = {
            "loss_by_position_nats": by_position,
            "loss_by_document_nats": by_document,
            "octave_edges_tokens": edges,
            "loss_by_octave_nats": np.add.reduceat(by_position, starts - 1) / np.diff(edges),
        }
        return scalars, arrays
