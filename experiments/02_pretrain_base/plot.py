"""Figures, tables and the verdict of this experiment, from its run folders or, for the verdict, from the committed csv."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from rope_lab.commands.sweep import open_sweep
from rope_lab.config import load, resolve
from rope_lab.plotting import accuracy_of_seeds
from rope_lab.rotary import RoPE
from rope_lab.runs import probe_results
from rope_lab.sweep import finished
from rope_lab.tables import Row, accuracies, bucket_rows, final_rows, read_table, write_table
from rope_lab.theory.decay import context_bound, quarter_period

HERE = Path(__file__).parent
COLORS = {25: "tab:purple", 1e2: "tab:red", 3e2: "tab:orange", 1e3: "tab:olive", 1e4: "tab:green", 1e6: "tab:blue"}
NATS = 0.05  # how much higher the small base's text loss may be


def collect(workdir: Path) -> tuple[list[Row], list[Row]]:
    """One row for each probed step of each finished run, and one for each distance bucket of those."""
    steps, buckets = [], []
    for run in open_sweep(HERE, "tiny"):
        folder = workdir / run.name
        if not finished(run, workdir):
            continue
        config = resolve(load(run.config, run.flags(workdir)))
        assert isinstance(config.rotary, RoPE)
        theta = config.rotary.spectrum(config.model.head_dim, 1).theta
        about = {
            "run": run.name,
            "layers": config.model.num_layers,
            "start_base": run.start.split("_")[1].removeprefix("base") if run.start else "",
            "base": config.rotary.base,
            "seed": config.train.seed,
            "context_length_tokens": config.train.curriculum[-1][0],
            "l_theta_tokens": context_bound(theta),
            "quarter_period_tokens": round(quarter_period(theta), 1),
        }
        texts = {result.step: result.scalars for result in probe_results(folder, "perplexity")}
        for result in probe_results(folder, "kv_by_distance"):
            steps.append(
                about
                | {
                    "step": result.step,
                    "effective_length_tokens": result.scalars["effective_length_tokens"],
                    "effective_length_low_tokens": result.scalars["effective_length_low_tokens"],
                    "effective_length_high_tokens": result.scalars["effective_length_high_tokens"],
                    "longest_passing_length_tokens": result.scalars["longest_passing_length_tokens"],
                    "text_loss_nats": round(texts[result.step]["loss_nats"], 5),
                }
            )
            buckets += bucket_rows(run.name, result)
    return steps, buckets


def verdict(steps: list[Row]) -> list[str]:
    """What the table says of each claim, worst seed first; rows are of `steps.csv`, numbers as numbers."""
    rows = final_rows(steps)

    def lengths(**wanted: Any) -> dict[int, float]:
        """Effective length by seed."""
        found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        return {row["seed"]: row["effective_length_tokens"] for row in found}

    def said(claim: str, holds: list[bool], figures: str) -> str:
        return f"{claim}: {sum(holds)} of {len(holds)} ({figures})"

    def shown(values: Iterable[float]) -> str:
        return "/".join(f"{value:.0f}" for value in values)

    def seeds_of(by_base: dict[float, dict[int, float]]) -> list[int]:
        return sorted(set.intersection(*map(set, by_base.values())))

    lines = []
    continued = {base: lengths(start_base="1e4", base=base) for base in COLORS}
    seeds = seeds_of(continued)
    rising = [all(continued[a][seed] <= continued[b][seed] for a, b in zip(COLORS, list(COLORS)[1:], strict=False)) for seed in seeds]
    lines.append(
        said(
            "Continued from one base 1e4 model at context 512, effective length does not fall as the base rises",
            rising,
            "; ".join(f"{base:g}: {shown(by_seed.values())}" for base, by_seed in continued.items()),
        )
    )
    lines.append(said("It is 512 at base 1e6", [value == 512 for value in continued[1e6].values()], shown(continued[1e6].values())))
    lines.append(said("It is at most 128 at base 1e2", [value <= 128 for value in continued[1e2].values()], shown(continued[1e2].values())))
    for layers in sorted({row["layers"] for row in rows}):
        scratch = {base: lengths(start_base="", base=base, layers=layers) for base in (1e2, 1e4, 1e6)}
        shorter = [scratch[1e2][seed] < min(scratch[1e4][seed], scratch[1e6][seed]) for seed in seeds_of(scratch)]
        figures = "; ".join(f"{base:g}: {shown(by_seed.values())}" for base, by_seed in scratch.items())
        lines.append(said(f"From scratch at 256 with {layers:g} layers, base 1e2 reaches less far than 1e4 and 1e6", shorter, figures))
    pairs = []
    for low in (row for row in rows if row["base"] == 1e2 and row["start_base"] != "1e2"):
        like = ("start_base", "layers", "seed")
        pairs += [
            low["text_loss_nats"] - high["text_loss_nats"]
            for high in rows
            if high["base"] in (1e4, 1e6) and all(low[key] == high[key] for key in like)
        ]
    figures = f"from {min(pairs):+.3f} to {max(pairs):+.3f}"
    lines.append(said(f"Base 1e2's text loss is at most {NATS} nats above its pair's", [gap <= NATS for gap in pairs], figures))
    raised, control = lengths(start_base="1e2", base=1e6), lengths(start_base="1e2", base=1e2)
    doubled = [raised[seed] >= 2 * control[seed] for seed in seeds_of({1: raised, 2: control})]
    figures = f"{shown(raised.values())} against {shown(control.values())}"
    lines.append(said("Base 1e2 continued at 1e6 in twice the context reaches at least twice as far as continued at 1e2", doubled, figures))
    return lines


def draw_bases(rows: list[Row], buckets: list[Row], picture: Path) -> None:
    """The sweep over bases: accuracy by distance, and effective length beside what theory says."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4), layout="constrained")
    continued = [row for row in rows if row["start_base"] == "1e4"]
    for base, color in COLORS.items():
        edges, accuracy = accuracies((row for row in continued if row["base"] == base), buckets)
        accuracy_of_seeds(left, edges, accuracy, label=f"base {base:g}", color=color)
    left.axhline(1 / 16, lw=0.8, color="gray")
    left.legend(fontsize=8, loc="center right")
    left.set_title("Continued from one base 1e4 model at context 512")
    bases = list(COLORS)
    for row in continued:
        right.plot(row["base"], max(row["effective_length_tokens"], 1), "o", color=COLORS[row["base"]], alpha=0.6)
    thetas = [RoPE(base=base).spectrum(32, 1).theta for base in bases]
    right.plot(bases, [context_bound(theta) for theta in thetas], "k--", lw=1, label=r"$L_\theta$")
    right.plot(bases, [quarter_period(theta) for theta in thetas], "k:", lw=1, label=r"slowest quarter period $\pi / 2\theta_{\min}$")
    right.axhline(512, color="gray", lw=0.8)
    right.annotate(" context length", (25, 512), fontsize=8, color="gray", va="bottom")
    right.set(xscale="log", yscale="log", xlabel="base", ylabel="effective length (tokens); one dot a seed", ylim=(8, 2e4))
    right.legend(fontsize=8)
    right.set_title("Effective length beside two predictions")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def draw_depths(rows: list[Row], buckets: list[Row], picture: Path) -> None:
    """From scratch at 256: one panel a depth."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained", sharey=True)
    for panel, layers in zip(axes, (2, 4, 8), strict=True):
        scratch = [row for row in rows if not row["start_base"] and row["layers"] == layers]
        for base in (1e2, 1e4, 1e6):
            chosen = [row for row in scratch if row["base"] == base]
            loss = np.mean([row["text_loss_nats"] for row in chosen]) if chosen else np.nan
            accuracy_of_seeds(panel, *accuracies(chosen, buckets), label=f"{base:g}: {loss:.3f} nats", color=COLORS[base])
        panel.axhline(1 / 16, lw=0.8, color="gray")
        panel.legend(fontsize=8, title="base: text loss", title_fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.1))
        panel.set_title(f"{layers} layers from scratch at 256")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def draw_continuation(rows: list[Row], buckets: list[Row], picture: Path) -> None:
    """The base 1e2 model, continued at twice its context with and without a larger base."""
    figure, panel = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for title, base, start, style in (
        ("base 1e2 at 256", 1e2, "", "o:"),
        ("then base 1e2 at 512", 1e2, "1e2", "o-"),
        ("then base 1e6 at 512", 1e6, "1e2", "s-"),
    ):
        chosen = [row for row in rows if row["base"] == base and row["start_base"] == start and row["layers"] == 2]
        accuracy_of_seeds(panel, *accuracies(chosen, buckets), label=title, color="gray" if not start else COLORS[base], style=style)
    panel.set_xlim(0, 512)
    panel.axhline(1 / 16, lw=0.8, color="gray")
    panel.legend(fontsize=8)
    panel.set_title("What a larger base gives back")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def draw_training(steps: list[Row], buckets: list[Row], picture: Path) -> None:
    """Accuracy by distance over training, two layers from scratch, the mean of the seeds; white lines where the context grows."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained", sharey=True)
    image = None
    for panel, base in zip(axes, (1e2, 1e4, 1e6), strict=True):
        runs = {row["run"] for row in steps if not row["start_base"] and row["layers"] == 2 and row["base"] == base}
        chosen = [bucket for bucket in buckets if bucket["run"] in runs]
        if not chosen:
            continue
        at, edges = (sorted({bucket[key] for bucket in chosen}) for key in ("step", "distance_below_tokens"))
        total = np.zeros((len(edges), len(at)))
        for bucket in chosen:
            total[edges.index(bucket["distance_below_tokens"]), at.index(bucket["step"])] += bucket["accuracy"] / len(runs)
        image = panel.imshow(total, origin="lower", aspect="auto", vmin=0, vmax=1, cmap="viridis")
        panel.set(xticks=range(1, len(at), 2), xticklabels=at[1::2], yticks=range(len(edges)), yticklabels=edges)
        panel.set(xlabel="step", title=f"base {base:g}")
        for step in (300, 600):
            panel.axvline(at.index(step) + 0.5, color="white", lw=1)
    axes[0].set_ylabel("distance below (tokens)")
    if image is not None:
        figure.colorbar(image, ax=axes, label="retrieval accuracy")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def main() -> int:
    """Reads the runs, writes `results/`, prints the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/02_pretrain_base"), help="where the sweep put its runs")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where csv and png go")
    args = parser.parse_args()
    steps, buckets = collect(args.workdir)
    if not steps:
        print(f"no finished run in {args.workdir}: rope-lab sweep experiments/02_pretrain_base makes them", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    write_table(args.out / "steps.csv", steps)
    write_table(args.out / "accuracy.csv", buckets)
    rows = final_rows(steps)
    draw_bases(rows, buckets, args.out / "bases.png")
    draw_depths(rows, buckets, args.out / "depths.png")
    draw_continuation(rows, buckets, args.out / "continuation.png")
    draw_training(steps, buckets, args.out / "training.png")
    print("\n".join(f"- {line}." for line in verdict(read_table(args.out / "steps.csv"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
