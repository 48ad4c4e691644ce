"""Redraws, from our code, what "Base of RoPE Bounds Context Length" shows about frequencies alone. See README.md beside this file."""

import argparse
import csv
import itertools
import os
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from rope_lab.commands.verdict import judge
from rope_lab.plotting import gap_by_distance
from rope_lab.rotary import Method1, Method2, RoPE, inverse_powers
from rope_lab.theory.decay import context_bound, score_bound, violations
from rope_lab.theory.lower_bound import PAPER_TABLE_2, base_bound, power_law
from rope_lab.theory.periods import angle_ranges

HEAD_DIM = 128
RESULTS = Path(__file__).parent / "results"
# The two readings of the paper's "1k": thousands of tokens, and multiples of 1,024.
BASES = ((500.0, "tab:red"), (1e4, "tab:orange"), (1e6, "tab:blue"))
LENGTHS = [*((length, "1k = 1,000") for length in PAPER_TABLE_2), *((1024 * 2**k, "1k = 1,024") for k in range(11))]
# Models with their published base and context (tokens), all of head_dim 128.
MODELS = [
    ("Llama-7B", 1e4, 2048),
    ("Llama2-7B", 1e4, 4096),
    ("Llama3-8B", 5e5, 8192),
    ("Mistral-7B-v0.2", 1e6, 32_768),
    ("Baichuan2-7B", 1e4, 4096),
]


def measure() -> None:
    """The search for every length, and what it cost: results/bounds.csv and results/cost.csv. Minutes."""
    bounds, costs = [], []
    for length, reading in LENGTHS:
        wall, processor = time.perf_counter(), time.process_time()
        found = base_bound(length, HEAD_DIM, intervals=False)
        seconds = {"wall_seconds": round(time.perf_counter() - wall, 3), "processor_seconds": round(time.process_time() - processor, 3)}
        where = {"length_tokens": length, "reading": reading}
        bounds.append(where | {"infimum": found.infimum, "stable": found.stable, "widest_gap": found.guarantee.widest_gap})
        costs.append(where | seconds | {"load_average": round(os.getloadavg()[0], 2)})
        print(f"{length:,} tokens: infimum {found.infimum:,.0f}, stable {found.stable:,.0f}, {seconds['wall_seconds']} s", flush=True)
    write("bounds", bounds)
    write("cost", costs)


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """One CSV file with a header."""
    with open(RESULTS / f"{name}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def read(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of ours."""
    with open(RESULTS / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def column(rows: list[dict[str, str]], name: str) -> np.ndarray:
    """One column as numbers."""
    return np.array([float(row[name]) for row in rows])


def of_reading(rows: list[dict[str, str]], reading: str) -> list[dict[str, str]]:
    """The rows of one reading of the paper's lengths."""
    return [row for row in rows if row["reading"] == reading]


def figure_1() -> None:
    """Context length against the lower bound of the base, printed and ours."""
    rows, printed = of_reading(read("bounds"), "1k = 1,000"), np.array(list(PAPER_TABLE_2.values()))
    lengths = column(rows, "length_tokens")
    figure, axes = plt.subplots(figsize=(7, 4.8), layout="constrained")
    axes.plot(lengths, printed, "k^", label="printed (Table 2)")
    line = np.geomspace(lengths[0], lengths[-1], 50)
    fits = []
    for name, values, color, style in (
        ("printed", printed, "black", "--"),
        ("infimum", column(rows, "infimum"), "tab:blue", "-"),
        ("stable", column(rows, "stable"), "tab:red", "-"),
    ):
        coefficient, exponent = power_law(1024 * 2.0 ** np.arange(11), values)
        fits.append({"values": name, "coefficient": round(coefficient, 5), "exponent": round(exponent, 4)})
        if name != "printed":
            axes.plot(lengths, values, "o", ms=5, color=color, label=f"{name} (ours)")
        axes.plot(line, coefficient * line**exponent, style, lw=1, color=color, label=f"{coefficient:.3g} $L^{{{exponent:.3f}}}$")
    axes.set(xscale="log", yscale="log", xlabel="context length $L$ (tokens)", ylabel="base of RoPE (dimensionless)")
    axes.set_title(f"Lower bound of the base, head_dim {HEAD_DIM}")
    axes.legend(fontsize=9)
    axes.grid(alpha=0.3)
    figure.savefig(RESULTS / "figure_1.png", dpi=130)
    write("figure_1_fits", fits)


def figure_2() -> None:
    """The slowest pair's cosine from 4,096 to 32,768 tokens: new angles, and two ways to have none."""
    trained, target, factor = 4096, 32_768, 8
    ntk = 1e4 * factor ** (HEAD_DIM / (HEAD_DIM - 2))
    m = np.arange(target + 1)
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.4), sharey=True, layout="constrained")
    counts = []
    for axes, (title, base) in zip(panels, (("base 10,000", 1e4), ("base 500", 500.0), (f"base {ntk:,.0f} (NTK-aware)", ntk)), strict=True):
        seen = inverse_powers(500.0 if base == 500.0 else 1e4, HEAD_DIM)  # a smaller base is trained anew, at the trained length
        asked = inverse_powers(base, HEAD_DIM)
        unseen = angle_ranges(seen, asked, trained_length=trained, target_length=target).out_of_distribution
        new = m * asked[-1] > min(trained * seen[-1], 2 * np.pi) * (1 + 1e-9)
        values = np.cos(m * asked[-1])
        axes.plot(m, np.where(new, np.nan, values), color="tab:blue", lw=1, label="angles seen in training")
        if (fresh := new & (63 in unseen)).any():
            axes.plot(m, np.where(fresh, values, np.nan), color="tab:red", lw=1, label="out of distribution")
        elif new.any():
            axes.plot(m, values, color="tab:blue", lw=1)
        axes.axvspan(0, trained, color="tab:blue", alpha=0.1, lw=0)
        axes.set(xlabel="position $m$ (tokens)", title=title, ylim=(-1.05, 1.05), xlim=(0, target))
        violated = violations(asked, target)
        counts.append(
            {
                "base": round(base, 1),
                "pairs_out_of_distribution": unseen.size,
                "slowest_pair_out_of_distribution": 63 in unseen,
                "L_theta_tokens": context_bound(asked),
                "distances_with_negative_gap": violated.count,
            }
        )
    panels[0].set_ylabel(r"$\cos(m\,\theta_{63})$ (dimensionless)")
    panels[0].legend(loc="lower left", fontsize=8)
    figure.savefig(RESULTS / "figure_2.png", dpi=130)
    write("figure_2", counts)


def figure_4() -> None:
    """The upper bound on attention scores, which falls with distance whatever the base."""
    length, stretch = 32_768, 128
    m = np.arange(length)
    starts = m[::stretch]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    columns: dict[str, np.ndarray] = {"distance_tokens": starts}
    for base, color in BASES:
        pieces = [score_bound(inverse_powers(base, HEAD_DIM), piece) for piece in np.split(m, length // stretch)]
        bound = np.array(pieces) / (HEAD_DIM // 2)
        columns |= {f"mean_base_{base:g}": bound.mean(axis=1), f"largest_base_{base:g}": bound.max(axis=1)}
        axes.fill_between(starts, bound.min(axis=1), bound.max(axis=1), color=color, alpha=0.15, lw=0)
        axes.plot(starts, bound.mean(axis=1), lw=1.2, color=color, label=f"base {base:g}")
    axes.set(xlabel="distance $m$ (tokens)", ylabel="bound on the score / (d/2) (dimensionless)", xlim=(0, length), ylim=(0, 16))
    axes.set_title(f"Upper bound on the attention score (Eq. 14): mean and range of {stretch} tokens")
    axes.legend()
    figure.savefig(RESULTS / "figure_4.png", dpi=130)
    write("figure_4", [{name: round(float(values[i]), 4) for name, values in columns.items()} for i in range(len(starts))])


def figure_5() -> None:
    """B_m by distance: the preference for similar tokens, lost where it is negative."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    rows = []
    for base, color in BASES:
        theta = inverse_powers(base, HEAD_DIM)
        gap_by_distance(axes, theta, 32_768, label=f"base {base:g}", color=color)
        found = violations(theta, 32_768)
        rows.append(
            {
                "base": base,
                "L_theta_tokens": context_bound(theta),
                "distances_with_negative_gap_to_32768": found.count,
                "least_gap": round(found.worst_gap, 4),
                "at_distance_tokens": found.worst_distance,
            }
        )
    axes.axhline(0, color="black", lw=0.8)
    axes.set_ylim(top=45)
    axes.set_title("Similar against random tokens (Eq. 16)")
    axes.legend()
    figure.savefig(RESULTS / "figure_5.png", dpi=130)
    write("figure_5", rows)


def pockets() -> None:
    """Least B_m over 0 .. 4,000 as the base grows: validity comes and goes before it stays."""
    length, bases = 4000, np.exp(np.arange(np.log(2.2e4), np.log(7e4), 5e-4))
    least = np.array([violations(inverse_powers(base, HEAD_DIM), length).worst_gap for base in bases])
    valid = base_bound(length, HEAD_DIM).intervals or ()
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    axes.plot(bases, least, lw=1, color="tab:blue")
    for first, last in valid:
        axes.axvspan(first, min(last, bases[-1]), color="tab:green", alpha=0.25, lw=0)
    axes.axhline(0, color="black", lw=0.8)
    axes.axvline(PAPER_TABLE_2[length], color="black", ls="--", lw=1)
    axes.annotate(" printed 2.7e4", (PAPER_TABLE_2[length], least.min()), fontsize=9)
    axes.set(xlabel="base (dimensionless)", ylabel=f"least $B_m$, $0 \\leq m \\leq {length:,}$", xlim=(bases[0], bases[-1]))
    axes.set_title(f"Valid bases (green) for {length:,} tokens are a union of intervals")
    figure.savefig(RESULTS / "intervals_4000.png", dpi=130)
    write("intervals_4000", [{"first": round(first, 2), "last": "no end" if last == np.inf else round(last, 2)} for first, last in valid])


def table_1() -> None:
    """Published bases and contexts, with a verdict each."""
    rows = []
    for name, base, context in MODELS:
        verdict = judge(RoPE(base=base), HEAD_DIM, context)
        enough = base_bound(context, HEAD_DIM, intervals=False)
        rows.append(
            {
                "model": name,
                "base": base,
                "context_tokens": context,
                "L_theta_tokens": verdict.l_theta,
                "distances_with_negative_gap": verdict.violations,
                "least_gap": round(verdict.worst_gap, 4),
                "infimum_for_context": round(enough.infimum or np.nan, 1),
                "stable_for_context": round(enough.stable or np.nan, 1),
                "verdict": "holds" if verdict.holds else "below the bound",
            }
        )
    write("table_1", rows)


def table_2() -> None:
    """The printed bound beside the infimum and the stable base, and whether the printed base is itself valid."""
    rows, other = of_reading(read("bounds"), "1k = 1,000"), of_reading(read("bounds"), "1k = 1,024")
    table = []
    for (length, printed), row, second in zip(PAPER_TABLE_2.items(), rows, other, strict=True):
        found = violations(inverse_powers(printed, HEAD_DIM), length)
        table.append(
            {
                "length_tokens": length,
                "printed": f"{printed:.1e}",
                "infimum": f"{float(row['infimum']):.5g}",
                "stable": f"{float(row['stable']):.5g}",
                "printed_over_infimum": f"{printed / float(row['infimum']):.4f}",
                "printed_base_is_valid": found.count == 0,
                "distances_with_negative_gap_at_printed": found.count,
                "length_in_1024s": int(second["length_tokens"]),
                "infimum_in_1024s": f"{float(second['infimum']):.5g}",
                "stable_in_1024s": f"{float(second['stable']):.5g}",
            }
        )
    write("table_2", table)


def table_4() -> None:
    """Counts of distances at which B_m < 0, for the two methods without out-of-distribution angles."""
    rows = []
    for name, variant in (
        ("method 1, base 5e6", Method1(base=5e6)),
        ("method 2, factor 8, pair 44", Method2(factor=8.0, boundary_pair=44)),
    ):
        for length in (15 * 1024, 30 * 1024):
            found = violations(variant.spectrum(HEAD_DIM, length).theta, length)
            first = found.intervals[0][0] if found.count else ""
            rows.append({"method": name, "length_tokens": length, "distances_with_negative_gap": found.count, "first_at_tokens": first})
    write("table_4", rows)


def cost() -> None:
    """Seconds of the search against the length."""
    rows = read("cost")
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for (reading, marker), (name, color) in itertools.product(
        (("1k = 1,000", "o"), ("1k = 1,024", "x")), (("wall", "tab:red"), ("processor", "tab:blue"))
    ):
        some = of_reading(rows, reading)
        axes.plot(
            column(some, "length_tokens"), column(some, f"{name}_seconds"), marker, color=color, ms=5, label=f"{name} time, {reading}"
        )
    axes.set(xscale="log", yscale="log", xlabel="context length (tokens)", ylabel="time for infimum and stable base (s)")
    axes.set_title(f"Cost of the bound: head_dim {HEAD_DIM}, infimum to 0.1 %, two shared cores")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(RESULTS / "cost.png", dpi=130)


def main() -> None:
    """Redraws everything from the measured bounds; `--measure` searches for them again first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--measure", action="store_true", help="search for the bounds again, minutes, instead of reading results/bounds.csv"
    )
    if parser.parse_args().measure:
        measure()
    for part in (figure_1, figure_2, figure_4, figure_5, pockets, table_1, table_2, table_4, cost):
        part()


if __name__ == "__main__":
    main()
