"""Figures shared by experiments, reports and notebooks. Each function draws on axes it is given, with units on the labels."""

import numpy as np
from matplotlib.axes import Axes

from rope_lab.rotary import Variant
from rope_lab.theory.decay import context_bound, quarter_period


def loss_by_position(axes: Axes, loss_nats: np.ndarray, *, label: str, color: str, bins: int = 16) -> None:
    """Mean loss of the token at each position of the context, in bins of equal width.

    Args:
      axes: where to draw.
      loss_nats: shape `(T,)`, by position.
      label, color: of the line.
      bins: points drawn; T is a multiple of it.
    """
    centres = (np.arange(bins) + 0.5) * len(loss_nats) / bins
    axes.plot(centres, loss_nats.reshape(bins, -1).mean(axis=1), "o-", ms=3, color=color, label=label)
    axes.set(xlabel="position in context (tokens)", ylabel="held-out text loss (nats/token)")


def accuracy_by_distance(axes: Axes, edges: np.ndarray, accuracy: np.ndarray, *, label: str, color: str, style: str = "o-") -> None:
    """Retrieval accuracy over distance, drawn at the middle of each bucket `edges[i - 1] .. edges[i]` (the first starts at 0)."""
    middles = (np.concatenate([[0], edges[:-1]]) + edges) / 2
    axes.plot(middles, accuracy, style, ms=4, color=color, label=label)
    axes.set(xlabel="distance from record to query (tokens)", ylabel="retrieval accuracy", ylim=(-0.03, 1.06), xlim=(0, edges[-1]))


def mark_bounds(axes: Axes, variant: Variant, head_dim: int, length: int, *, color: str) -> None:
    """Vertical lines at L_theta (dashed) and at the slowest pair's quarter period (dotted), where they fall inside the axes."""
    theta = variant.spectrum(head_dim, length).theta
    right = axes.get_xlim()[1]
    for distance, style, name in (
        (context_bound(theta), "--", r"$L_\theta$"),
        (quarter_period(theta), ":", r"$\pi / 2\theta_{\min}$"),
    ):
        if distance <= right:
            axes.axvline(distance, ls=style, lw=1, color=color)
            axes.annotate(f" {name} = {distance:.0f}", (distance, 0.75), color=color, fontsize=9)
