"""`rope-lab COMMAND`: each command is a module of `rope_lab.commands`, imported only when asked for."""

import argparse
import importlib
import sys
from typing import NoReturn

COMMANDS = ("prepare", "train", "probe", "theory", "sweep", "report")

EXIT_DONE, EXIT_FAULT, EXIT_BAD_INPUT, EXIT_PREEMPTED = 0, 1, 2, 42


class _Parser(argparse.ArgumentParser):
    """Tells a wrong flag as every other bad input is told: in one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
      0 done; 1 a fault; 2 bad input, told in one line; 42 preempted with everything saved: start the same command again.
    """
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return EXIT_DONE
    if argv[0] not in COMMANDS:
        return _told("", f"unknown command {argv[0]!r}; one of {', '.join(COMMANDS)}", EXIT_BAD_INPUT)
    command = importlib.import_module(f"rope_lab.commands.{argv[0]}")
    from rope_lab.train.loop import Preempted, TrainingDiverged

    parser = _Parser(prog=f"rope-lab {argv[0]}", description=command.__doc__, allow_abbrev=False)
    command.add_arguments(parser)
    try:
        args, args.overrides = parser.parse_known_args(argv[1:])
        if args.overrides and not getattr(command, "TAKES_OVERRIDES", False):
            parser.error(f"{' '.join(args.overrides)!r} is not understood")
        return command.run(args)
    except (ValueError, FileNotFoundError) as error:
        return _told(f" {argv[0]}", error, EXIT_BAD_INPUT)
    except TrainingDiverged as error:
        return _told(f" {argv[0]}", error, EXIT_FAULT)
    except Preempted as error:
        return _told(f" {argv[0]}", error, EXIT_PREEMPTED)


def _told(command: str, message: object, code: int) -> int:
    print(f"rope-lab{command}: {' '.join(str(message).split())}", file=sys.stderr)
    return code


def _usage() -> str:
    lines = ["usage: rope-lab COMMAND [FLAGS]; rope-lab COMMAND --help tells its flags", ""]
    for name in COMMANDS:
        module = importlib.import_module(f"rope_lab.commands.{name}")
        lines.append(f"  {name:10} {(module.__doc__ or '').strip().splitlines()[0]}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
