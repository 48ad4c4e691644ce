"""`rope-lab COMMAND`: each command is a module of `rope_lab.commands`, imported only when asked for."""

import argparse
import importlib
import sys

COMMANDS = ("prepare", "train", "probe")

EXIT_DONE, EXIT_FAULT, EXIT_BAD_INPUT, EXIT_PREEMPTED = 0, 1, 2, 42


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
      0 done; 1 a fault; 2 bad input, told in one line; 42 preempted with everything saved: start the same command again.
    """
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in COMMANDS:
        print(_usage(), file=sys.stdout if argv[:1] in ([], ["-h"], ["--help"]) else sys.stderr)
        return EXIT_DONE if argv[:1] in ([], ["-h"], ["--help"]) else EXIT_BAD_INPUT
    command = importlib.import_module(f"rope_lab.commands.{argv[0]}")
    parser = argparse.ArgumentParser(prog=f"rope-lab {argv[0]}", description=command.__doc__, allow_abbrev=False)
    command.add_arguments(parser)
    args, args.overrides = parser.parse_known_args(argv[1:])
    if args.overrides and not getattr(command, "TAKES_OVERRIDES", False):
        parser.error(f"{' '.join(args.overrides)!r} is not understood")  # exits with 2
    from rope_lab.train.loop import Preempted, TrainingDiverged

    try:
        return command.run(args)
    except (ValueError, FileNotFoundError) as error:
        print(f"rope-lab {argv[0]}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except TrainingDiverged as error:
        print(f"rope-lab {argv[0]}: {error}", file=sys.stderr)
        return EXIT_FAULT
    except Preempted as error:
        print(f"rope-lab {argv[0]}: {error}", file=sys.stderr)
        return EXIT_PREEMPTED


def _usage() -> str:
    lines = ["usage: rope-lab COMMAND [FLAGS]; rope-lab COMMAND --help tells its flags", ""]
    for name in COMMANDS:
        module = importlib.import_module(f"rope_lab.commands.{name}")
        lines.append(f"  {name:10} {(module.__doc__ or '').strip().splitlines()[0]}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
