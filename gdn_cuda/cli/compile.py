"""compile: compile kernels ahead of use, without a GPU."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..runtime import CompileError, CompileResult, Progress
from .output import console


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("compile", help="compile kernels ahead of use; needs no GPU")
    parser.add_argument(
        "--arch", action="append", help="such as sm_90a, may be repeated; default: this machine's GPU, or sm_90a without one"
    )
    parser.add_argument("--family", help="only this family")
    parser.add_argument("--kernel", help="only this kernel")
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="parallel compiles (default: %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="write entries there, for use as GDN_JIT_PREBUILT_DIR; default: the cache")
    parser.add_argument("--force", action="store_true", help="compile again what exists already")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .. import runtime

    failed = None
    with _progress() as progress:
        try:
            results = runtime.compile(
                arguments.family,
                arguments.kernel,
                arguments.arch,
                arguments.out,
                arguments.jobs,
                progress,
                arguments.force,
            )
        except CompileError as error:
            failed, results = error, error.results
    if failed:
        print(failed, file=sys.stderr)
    compiled = [result for result in results if result.origin == "compiled"]
    ready = len(results) - sum(bool(result.error) for result in results)
    print(
        f"{ready} of {len(results)} configurations ready, {len(compiled)} compiled now "
        f"({sum(result.seconds for result in compiled):.1f} s of compile time)"
        + (f", in {arguments.out}" if arguments.out else "")
    )
    return 1 if failed else 0


@contextmanager
def _progress() -> Iterator[Progress]:
    terminal = console()
    if not terminal.is_terminal:
        yield lambda done, total, result: print(f"[{done}/{total}] {describe(result)}", flush=True)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, result: bar.update(task, completed=done, total=total, description=describe(result))


def describe(result: CompileResult) -> str:
    what = f"{result.kernel} {result.configuration} {result.arch}"
    if result.error:
        return f"{what}: failed"
    if result.origin != "compiled":
        return f"{what}: {result.origin}"
    serialized = ", wgmma serialized" if result.is_serialized else ""
    return (
        f"{what}: {result.seconds:.2f} s, {result.registers} registers, {result.shared_bytes} bytes of shared memory, "
        f"{result.spill_bytes} bytes spilled, {result.stack_bytes} bytes of stack{serialized}"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text}")
    return int(text)
