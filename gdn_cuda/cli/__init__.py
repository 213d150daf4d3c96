"""python -m gdn_cuda: what a machine has, what is compiled, and how fast it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import bench, cache, compile, doctor, kernels, tune


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m gdn_cuda", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (doctor, kernels, compile, cache, bench, tune):
        module.add_parser(commands)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        # The interpreter's last flush needs somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (RuntimeError, ValueError) as error:
        print(f"gdn_cuda {chosen.command}: {error}", file=sys.stderr)
        return 1
