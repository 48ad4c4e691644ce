"""How `rope-lab theory` shows what it found: rich tables, or plain values for JSON."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from rich.table import Table

from rope_lab.commands.verdict import Verdict
from rope_lab.theory.lower_bound import BaseBound
from rope_lab.theory.periods import periods


def verdict_table(verdicts: list[tuple[str, Verdict]], title: str) -> Table:
    """One column for each spectrum, by label."""
    table = Table("", title=title)
    for label, _ in verdicts:
        table.add_column(label, justify="right")
    rows: dict[str, Callable[[Verdict], str]] = {
        "length (tokens)": lambda verdict: f"{verdict.length:,}",
        "trained length (tokens)": lambda verdict: "unknown" if verdict.trained_length is None else f"{verdict.trained_length:,}",
        "L_theta (tokens)": lambda verdict: f"{'>= ' if verdict.l_theta_is_limit else ''}{verdict.l_theta:,}",
        "distances with B_m < 0": lambda verdict: f"{verdict.violations:,}",
        "least B_m": lambda verdict: f"{verdict.worst_gap:.4g}",
        "at distance (tokens)": lambda verdict: f"{verdict.worst_distance:,}",
        "pairs out of distribution": _unseen,
        "quarter period (tokens)": lambda verdict: f"{verdict.quarter_period:,.0f}",
        "attention factor": lambda verdict: f"{verdict.attention_factor:.4f}",
    }
    for name, show in rows.items():
        table.add_row(name, *(show(verdict) for _, verdict in verdicts))
    return table


def _unseen(verdict: Verdict) -> str:
    unseen = verdict.out_of_distribution
    return "unknown" if unseen is None else f"{len(unseen)} of {len(verdict.theta)}"


def spectrum_table(verdict: Verdict) -> Table:
    """Every pair's frequency and period."""
    table = Table("pair", "theta (radians/token)", "period (tokens)", title="spectrum")
    for i, (angle, period) in enumerate(zip(verdict.theta, periods(verdict.theta), strict=True)):
        table.add_row(str(i), f"{angle:.6e}", f"{period:,.1f}")
    return table


def _ends(intervals: Iterable[tuple[float, float]], shown: int = 6) -> list[tuple[float | None, float | None]]:
    """The first and the last of many intervals; a row of None between."""
    every: list[tuple[float | None, float | None]] = [(first, None if math.isinf(last) else last) for first, last in intervals]
    return every if len(every) <= 2 * shown else [*every[:shown], (None, None), *every[-shown:]]


def base_text(base: float | None) -> str:
    """A base to six digits."""
    return "none" if base is None else f"{base:,.6g}"


def plain(value: Any) -> Any:
    """JSON's own types; what is infinite becomes null, which stands for no end or no limit."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        assert not math.isnan(value), "no figure of the theory is undefined"
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def intervals_table(bound: BaseBound) -> Table:
    """The intervals of valid bases."""
    table = Table("valid bases from", "to", title=f"head_dim {bound.head_dim}, {bound.length:,} tokens")
    for first, last in _ends(bound.intervals or ()):
        table.add_row("..." if first is None else f"{first:,.6g}", "..." if last is None else f"{last:,.6g}")
    return table


def bound_sentences(bound: BaseBound) -> list[str]:
    """Infimum, stable base and intervals, each with what is proved of it."""
    proof = bound.guarantee
    lines = [
        f"head_dim {bound.head_dim}, {bound.length:,} tokens",
        f"infimum {base_text(bound.infimum)} ({proof.infimum}: below it no valid interval wider than {proof.widest_gap:.2g} in ln base, "
        f"{proof.gaps:.2g} in all, can hide)",
        f"stable {base_text(bound.stable)} ({proof.stable}: every larger base is valid; right to {proof.stable_precision:.2g} in ln base)",
    ]
    if bound.intervals is not None:
        lines.append(f"intervals: {proof.intervals}, one base each {proof.resolution:g}; {len(bound.intervals)} found")
    return lines
