"""Turn text into token stores, one per source; without INPUTS, the sample that ships with rope_lab.

INPUTS are files, globs or folders of `.jsonl`, `.jsonl.gz` or `.jsonl.zst` in RedPajama's layouts (1T, V2, SlimPajama).
"""

import argparse

from rich.console import Console
from rich.table import Table

from rope_lab.data.prepare import prepare, prepare_sample
from rope_lab.data.store import StoreInfo, TokenStore, open_sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("inputs", nargs="*", metavar="INPUTS", help="files, globs or folders; none for the shipped sample")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to make: DIR/SOURCE, or DIR/train and DIR/eval for the sample")
    parser.add_argument(
        "--tokenizer", default="bytes", help="bytes (default), bpe_8k, or the path of a tokenizer.json or a SentencePiece .model"
    )
    parser.add_argument("--source", metavar="NAME", help="source of all lines; by default the lines or the file names tell")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; by default one per core")
    parser.add_argument("--tasks", type=int, metavar="N", help="units of work the files are dealt to; by default one per file, up to 1024")
    parser.add_argument("--skip-bad", action="store_true", help="count and skip lines that cannot be used, instead of stopping")
    parser.add_argument("--verbose", action="store_true", help="show datatrove's own log")


def run(args: argparse.Namespace) -> int:
    """Prepares, shows what was made, and names the command to type next."""
    if args.inputs:
        prepare(
            args.inputs,
            args.out,
            tokenizer=args.tokenizer,
            workers=args.workers,
            tasks=args.tasks,
            source=args.source,
            skip_bad=args.skip_bad,
            verbose=args.verbose,
        )
        folders = {"": args.out}
    else:
        for name in ("tasks", "source", "skip_bad"):
            if value := getattr(args, name):
                raise ValueError(f"{name}={value!r} means nothing for the shipped sample: give INPUTS, or leave it out")
        prepare_sample(args.tokenizer, args.out, workers=args.workers, verbose=args.verbose)
        folders = {"train/": f"{args.out}/train", "eval/": f"{args.out}/eval"}
    stores = {f"{prefix}{name}": store for prefix, folder in folders.items() for name, store in open_sources(folder).items()}
    console = Console()
    console.print(_table(stores))
    path = next(iter(folders.values()))
    console.print(
        f"next: rope-lab train --config=configs/tiny.py --workdir=runs/first --config.data.path={path}", soft_wrap=True, highlight=False
    )
    return 0


def _table(stores: dict[str, TokenStore]) -> Table:
    table = Table("source")
    for heading in ("documents", "tokens", "MB"):
        table.add_column(heading, justify="right")
    for name, store in stores.items():
        table.add_row(name, f"{store.info.num_documents:,}", f"{store.info.num_tokens:,}", f"{_megabytes(store.info):,.1f}")
    return table


def _megabytes(info: StoreInfo) -> float:
    """Size of the tokens as read; zstd makes them smaller on disk."""
    return info.num_tokens * (2 if info.dtype == "uint16" else 4) / 1e6
