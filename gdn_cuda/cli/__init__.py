"""python -m gdn_cuda: check a machine, explain calls, compile kernels, manage the cache, benchmark and tune."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from . import bench, cache, compile, doctor, explain, kernels, tune
from .output import print_in_any_encoding

INTERRUPTED = 130  # exit status of a process ended by Ctrl-C


COMMANDS = {module.__name__.rpartition(".")[2]: module for module in (doctor, kernels, explain, compile, cache, bench, tune)}
SCRIPT = "gdn-cuda"  # pip's entry point


class _PrintCMakeDir(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **how: Any):
        super().__init__(option_strings, dest, nargs=0, **how)

    def __call__(self, parser: argparse.ArgumentParser, *parsed: Any) -> NoReturn:
        """Prints the folder and exits; an error in a source tree, where CMake's package file is not installed."""
        folder = Path(__file__).resolve().parents[1] / "lib" / "cmake" / "gdn_cuda"
        if not folder.is_dir():
            parser.error(f"--cmake-dir: expected an installed gdn_cuda with {folder}; ./develop.sh wheel makes one to install")
        print(folder)
        parser.exit()


def parser() -> argparse.ArgumentParser:
    program = SCRIPT if Path(sys.argv[0]).stem == SCRIPT else "python -m gdn_cuda"
    description = "Checks a machine, explains calls, compiles kernels, manages the cache, benchmarks and tunes."
    result = argparse.ArgumentParser(prog=program, description=description)
    result.add_argument("--version", action="version", version=f"gdn_cuda {__version__}")
    result.add_argument("--cmake-dir", action=_PrintCMakeDir, help="the folder for -Dgdn_cuda_DIR=, and exit")
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS.values():
        module.add_parser(commands)
    return result


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """`explain OP --device h200 T=64`: argparse takes no words of a command after an option."""
    top = parser()
    words = [word for word in (sys.argv[1:] if arguments is None else arguments) if not word.startswith("-")]
    if words and words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        top.error(f"COMMAND: expected one of {', '.join(COMMANDS)}, got {words[0]}{meant}")
    chosen, rest = top.parse_known_args(arguments)
    if rest and ("words" not in chosen or any(word.startswith("-") for word in rest)):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        chosen.words = [*chosen.words, *rest]
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    print_in_any_encoding()
    command = ""
    try:
        chosen = parse(arguments)
        command = chosen.command
        code = int(chosen.run(chosen))
        if sys.stdout is not None:
            sys.stdout.flush()  # here, so that a full disk gives a message and an exit code
        return code
    except BrokenPipeError:  # the reader of our output has ended, as `| head` does
        _discard_unwritable_output()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except (RuntimeError, ValueError, OSError) as error:
        print(f"gdn_cuda {command}: {str(error).removeprefix(f'{command}: ')}", file=sys.stderr)
        _discard_unwritable_output()
        return 1


def _discard_unwritable_output() -> None:
    """Without this the interpreter would try, and fail, to write buffered output again when it exits."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
