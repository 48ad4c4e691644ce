"""what frequencies alone promise: base bounds, a variant's or a published model's verdict, periods

All from the frequencies: no model is built and no accelerator is touched.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rope_lab.commands.theory_tables import base_text, bound_sentences, intervals_table, plain, spectrum_table, verdict_table
from rope_lab.commands.verdict import NO_THEORY, Verdict, base_sentence, extends, judge, rotary_of, sufficient_base
from rope_lab.config import Config, load, parse_variant, resolve
from rope_lab.interop.hf_config import FULL, NO_POSITION, HFPositions, LayerKind, read_hf_config
from rope_lab.rotary import AbstractPositionEncoding, NoPE
from rope_lab.runs import open_config
from rope_lab.theory.decay import check_length
from rope_lab.theory.lower_bound import PAPER_TABLE_2, base_bound
from rope_lab.theory.periods import critical_base, critical_dimension, extrapolation_limit, small_base_thresholds

TAKES_OVERRIDES = True


INTERVALS_BY_DEFAULT = 2**18
"""Tokens up to which `bound` samples the intervals unasked: beyond, they take ten seconds and more."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands and their flags."""
    commands = parser.add_subparsers(dest="what", required=True, metavar="bound|table|variant|periods|compare|check")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="one JSON object on stdout instead of tables")
        return added

    bound = command("bound", "bases of plain RoPE with B_m >= 0 at every distance up to a length")
    bound.add_argument("--length", type=int, required=True, metavar="N", help="tokens")
    bound.add_argument("--head-dim", type=int, default=128, metavar="D")
    bound.add_argument("--resolution", type=float, default=1e-3, metavar="R", help="relative width in base; 0.001 by default")
    bound.add_argument(
        "--intervals",
        action=argparse.BooleanOptionalAction,
        help=f"the valid bases between infimum and stable too, about as long again; by default up to {INTERVALS_BY_DEFAULT:,} tokens",
    )

    table = command("table", "the lower bounds printed in arXiv:2405.14591, Table 2, beside ours")
    table.add_argument("--longest", type=int, default=max(PAPER_TABLE_2), metavar="N", help="leave out longer contexts")

    variant = command("variant", "one variant's spectrum against one length")
    variant.add_argument("--config", metavar="FILE", help="a config file; --config.SECTION.FIELD=VALUE overrides its fields")
    variant.add_argument("--variant", metavar="NAME", help="a name from rope_lab.rotary.VARIANTS")
    variant.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the variant; repeat for more")
    variant.add_argument("--head-dim", type=int, metavar="D", help="by default the config's; needed with --variant")
    variant.add_argument("--length", type=int, metavar="N", help="tokens; by default the config's longest; needed with --variant")
    variant.add_argument("--trained-length", type=int, metavar="T", help="tokens of pretraining; by default the variant's own field")

    period = command("periods", "which pairs complete a turn in training, and what follows for extrapolation")
    period.add_argument("--base", type=float, default=10_000.0, metavar="B", help="of pretraining")
    period.add_argument("--head-dim", type=int, default=128, metavar="D")
    period.add_argument("--trained-length", type=int, required=True, metavar="T", help="tokens of pretraining")
    period.add_argument("--tuned-base", type=float, metavar="B", help="of continued training, for T_extra; by default that of pretraining")
    period.add_argument("--tuning-length", type=int, metavar="N", help="tokens of continued training, for the critical base; by default T")

    compare = command("compare", "B_m and periods of several variants in one picture")
    compare.add_argument(
        *("--variant", "-v"), action="append", nargs="+", required=True, metavar="NAME KEY=VALUE", help="a variant; repeat for more"
    )
    compare.add_argument("--head-dim", type=int, default=128, metavar="D")
    compare.add_argument("--length", type=int, required=True, metavar="N", help="tokens")
    compare.add_argument("--out", required=True, metavar="FILE.png", help="the picture")

    check = command("check", "a verdict for each kind of layer of a published or a planned model")
    check.add_argument("path", metavar="PATH", help="Hugging Face's config.json or its folder, a config.py of ours, or a run folder")
    check.add_argument("--length", type=int, metavar="N", help="tokens claimed, instead of what the file says")
    check.add_argument("--trained-length", type=int, metavar="T", help="tokens of pretraining, instead of what the file says")


def run(args: argparse.Namespace) -> int:
    """Does one subcommand; prints tables, or JSON alone."""
    takes_config = args.what == "check" or (args.what == "variant" and args.config is not None)
    if args.overrides and not takes_config:
        raise ValueError(f"{' '.join(args.overrides)!r} is not understood; see rope-lab theory {args.what} --help")
    found, tables = _SUBCOMMANDS[args.what](args)
    if args.json:
        print(json.dumps(plain(found), allow_nan=False))
    else:
        console = Console()
        for table in tables:
            console.print(table, soft_wrap=isinstance(table, str), highlight=False)
    return 0


Output = tuple[dict[str, Any], Sequence[Table | str]]


def _bound(args: argparse.Namespace) -> Output:
    wanted = args.length <= INTERVALS_BY_DEFAULT if args.intervals is None else args.intervals
    found = base_bound(args.length, args.head_dim, resolution=args.resolution, intervals=wanted)
    shown = [intervals_table(found)] if wanted else []
    left_out = ["intervals: left out at this length; --intervals samples them"] if not wanted and args.intervals is None else []
    return dataclasses.asdict(found), [*shown, *bound_sentences(found), *left_out]


def _table(args: argparse.Namespace) -> Output:
    lengths = [length for length in PAPER_TABLE_2 if length <= args.longest]
    if not lengths:
        raise ValueError(f"longest={args.longest} must be at least {min(PAPER_TABLE_2)}, the table's first context length")
    table = Table("context (tokens)", "printed", "infimum", "stable", title="lower bound of the base, head_dim 128")
    rows = []
    for length in lengths:
        found = sufficient_base(length, 128)
        rows.append({"length_tokens": length, "paper": PAPER_TABLE_2[length], "infimum": found.infimum, "stable": found.stable})
        table.add_row(f"{length:,}", f"{PAPER_TABLE_2[length]:.1e}", base_text(found.infimum), base_text(found.stable))
    return {"head_dim": 128, "source": "arXiv:2405.14591, Table 2", "rows": rows}, [
        table,
        "infimum: the smallest valid base; stable: every base above is valid; between them valid and invalid bases alternate",
    ]


def _variant(args: argparse.Namespace) -> Output:
    if (args.config is None) == (args.variant is None):
        raise ValueError("give either --config=FILE or --variant=NAME")
    if args.config is not None:
        if args.set:
            raise ValueError(f"--set={args.set[0]} goes with --variant; with --config write --config.rotary.{args.set[0]}")
        config = resolve(load(args.config, args.overrides))
        encoding, head_dim, length = config.rotary, args.head_dim or config.model.head_dim, args.length or _longest(config)
    else:
        encoding, head_dim, length = parse_variant(args.variant, args.set), args.head_dim, args.length
        for name, value in (("--head-dim", head_dim), ("--length", length)):
            if value is None:
                raise ValueError(f"{name} is needed with --variant")
    verdict = judge(encoding, head_dim, length, args.trained_length)
    return verdict.as_json(), [verdict_table([("", verdict)], str(encoding)), spectrum_table(verdict), verdict.sentence()]


def _periods(args: argparse.Namespace) -> Output:
    tuned_base = args.base if args.tuned_base is None else args.tuned_base
    tuning_length = args.trained_length if args.tuning_length is None else args.tuning_length
    critical = critical_dimension(args.base, args.trained_length, args.head_dim)
    needed = critical_base(tuning_length, base=args.base, trained_length=args.trained_length, head_dim=args.head_dim)
    betas = small_base_thresholds(args.trained_length)
    reach = {
        name: extrapolation_limit(tuned_base, value, args.head_dim)
        for name, value in (("ceiled", critical.ceiled), ("unceiled", critical.unceiled))
    }
    found = {
        "base": args.base,
        "head_dim": args.head_dim,
        "trained_length_tokens": args.trained_length,
        "tuned_base": tuned_base,
        "tuning_length_tokens": tuning_length,
        "critical_dimension": dataclasses.asdict(critical),
        "beta_1_2_3": betas,
        "T_extra_tokens": reach,
        "critical_base": dataclasses.asdict(needed),
    }
    table = Table(
        "", "ceiled (the paper's)", "unceiled", title=f"base {args.base:g}, {args.trained_length:,} tokens, head_dim {args.head_dim}"
    )
    table.add_row("critical dimension", f"{critical.ceiled}", f"{critical.unceiled:.2f}")
    table.add_row(f"T_extra at base {tuned_base:g} (tokens)", f"{reach['ceiled']:,.0f}", f"{reach['unceiled']:,.0f}")
    table.add_row(f"critical base for {tuning_length:,} tokens", f"{needed.ceiled:,.1f}", f"{needed.unceiled:,.1f}")
    return found, [table, f"beta 1-3 for {args.trained_length:,} tokens: {', '.join(f'{beta:,.1f}' for beta in betas)}"]


def _compare(args: argparse.Namespace) -> Output:
    from rope_lab.plotting import compare_variants

    if Path(args.out).suffix != ".png" or not Path(args.out).absolute().parent.is_dir():
        raise ValueError(f"--out={args.out} must be a .png file in an existing folder")
    length = check_length("length", args.length)
    verdicts: list[tuple[str, Verdict]] = []
    for name, *settings in args.variant:
        encoding = parse_variant(name, settings)
        verdicts.append((" ".join((name, *settings)), judge(encoding, args.head_dim, length)))
    compare_variants({label: verdict.theta for label, verdict in verdicts}, length, Path(args.out))
    found = {"picture": args.out, "variants": [{"label": label, **verdict.as_json()} for label, verdict in verdicts]}
    return found, [verdict_table(verdicts, f"head_dim {args.head_dim}, {length:,} tokens"), f"picture: {args.out}"]


def _check(args: argparse.Namespace) -> Output:
    source, positions = _positions(args.path, args.overrides)
    claimed = check_length("length", positions.claimed_length if args.length is None else args.length)
    trained = positions.trained_length if args.trained_length is None else args.trained_length
    kinds, verdicts = [], []
    notes = [f"trained {'length unknown' if trained is None else f'at {trained:,} tokens'}, claimed {claimed:,}"]
    for kind in positions.kinds:
        length, seen = kind.length, kind.trained_length
        if args.length is not None:
            length = claimed if kind.length == positions.claimed_length else min(kind.length, claimed)
        if args.trained_length is not None and kind.trained_length == positions.trained_length:
            seen = trained
        about = {"kind": kind.name, "layers": kind.layers, "applies": rotary_of(kind.encoding) is not None}
        if not about["applies"]:
            kinds.append(about | {"variant": str(kind.encoding), "verdict": f"{kind.encoding} {NO_THEORY}"})
            notes.append(f"{kind.name} ({len(kind.layers)} layers): {kind.encoding} {NO_THEORY}")
            continue
        verdict = judge(kind.encoding, kind.head_dim, length, seen)
        enough = sufficient_base(length, kind.head_dim)
        bases = {"infimum": enough.infimum, "stable": enough.stable}
        kinds.append(about | verdict.as_json() | {"sufficient_base_of_plain_rope": bases})
        verdicts.append((kind.name, verdict))
        notes.append(f"{kind.name} ({len(kind.layers)} layers): {verdict.sentence()}; {base_sentence(enough)}")
    found = {
        "source": source,
        "path": args.path,
        "model_type": positions.model_type,
        "trained_length_tokens": trained,
        "claimed_length_tokens": claimed,
        "layer_kinds": kinds,
    }
    return found, [verdict_table(verdicts, args.path), *notes]


def _positions(path: str, overrides: list[str]) -> tuple[str, HFPositions]:
    """What a path holds, and the positions in it; a model of ours has one kind of layer."""
    place = Path(path)
    folder = place if place.is_dir() else place.parent if place.name == "config.json" else None
    if folder is not None:
        if not (folder / "config.json").is_file():
            raise ValueError(f"{path!r} holds no config.json: give a run folder, a Hugging Face config.json, or a config.py")
        if not (folder / "spectrum.json").is_file():
            return "huggingface", _without_overrides(overrides, read_hf_config(folder / "config.json"))
        config = _without_overrides(overrides, resolve(open_config(str(folder))))
        return "run", _own(config)
    if place.suffix == ".json":
        if not place.is_file():
            raise ValueError(f"{path!r} does not exist: give a run folder, a Hugging Face config.json, or a config.py")
        return "huggingface", _without_overrides(overrides, read_hf_config(place))
    return "config", _own(resolve(load(path, overrides)))


def _without_overrides(overrides: list[str], value: Any) -> Any:
    if overrides:
        raise ValueError(f"{' '.join(overrides)!r} is not understood; only a config.py takes --config. overrides")
    return value


def _own(config: Config) -> HFPositions:
    """A model of ours: one kind of layer, and every k-th without positions where the config says so."""
    length, model = _longest(config), config.model
    trained = _trained(config.rotary, length)
    without = [i for i in range(model.num_layers) if model.nope_every is not None and (i + 1) % model.nope_every == 0]
    kinds = [
        LayerKind(name=name, layers=tuple(layers), encoding=encoding, head_dim=model.head_dim, length=length, trained_length=trained)
        for name, layers, encoding in (
            (FULL, [i for i in range(model.num_layers) if i not in without], config.rotary),
            (NO_POSITION, without, NoPE()),
        )
        if layers
    ]
    return HFPositions(model_type="rope_lab", claimed_length=length, trained_length=trained, kinds=tuple(kinds))


def _trained(encoding: AbstractPositionEncoding, length: int) -> int | None:
    """A variant that extends a model knows the length of pretraining, or nobody does; any other is trained at `length`."""
    variant = rotary_of(encoding)
    return getattr(variant, "trained_length", None if variant is not None and extends(variant) else length)


def _longest(config: Config) -> int:
    return max(length for length, _ in config.train.curriculum)


_SUBCOMMANDS = {"bound": _bound, "table": _table, "variant": _variant, "periods": _periods, "compare": _compare, "check": _check}
