"""Figures shared by experiments, reports and notebooks. Each function draws on axes it is given, with units on the labels."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_lab.rotary import Variant
from rope_lab.theory.decay import check_theta, context_bound, gap_blocks, quarter_period
from rope_lab.theory.periods import periods


def loss_by_position(axes: Axes, loss_nats: np.ndarray, *, label: str, color: str, bins: int = 16) -> None:
    """Mean loss of the token at each position of the context, in bins of equal width.

    Args:
      axes: where to draw.
      loss_nats: shape `(T,)`, by position.
      label, color: of the line.
      bins: points drawn, at most T; where they do not divide T, a bin has a token more or less than another.
    """
    edges = np.linspace(0, len(loss_nats), min(bins, len(loss_nats)) + 1).astype(int)
    means = np.add.reduceat(loss_nats, edges[:-1]) / np.diff(edges)
    axes.plot((edges[:-1] + edges[1:]) / 2, means, "o-", ms=3, color=color, label=label)
    axes.set(xlabel="position in context (tokens)", ylabel="held-out text loss (nats/token)")


def accuracy_by_distance(axes: Axes, edges: np.ndarray, accuracy: np.ndarray, *, label: str, color: str, style: str = "o-") -> None:
    """Retrieval accuracy over distance, drawn at the middle of each bucket `edges[i - 1] .. edges[i]` (the first starts at 0)."""
    middles = (np.concatenate([[0], edges[:-1]]) + edges) / 2
    axes.plot(middles, accuracy, style, ms=4, color=color, label=label)
    axes.set(xlabel="distance from record to query (tokens)", ylabel="retrieval accuracy", ylim=(-0.03, 1.06), xlim=(0, edges[-1]))


def accuracy_by_depth(axes: Axes, lengths: np.ndarray, depths: np.ndarray, accuracy: np.ndarray) -> None:
    """Heat map of a retrieval task's accuracy.

    Args:
      axes: where to draw.
      lengths: of the prompts, tokens, shape `(S,)`.
      depths: of the needle, 0 (first) to 1 (last), shape `(C,)`.
      accuracy: shape `(S, C)`, 0 to 1.
    """
    picture = axes.imshow(accuracy.T, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
    axes.set_xticks(np.arange(len(lengths)), [str(length) for length in lengths])
    axes.set_yticks(np.arange(len(depths)), [f"{depth:.0%}" for depth in depths])
    axes.set(xlabel="prompt length (tokens)", ylabel="depth of the needle (share of the prompt)")
    axes.figure.colorbar(picture, ax=axes, label="retrieval accuracy")


def probe_figure(name: str, arrays: Mapping[str, np.ndarray]) -> Figure | None:
    """What a probe found, as the arrays that it returned tell how to draw it; None where they ask for no picture."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    match arrays:
        case {"lengths_tokens": lengths, "depths": depths, "accuracy": accuracy}:
            accuracy_by_depth(axes, lengths, depths, accuracy)
        case {"edges_tokens": edges, "accuracy": accuracy}:
            accuracy_by_distance(axes, edges, accuracy, label=name, color="C0")
        case {"loss_by_position_nats": losses}:
            loss_by_position(axes, losses, label=name, color="C0")
        case {"gap_nats": _, "b_m": _}:
            gap_of_heads(axes, arrays)
        case {"contexts_tokens": contexts, "loss_nats": losses}:
            loss_by_context(axes, contexts, losses, label=name, color="C0")
        case _:
            return None
    axes.set_title(name)
    return figure


def accuracy_of_seeds(axes: Axes, edges: list[int], accuracy: list[list[float]], *, label: str, color: str, style: str = "o-") -> None:
    """Mean accuracy by distance over several runs, and their range as a band; nothing where there is no run.

    Args:
      axes: where to draw.
      edges: upper edges of the buckets, tokens.
      accuracy: of each run, by bucket.
      label, color, style: of the line.
    """
    if not accuracy:
        return
    accuracy_by_distance(axes, np.array(edges), np.mean(accuracy, axis=0), label=label, color=color, style=style)
    middles = (np.array([0, *edges[:-1]]) + edges) / 2
    axes.fill_between(middles, np.min(accuracy, axis=0), np.max(accuracy, axis=0), color=color, alpha=0.2, lw=0)


def mark_bounds(axes: Axes, variant: Variant, head_dim: int, length: int, *, color: str) -> None:
    """Vertical lines at L_theta (dashed) and at the slowest pair's quarter period (dotted), where they fall inside the axes."""
    mark_bounds_of(axes, variant.spectrum(head_dim, length).theta, color=color)


def mark_bounds_of(axes: Axes, theta: np.ndarray, *, color: str) -> None:
    """The same for frequencies, radians per token."""
    right = axes.get_xlim()[1]
    for distance, style, name in (
        (context_bound(theta), "--", r"$L_\theta$"),
        (quarter_period(theta), ":", r"$\pi / 2\theta_{\min}$"),
    ):
        if distance <= right:
            axes.axvline(distance, ls=style, lw=1, color=color)
            axes.annotate(f" {name} = {distance:.0f}", (distance, 0.75), color=color, fontsize=9)


def gap_by_distance(axes: Axes, theta: np.ndarray, length: int, *, label: str, color: str, bins: int = 800) -> None:
    """The least B_m in each of `bins` stretches of distance, over every integer `0 <= m <= length`: no dip is missed.

    Args:
      axes: where to draw.
      theta: float64 of shape `(pairs,)`, radians per token.
      length: tokens.
      label, color: of the line.
      bins: stretches of equal width.
    """
    values = np.concatenate([block for _, block in gap_blocks(check_theta(theta), length)])
    starts = np.unique(np.linspace(0, len(values), min(bins, len(values)), endpoint=False).astype(int))
    axes.plot(starts, np.minimum.reduceat(values, starts), lw=1, color=color, label=label)
    axes.set(xlabel="distance $m$ (tokens)", ylabel=r"least $B_m$ in each stretch (units of $2\sigma^2$)", xlim=(0, length))


def period_by_pair(axes: Axes, theta: np.ndarray, *, label: str, color: str) -> None:
    """Tokens for a full turn of each pair, on a logarithmic axis; pairs that stand still are left out."""
    axes.plot(np.flatnonzero(theta), periods(theta)[theta != 0], lw=1.2, color=color, label=label)
    axes.set(xlabel="pair $i$", ylabel="period (tokens)", yscale="log")


def compare_variants(spectra: dict[str, np.ndarray], length: int, picture: Path) -> None:
    """B_m up to `length` beside the periods of several spectra, by label, into a PNG file."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (label, theta), color in zip(spectra.items(), itertools.cycle(f"C{i}" for i in range(10)), strict=False):
        gap_by_distance(left, theta, length, label=label, color=color)
        period_by_pair(right, theta, label=label, color=color)
    left.axhline(0, color="black", lw=0.8)
    right.axhline(length, color="black", lw=0.8, ls=":")
    right.annotate(" the length", (0, length), fontsize=8, va="bottom")
    left.set_title("Preference for similar tokens; below 0 it is lost")
    right.set_title("Spectra")
    left.legend(fontsize=8)
    figure.savefig(picture, dpi=150)


def loss_by_context(
    axes: Axes, contexts: np.ndarray, loss_nats: np.ndarray, *, label: str, color: str, law: tuple[float, float, float] | None = None
) -> None:
    """Loss of the same tokens over the context they are given, as points, and the law fitted to them as a line.

    Args:
      axes: where to draw.
      contexts: c, tokens, increasing.
      loss_nats: at each.
      label, color: of the points.
      law: alpha (tokens), beta and gamma (nats) of `(alpha / c) ** beta + gamma`; None where no law was found.
    """
    axes.plot(contexts, loss_nats, "o", ms=4, color=color, label=label)
    if law is not None:
        alpha, beta, gamma = law
        c = np.geomspace(contexts[0], contexts[-1], 200)
        name = rf"$({alpha:.3g} / c)^{{{beta:.3g}}} + {gamma:.3g}$"
        axes.plot(c, (alpha / c) ** beta + gamma, "-", lw=1, color=color, label=name)
    axes.set(xlabel="context $c$ (tokens)", ylabel="held-out text loss (nats/token)", xscale="log")


def trained_distances_picture(pairs: tuple[np.ndarray, np.ndarray], tokens: tuple[np.ndarray, np.ndarray], picture: Path) -> None:
    """How often distances and positions are trained, each beside rows of one document, into a PNG file.

    Args:
      pairs: by distance from 0 on, which is not drawn, of a run's packing and of one-document rows.
      tokens: the same by position.
      picture: the file.
    """
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, (ours, whole), what, place in zip(
        figure.subplots(1, 2), (pairs, tokens), ("query-key pairs", "tokens"), ("distance", "position"), strict=True
    ):
        for counts, color, label in ((whole, "0.6", "every row one document"), (ours, "C0", "as packed")):
            axes.loglog(np.arange(1, len(counts)), counts[1:], color=color, label=label)
        axes.set(xlabel=f"{place} (tokens)", ylabel=f"{what} trained over the run")
        axes.legend(fontsize=8)
    figure.savefig(picture, dpi=150)


def gap_of_heads(axes: Axes, arrays: Mapping[str, np.ndarray], *, top: int = 4) -> None:
    """The similarity gap measured in the heads that retrieve, beside B_m: each over its value at distance 0.

    Args:
      axes: where to draw.
      arrays: of the probe `similarity_gap`.
      top: heads drawn, at most; none whose content gap is less than half the largest.
    """
    distances, content = arrays["distances_tokens"], arrays["content_gap_nats"]
    for number, (layer, head) in enumerate(_retrieving_heads(content, top)):
        label = f"layer {layer + 1}, head {head + 1}: {content[layer, head]:.2g} nats"
        axes.plot(distances, arrays["gap_nats"][layer, head] / content[layer, head], lw=1.2, color=f"C{number}", label=label)
    axes.plot(distances, arrays["b_m"] / arrays["b_m"][0], lw=1.2, color="black", label="$B_m$, theory")
    axes.axhline(0, color="black", lw=0.8)
    axes.set(xlabel="distance $m$ (tokens)", ylabel="$G(m) / G(0)$ (dimensionless)", xlim=(0, distances[-1]))
    mark_bounds_of(axes, arrays["theta_radians_per_token"], color="black")
    axes.legend(fontsize=8)


def mass_by_distance(axes: Axes, edges: np.ndarray, mass: np.ndarray, *, label: str, color: str) -> None:
    """Share of a query's attention in each half-open bin of distance, on an axis that is logarithmic from 1 token on.

    Args:
      axes: where to draw.
      edges: of the bins, tokens, increasing from 0.
      mass: one fewer; sums to 1.
      label, color: of the line.
    """
    axes.stairs(mass, edges, lw=1.2, color=color, label=label)
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlabel="distance from key to query (tokens)", ylabel="attention in the bin (share)", xlim=(0, edges[-1]))


def heads_against_theory(arrays: Mapping[str, np.ndarray], picture: Path, *, top: int = 4) -> None:
    """What the probe `similarity_gap` found of the heads that retrieve: their gap and their attention, into a PNG file."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    gap_of_heads(left, arrays, top=top)
    for number, (layer, head) in enumerate(_retrieving_heads(arrays["content_gap_nats"], top)):
        label = f"layer {layer + 1}, head {head + 1}"
        mass_by_distance(right, arrays["mass_edges_tokens"], arrays["mass"][layer, head], label=label, color=f"C{number}")
    left.set_title("Preference for the right record; below 0 it is lost")
    right.set_title("Attention in held-out text")
    right.legend(fontsize=8)
    figure.savefig(picture, dpi=150)


def _retrieving_heads(content: np.ndarray, top: int) -> list[tuple[int, int]]:
    """Layer and head of the largest content gaps, from the largest on down to half of it."""
    order = np.argsort(-content, axis=None)[:top]
    heads = zip(*(places.tolist() for places in np.unravel_index(order, content.shape)), strict=True)
    return [place for place in heads if 0 < content.max() / 2 <= content[place]]
