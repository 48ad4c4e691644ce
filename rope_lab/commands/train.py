"""pretrain a model, or go on with one, as a config file says"""

import argparse
from pathlib import Path

import jax
from ml_collections import ConfigDict

from rope_lab.assembly import assemble, check_origin, first_state, past_the_wall, probe_settings
from rope_lab.commands.verdict import launch_lines
from rope_lab.config import load, resolve
from rope_lab.plotting import probe_figure
from rope_lab.runs import open_run
from rope_lab.train.loop import train
from rope_lab.train.probing import Probing

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `rope-lab train`; what starts with --config. overrides a field of the config."""
    parser.add_argument("--config", required=True, metavar="FILE", help="a config file; --config.SECTION.FIELD=VALUE overrides its fields")
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder; a run found there with this config is resumed")
    parser.add_argument(
        "--distributed",
        metavar="auto|HOST:PORT,N,I",
        help="join other processes: auto on TPU pods, Slurm and Kubernetes; else the coordinator, how many they are and which this is",
    )


def run(args: argparse.Namespace) -> int:
    """Trains as the flags say."""
    _start_distributed(args.distributed)
    train_from_config(load(args.config, args.overrides), args.workdir)
    print(f"done: {args.workdir}")
    return 0


def train_from_config(config: ConfigDict, workdir: str) -> Path:
    """Runs, or resumes, the training that `config` describes in the run folder `workdir`.

    Returns:
      The run folder.

    Raises:
      ValueError: for anything wrong with what was asked; nothing has been trained then.
      RuntimeError: for a fault once training is under way.
    """
    checked = resolve(config)
    assembly = assemble(checked)
    check_origin(checked, workdir)
    longest = max(length for length, _ in checked.train.curriculum)
    verdict = launch_lines(checked.rotary, checked.model.head_dim, longest, require_bound=checked.theory.require_bound)
    folder = open_run(workdir, config)
    if jax.process_index() == 0:
        print("\n".join(verdict))
    with past_the_wall(f"training in {folder}"):
        train(
            folder,
            trainable=assembly.trainable,
            first_state=lambda: first_state(assembly),
            config=checked.train,
            model=checked.model,
            optimizer=checked.optimizer,
            checkpoint=checked.checkpoint,
            pipeline=assembly.pipeline,
            mesh=assembly.mesh,
            probing=Probing(
                probes=assembly.probes,
                settings={name: probe_settings(checked, name) for name in assembly.probes},
                draw=probe_figure,
                every_steps=checked.probes.every_steps,
                every_tokens=checked.probes.every_tokens,
            ),
        )
    return folder


def _start_distributed(how: str | None) -> None:
    """Joins the other processes of the run, before any device is touched."""
    if how is None:
        return
    if how == "auto":
        jax.distributed.initialize()
        return
    parts = how.split(",")
    if len(parts) != 3 or not parts[1].isdigit() or not parts[2].isdigit():
        raise ValueError(f"--distributed={how!r} must be 'auto' or HOST:PORT,NUMBER_OF_PROCESSES,INDEX_OF_THIS_ONE")
    jax.distributed.initialize(parts[0], int(parts[1]), int(parts[2]))
