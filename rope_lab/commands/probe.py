"""probe a run's checkpoints: perplexity by position, retrieval by distance, effective context length"""

import argparse
import difflib
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rope_lab.assembly import assemble, checkpoint_steps, load_params, probe_settings, probed_length
from rope_lab.commands.verdict import SEARCH_LIMIT, rotary_of
from rope_lab.config import Config, apply_overrides, resolve
from rope_lab.probes.suite import PROBES
from rope_lab.runs import open_config
from rope_lab.theory.decay import context_bound, quarter_period
from rope_lab.train.probing import Failure, attempt, keep_result, kept_scalars

TAKES_OVERRIDES = True

Found = dict[tuple[str, int], dict[str, float]]
"""A probe's scalars, by its name and the step."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `rope-lab probe`; what starts with --config.probes. overrides a field of the run's config."""
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder; --config.probes.FIELD=VALUE overrides its fields")
    parser.add_argument("--probes", metavar="NAME,NAME", help=f"which probes, of {', '.join(PROBES)}; those of the run's config by default")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, metavar="N", help="which checkpoint; the newest by default")
    which.add_argument("--steps", metavar="FIRST:LAST", help="every checkpoint from step FIRST to LAST; either may be left out")


def run(args: argparse.Namespace) -> int:
    """Probes checkpoints, keeps what was found in the run folder, and prints it beside the theory's bounds.

    Returns:
      0, or 1 if a probe failed; the others have run then.
    """
    fields = open_config(args.workdir)
    apply_overrides(fields, args.overrides, section="probes")
    config, folder = resolve(fields), Path(args.workdir)
    names = _names(args.probes, config)
    steps = _steps(args.step, args.steps, folder)
    settings = {name: probe_settings(config, name) for name in names}
    kept = {(name, step): kept_scalars(folder, name, step, settings[name]) for step in steps for name in names}
    found: Found = {key: scalars for key, scalars in kept.items() if scalars is not None}
    for name, step in found:
        print(f"{name} at step {step}: already there with these settings")
    missing = [key for key in kept if key not in found]
    for (name, step), result in _probed(config, folder, missing):
        keep_result(folder, name, step, *result, settings[name])
        found[name, step] = result[0]
    found = {key: found[key] for key in kept if key in found}  # in the order of the steps, as asked for
    console = Console()
    if len(steps) == 1 and found:
        console.print(_metrics(found, f"{args.workdir}, step {steps[0]}"))
    if any("effective_length_tokens" in scalars for scalars in found.values()):
        console.print(_effective_lengths(found, config, f"Effective context length of {args.workdir}"))
    return 0 if len(found) == len(kept) else 1


def _names(text: str | None, config: Config) -> tuple[str, ...]:
    """The probes asked for, each once."""
    names = config.probes.names if text is None else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PROBES:
            near = difflib.get_close_matches(name, PROBES, 3)
            meant = f"did you mean {' or '.join(map(repr, near))}?" if near else f"one of {', '.join(PROBES)}"
            raise ValueError(f"--probes={text} names the unknown probe {name!r}; {meant}")
    if not names:
        raise ValueError(f"the run's config names no probe (probes.names=()); choose some with --probes, of {', '.join(PROBES)}")
    return names


def _steps(step: int | None, span: str | None, folder: Path) -> list[int]:
    """The checkpoints asked for, oldest first."""
    steps = checkpoint_steps(folder)
    if not steps or (step is not None and step not in steps):
        raise ValueError(f"{folder} has no checkpoint{'' if step is None else f' of step {step}'}; steps it has: {steps or 'none'}")
    if span is None:
        return [steps[-1] if step is None else step]
    first, colon, last = span.partition(":")
    if not colon or not all(end == "" or end.isdecimal() for end in (first, last)):
        raise ValueError(f"--steps={span} must be FIRST:LAST, two steps of which either may be left out, such as 1000:5000 or 1000:")
    chosen = [number for number in steps if int(first or 0) <= number <= (int(last) if last else steps[-1])]
    if not chosen:
        raise ValueError(f"--steps={span} has no checkpoint of {folder} in it; steps it has: {steps}")
    return chosen


def _probed(config: Config, folder: Path, missing: list[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], tuple[dict, dict]]]:
    """Runs what is missing, step by step, and yields each result as it comes. A probe that fails is told on standard error."""
    if not missing:
        return
    assembly = assemble(config, tuple(dict.fromkeys(name for name, _ in missing)))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(missing))
        loaded, params = None, {}
        for name, step in missing:
            bar.update(task, description=f"{name} at step {step}")
            if step != loaded:
                params = {}  # gone before the next ones come
                params, loaded = load_params(folder, step, assembly.trainable)
            result = attempt(lambda name=name, params=params: assembly.probes[name](params))
            if isinstance(result, Failure):
                print(f"{result.trace}rope-lab probe: {name} failed at step {step}: {result.line}", file=sys.stderr)
            else:
                yield (name, step), result
            bar.advance(task)


def _metrics(found: Found, title: str) -> Table:
    """Every metric of one step."""
    table = Table("probe", "metric", "value", title=title)
    for (name, _), scalars in found.items():
        for metric, value in scalars.items():
            table.add_row(name, metric, f"{value:,.4g}")
    return table


def _effective_lengths(found: Found, config: Config, title: str) -> Table:
    """Effective lengths by step, beside what the frequencies alone say of the variant."""
    bound, period = _theory(config)
    columns = ("step", "effective length", "95 % interval", "longest passing", "L_theta", "slowest quarter period")
    table = Table("probe", title=f"{title} (tokens)")
    for column in columns:
        table.add_column(column, justify="right")
    for name, step in sorted(found, key=lambda key: (list(PROBES).index(key[0]), key[1])):
        scalars = found[name, step]
        if "effective_length_tokens" in scalars:
            low, high = (scalars[f"effective_length_{end}_tokens"] for end in ("low", "high"))
            reached, longest = scalars["effective_length_tokens"], scalars["longest_passing_length_tokens"]
            table.add_row(name, str(step), f"{reached:,}", f"{low:,} .. {high:,}", f"{longest:,}", bound, period)
    return table


def _theory(config: Config) -> tuple[str, str]:
    """L_theta and the slowest quarter period of the run's variant at the probed length, as they print."""
    rotary, length = rotary_of(config.rotary), probed_length(config)
    if rotary is None:
        return "none", "none"
    theta = rotary.spectrum(config.model.head_dim, length).theta
    limit = max(length, SEARCH_LIMIT)
    bound, period = context_bound(theta, limit), quarter_period(theta)
    return f"{'>= ' if bound == limit else ''}{bound:,}", f"{period:,.0f}" if math.isfinite(period) else "infinite"
