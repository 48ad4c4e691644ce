"""Tables, figures and the verdict of this experiment, from its run folders or, for the verdict, from the committed csv."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from rope_lab.commands.sweep import open_sweep
from rope_lab.config import load, resolve
from rope_lab.plotting import accuracy_of_seeds
from rope_lab.rotary import Method2, RoPE, Variant
from rope_lab.runs import ProbeResult, probe_results
from rope_lab.sweep import Run, finished
from rope_lab.tables import Row, accuracies, bucket_rows, final_rows, read_table, write_table
from rope_lab.theory.decay import context_bound, similarity_gap, violations
from rope_lab.theory.periods import angle_ranges

HERE = Path(__file__).parent
HEAD_DIM, START_LENGTH, LENGTH, START_BASE = 32, 128, 512, 200.0
COLORS = {"method1": "tab:blue", "method2": "tab:red", "pi": "tab:orange", "unchanged": "tab:gray"}
LABELS = {"method1": "Method 1", "method2": "Method 2", "pi": "PI", "unchanged": "base unchanged"}
DENSITIES = {"sparse": "up to 24 records a row", "dense": "up to 48 records a row"}
CHANCE = 1 / 10
MARGIN = 0.05  # of accuracy, and of text loss in nats: what is less counts as no difference
LEARNED = 0.95  # accuracy of a start that is well trained


def encodings() -> dict[str, Variant]:
    """What each method of the sweep turns by."""
    found = {}
    for run in open_sweep(HERE, "tiny"):
        method = run.name.split("_")[0]
        if method in COLORS and method not in found:
            found[method] = resolve(load(run.config, run.flags(Path()))).rotary
    return found


def about(name: str, encoding: Variant) -> Row:
    """What an encoding promises before anything is trained: a row of `bounds.csv` or `boundary_pairs.csv`."""
    theta = encoding.spectrum(HEAD_DIM, LENGTH).theta
    found = violations(theta, LENGTH)
    seen = RoPE(base=START_BASE).spectrum(HEAD_DIM, START_LENGTH).theta
    unseen = angle_ranges(seen, theta, trained_length=START_LENGTH, target_length=LENGTH).out_of_distribution
    return {
        "encoding": name,
        "pairs_out_of_distribution": unseen.size,
        "l_theta_tokens": context_bound(theta),
        "negative_to_start_length": sum(max(min(last, START_LENGTH) - first + 1, 0) for first, last in found.intervals),
        "negative_beyond": sum(max(last - max(first, START_LENGTH + 1) + 1, 0) for first, last in found.intervals),
        "least_gap": round(found.worst_gap, 4),
        "least_gap_at_tokens": found.worst_distance,
    }


def theory() -> dict[str, list[Row]]:
    """B_m of every method at every distance, what follows, and what other boundary pairs of Method 2 would have given."""
    chosen = encodings()
    distances = np.arange(1, LENGTH + 1)
    gaps = {name: similarity_gap(encoding.spectrum(HEAD_DIM, LENGTH).theta, distances) for name, encoding in chosen.items()}
    candidates = [Method2(factor=LENGTH / START_LENGTH, boundary_pair=pair, base=START_BASE) for pair in range(1, HEAD_DIM // 2)]
    return {
        "gaps": [{"distance_tokens": int(m)} | {name: round(float(values[m - 1]), 4) for name, values in gaps.items()} for m in distances],
        "bounds": [about(name, encoding) for name, encoding in chosen.items()],
        "boundary_pairs": [about(f"method2, boundary pair {candidate.boundary_pair}", candidate) for candidate in candidates],
    }


def collect(workdir: Path) -> tuple[list[Row], list[Row]]:
    """One row for each probed step of each finished run, and one for each distance bucket of those."""
    negative = {
        name: similarity_gap(encoding.spectrum(HEAD_DIM, LENGTH).theta, np.arange(LENGTH + 1)) < 0 for name, encoding in encodings().items()
    }
    steps, buckets = [], []
    for run in open_sweep(HERE, "tiny"):
        if not finished(run, workdir):
            continue
        config = resolve(load(run.config, run.flags(workdir)))
        texts = {result.step: result.scalars for result in probe_results(workdir / run.name, "perplexity")}
        for result in probe_results(workdir / run.name, "kv_by_distance"):
            named = names_of(run) | {"seed": config.train.seed, "step": result.step}
            steps.append(
                named
                | {
                    "effective_length_tokens": result.scalars["effective_length_tokens"],
                    "accuracy": round(result.scalars["accuracy"], 4),
                    "least_accuracy": round(float(result.arrays["accuracy"].min()), 4),
                    "text_loss_nats": round(texts[result.step]["loss_nats"], 5),
                }
                | beyond(result, negative.get(named["method"], np.zeros(LENGTH + 1, bool)))
            )
            buckets += bucket_rows(run.name, result)
    return steps, buckets


def names_of(run: Run) -> dict[str, str]:
    """Run, method and density; a start has no density."""
    method, *density, _ = run.name.split("_")
    return {"run": run.name, "method": method, "density": density[0] if density else ""}


def beyond(result: ProbeResult, negative: np.ndarray) -> dict[str, int]:
    """Questions and right answers at distances that the start never had, by the sign of B_m there."""
    distances, right = result.arrays["distance_tokens"], result.arrays["correct"]
    counts = {}
    for sign, where in (("negative", negative[distances]), ("not_negative", ~negative[distances])):
        asked = where & (distances > START_LENGTH)
        counts |= {f"beyond_{sign}_questions": int(asked.sum()), f"beyond_{sign}_right": int(right[asked].sum())}
    return counts


def share(row: Row, *signs: str) -> float:
    """Accuracy beyond the start's context where B_m has one of the signs."""
    return sum(row[f"beyond_{sign}_right"] for sign in signs) / max(sum(row[f"beyond_{sign}_questions"] for sign in signs), 1)


def far(row: Row) -> float:
    """Accuracy beyond the start's context."""
    return share(row, "negative", "not_negative")


def verdict(steps: list[Row]) -> list[str]:
    """What the table says of each claim; rows are of `steps.csv`, numbers as numbers, in the order of their steps."""
    last = final_rows(steps)
    first = final_rows(reversed(steps))

    def of(rows: list[Row], method: str, density: str = "") -> dict[int, Row]:
        """Rows by seed."""
        return {row["seed"]: row for row in rows if row["method"] == method and row["density"] == density}

    def said(claim: str, holds: Iterable[bool], figures: str) -> str:
        held = list(holds)
        return f"{claim}: {sum(held)} of {len(held)} ({figures})"

    def shown(values: Iterable[float], digits: int = 2) -> str:
        return "/".join(f"{value:.{digits}f}" for value in values)

    starts = [row["least_accuracy"] for row in of(last, "start").values()]
    figures = f"least of the buckets, by seed: {shown(starts)}"
    lines = [said(f"The start reaches {LEARNED} at every distance up to {START_LENGTH}", (value >= LEARNED for value in starts), figures)]
    for density, what in DENSITIES.items():
        here = f"With {what}, beyond {START_LENGTH} tokens"
        rows = {method: of(last, method, density) for method in COLORS}
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in rows.values())))
        length = {method: [rows[method][seed]["effective_length_tokens"] for seed in seeds] for method in COLORS}
        accuracy = {method: [far(rows[method][seed]) for seed in seeds] for method in COLORS}
        loss = {method: [rows[method][seed]["text_loss_nats"] for seed in seeds] for method in COLORS}
        claims = {"method2": "Method 2 retrieves worse than Method 1", "pi": "PI retrieves worse than Method 1"}
        claims["unchanged"] = "The unchanged base retrieves worse than Method 1"
        for method, claim in claims.items():
            below = (a < b - MARGIN for a, b in zip(accuracy[method], accuracy["method1"], strict=True))
            figures = f"{shown(accuracy[method])} against {shown(accuracy['method1'])}"
            figures += f"; effective length {shown(length[method], 0)} against {shown(length['method1'], 0)}"
            lines.append(said(f"{here}: {claim} by more than {MARGIN}", below, figures))
        early = {method: [far(of(first, method, density)[seed]) for seed in seeds] for method in ("method1", "method2", "pi")}
        below = (a < b - MARGIN for a, b in zip(early["method2"], early["method1"], strict=True))
        figures = f"{shown(early['method2'])} against {shown(early['method1'])}; PI {shown(early['pi'])}"
        lines.append(said(f"{here}: {claims['method2']} by more than {MARGIN} after {_first_step(first)} steps", below, figures))
        for name, source in (("in the end", last), (f"after {_first_step(first)} steps", first)):
            for method in ("method2", "pi"):
                pairs = [(share(row, "negative"), share(row, "not_negative")) for row in map(of(source, method, density).get, seeds) if row]
                figures = f"{shown(a for a, _ in pairs)} against {shown(b for _, b in pairs)}"
                claim = f"{here}: {LABELS[method]} retrieves worse where B_m < 0 than elsewhere by more than {MARGIN} {name}"
                lines.append(said(claim, (a < b - MARGIN for a, b in pairs), figures))
        close = (abs(a - b) <= MARGIN for a, b in zip(loss["method2"], loss["method1"], strict=True))
        figures = f"{shown(loss['method2'], 3)} against {shown(loss['method1'], 3)}; PI {shown(loss['pi'], 3)}"
        figures += f"; base unchanged {shown(loss['unchanged'], 3)}"
        lines.append(said(f"With {what}: Method 2's text loss is within {MARGIN} nats of Method 1's", close, figures))
    return lines


def _first_step(first: list[Row]) -> str:
    return "/".join(f"{step:.0f}" for step in sorted({row["step"] for row in first if row["method"] != "start"}))


def draw_accuracy(steps: list[Row], buckets: list[Row], gaps: list[Row], picture: Path) -> None:
    """Final accuracy by distance at both densities, over bars that mark where each method has B_m < 0."""
    figure, panels = plt.subplots(
        2, 2, figsize=(12, 6.4), layout="constrained", sharex=True, sharey="row", height_ratios=(3, 1), squeeze=False
    )
    last = final_rows(steps)
    # Each distance is drawn a token wide, so that one alone is seen as well.
    distances = np.array([row["distance_tokens"] + side for row in gaps for side in (-0.5, 0.5)])
    negative = {method: np.repeat([row[method] < 0 for row in gaps], 2) for method in COLORS}
    for (upper, lower), (density, what) in zip(panels.T, DENSITIES.items(), strict=True):
        for method, color in COLORS.items():
            chosen = [row for row in last if row["method"] == method and row["density"] == density]
            accuracy_of_seeds(upper, *accuracies(chosen, buckets), label=LABELS[method], color=color)
        shaded = {"color": COLORS["method2"], "alpha": 0.1, "lw": 0}
        upper.fill_between(distances, -0.03, 1.06, where=negative["method2"], label="Method 2: $B_m < 0$", **shaded)
        upper.axvline(START_LENGTH, color="black", lw=0.8, ls=":")
        upper.annotate(" context of the start", (START_LENGTH, 0.02), fontsize=8)
        upper.axhline(CHANCE, lw=0.8, color="gray")
        upper.set_title(what)
        upper.set_xlabel("")
        upper.legend(fontsize=8, loc="center right")
        for place, (method, color) in enumerate(COLORS.items()):
            lower.fill_between(distances, -place - 0.4, -place + 0.4, where=negative[method], color=color, lw=0)
        lower.set_yticks([-place for place in range(len(COLORS))], list(LABELS.values()))
        lower.set(ylim=(-len(COLORS) + 0.4, 0.6), xlim=(0, LENGTH), xlabel="distance from record to query (tokens)")
    panels[1, 0].set_title("where $B_m < 0$", fontsize=9)
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def draw_training(steps: list[Row], picture: Path) -> None:
    """Accuracy beyond the start's context as the continuation goes on; for Method 2 and PI by the sign of B_m as well."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained", sharey=True)
    for axes, (density, what) in zip(panels, DENSITIES.items(), strict=True):
        for method, color in COLORS.items():
            rows = [row for row in steps if row["method"] == method and row["density"] == density]
            if not rows:
                continue
            at = sorted({row["step"] for row in rows})
            by_step = [[row for row in rows if row["step"] == step] for step in at]
            values = [[far(row) for row in some] for some in by_step]
            axes.plot(at, [np.mean(some) for some in values], "o-", ms=4, color=color, label=LABELS[method])
            axes.fill_between(at, [min(some) for some in values], [max(some) for some in values], color=color, alpha=0.2, lw=0)
            if method in ("method2", "pi"):
                where = [np.mean([share(row, "negative") for row in some]) for some in by_step]
                axes.plot(at, where, ":", color=color, lw=1.5, label=f"{LABELS[method]}, where $B_m < 0$")
        axes.axhline(CHANCE, lw=0.8, color="gray")
        axes.set(xlabel="steps at context 512", ylim=(-0.03, 1.06), title=what)
        axes.legend(fontsize=8)
    panels[0].set_ylabel(f"retrieval accuracy beyond {START_LENGTH} tokens")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def draw_gaps(gaps: list[Row], picture: Path) -> None:
    """B_m of every method at every distance."""
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    distances = np.array([row["distance_tokens"] for row in gaps])
    for method, color in COLORS.items():
        values = np.array([row[method] for row in gaps])
        axes.plot(distances, values, lw=1, color=color, label=LABELS[method])
        if method == "method2":
            axes.fill_between(distances, values, 0, where=values < 0, color=color, alpha=0.25, lw=0)
    axes.axhline(0, color="black", lw=0.8)
    axes.axvline(START_LENGTH, color="black", lw=0.8, ls=":")
    axes.set(xlabel="distance $m$ (tokens)", ylabel=r"$B_m$ (units of $2\sigma^2$)", xlim=(0, LENGTH))
    axes.legend(fontsize=8)
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def main() -> int:
    """Writes what theory says; then reads the runs, writes the rest of `results/` and prints the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/05_method1_method2"), help="where the sweep put its runs")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where csv and png go")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tables = theory()
    for name, rows in tables.items():
        write_table(args.out / f"{name}.csv", rows)
    draw_gaps(tables["gaps"], args.out / "gaps.png")
    steps, buckets = collect(args.workdir)
    if not steps:
        print(f"no finished run in {args.workdir}: rope-lab sweep experiments/05_method1_method2 makes them", file=sys.stderr)
        return 2
    write_table(args.out / "steps.csv", steps)
    write_table(args.out / "accuracy.csv", buckets)
    draw_accuracy(steps, buckets, tables["gaps"], args.out / "accuracy.png")
    draw_training(steps, args.out / "training.png")
    print("\n".join(f"- {line}." for line in verdict(read_table(args.out / "steps.csv"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
