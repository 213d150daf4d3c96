"""tune: measures the choices of an operator's heuristic on this GPU and stores the fastest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..names import unknown
from .cache import memory_only
from .output import console, print_json, show, table

if TYPE_CHECKING:
    from .._C import DeviceTraits, TunedEntry, TunedFile, TunedList
    from ..operators.tunable import Case
    from .tune_measure import Measured, Outcome, Progress, Runner


def add_parser(commands: Any) -> None:
    from ..operators.measure import load
    from ..operators.tunable import TORCH_DTYPES

    tunables = load().tunables
    parser = commands.add_parser("tune", help="measure an operator's configurations on this GPU and store the fastest")
    parser.add_argument("operator", nargs="?", metavar="OP", help=", ".join(tunables))
    shapes = ", ".join(f"{one.shape.form()} for {name}" for name, one in tunables.items())
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=shapes)
    parser.add_argument("--dtype", help=f"one of {', '.join(TORCH_DTYPES)}, if the operator has it; default: its first")
    parser.add_argument("--shared-poles", action="store_true", help="all rows have the same poles (Cauchy sums)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="list stored results, of OP or of all operators")
    action.add_argument("--clear", action="store_true", help="remove stored results, of OP or of all operators")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..operators.measure import load

    tunables = load().tunables
    if arguments.operator is not None and arguments.operator not in tunables:
        raise ValueError(f"OP: {unknown(arguments.operator, tunables)}")
    if arguments.list or arguments.clear:
        for option, given in (
            ("SHAPE", arguments.shapes),
            ("--dtype", arguments.dtype),
            ("--shared-poles", arguments.shared_poles),
        ):
            if given:
                raise ValueError(f"{option}: expected none with {'--list' if arguments.list else '--clear'}, got {given}")
        return (_list if arguments.list else _clear)(arguments.operator, arguments.json)
    return _tune(_cases(arguments), 20 if arguments.quick else 200, arguments.json)


def _cases(arguments: argparse.Namespace) -> list[Case]:
    from ..operators.measure import load

    tunables = load().tunables
    if arguments.operator is None:
        raise ValueError(f"OP: expected one of {', '.join(tunables)}, or --list or --clear, got none")
    one = tunables[arguments.operator]
    if not arguments.shapes:
        raise ValueError(f"SHAPE: expected at least one for {arguments.operator}, such as {one.shape()}, got none")
    if arguments.shared_poles and not one.shares_poles:
        names = ", ".join(name for name, other in tunables.items() if other.shares_poles)
        raise ValueError(f"--shared-poles: expected one of {names}, to which it matters, got {arguments.operator}")
    shapes = [one.shape.parse(text) for text in arguments.shapes]
    return [one.case(arguments.operator, shape, arguments.dtype, arguments.shared_poles) for shape in shapes]


# ---- Measuring


def device_traits() -> DeviceTraits | None:
    """Traits of the current GPU, or None."""
    import torch

    from .. import _C

    return _C.driver()["devices"][torch.cuda.current_device()] if torch.cuda.is_available() else None


def make_runner(case: Case, device: DeviceTraits, repeats: int) -> Runner:
    from .tune_measure import GpuRunner

    return GpuRunner(case, device, repeats)


def _tune(cases: list[Case], repeats: int, as_json: bool) -> int:
    from .tune_measure import tune

    device = device_traits()
    if device is None:
        print("tune: expected a CUDA GPU, got none. `python -m gdn_cuda doctor` says why.", file=sys.stderr)
        return 2
    reports = []
    for case in cases:
        with _progress(str(case), quiet=as_json) as progress:
            outcome = tune(case, device, make_runner(case, device, repeats), progress)
        kept = _store(outcome, device)
        reports.append(outcome.as_dict() | {"device": device["name"], **kept})
        if not as_json:
            _print(outcome, kept)
    if as_json:
        print_json(reports)
    return 0


def _store(outcome: Outcome, device: DeviceTraits) -> dict[str, Any]:
    """Stores the winner. Returns its file, or why it is not stored or not used, and the choice of later calls."""
    from .. import _C

    case, winner, heuristic = outcome.case, outcome.winner, outcome.heuristic
    stored = _C.tuned_store(case.kernel, case.problem, device, winner.choice, winner.us, heuristic.choice, heuristic.us)
    refusals = _C.cache_refusals()
    why_not = stored["why_not"] and stored["why_not"] + (f" ({'; '.join(refusals)})" if refusals else "")
    if not why_not and not _C.env()["tuned"]:
        why_not = "GDN_TUNED=0 disables stored results"
    read = _C.tuned_list()["folder"]
    if not why_not and read != str(Path(stored["file"]).parent):
        why_not = f"results in {read} take precedence"
    return {
        "file": stored["file"] or None,
        "why_not": why_not or None,
        "decides": _C.tuned_explain(case.kernel, case.problem, device),
    }


@contextmanager
def _progress(title: str, quiet: bool) -> Iterator[Progress]:
    terminal = console()
    if quiet or not terminal.is_terminal:

        def say(done: int, total: int, measured: Measured) -> None:
            if not quiet:
                print(f"[{done}/{total}] {title}: {describe(measured)}", flush=True)

        yield say
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=terminal, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, measured: bar.update(
            task, completed=done, total=total, description=f"{title}: {describe(measured)}"
        )


def describe(measured: Measured) -> str:
    return f"{measured.choice}: {measured.us:.2f} µs"


def _print(outcome: Outcome, kept: dict[str, Any]) -> None:
    terminal = console()
    rows = table("choice", ">µs", ">against the heuristic", ">difference", "", title=str(outcome.case))
    for measured in sorted(outcome.candidates, key=lambda one: one.us):
        marks = [word for word, one in (("stored", outcome.winner), ("heuristic", outcome.heuristic)) if one is measured]
        gain = f"{outcome.heuristic.us / measured.us:.2f}×"
        rows.add_row(measured.choice, f"{measured.us:.2f}", gain, f"{measured.error:.1e}", ", ".join(marks))
    show(terminal, rows)
    if kept["file"]:
        terminal.print(f"stored in {kept['file']}", soft_wrap=True)
    if kept["why_not"]:
        terminal.print(f"{'it will not be used' if kept['file'] else 'not stored'}: {kept['why_not']}", soft_wrap=True)


# ---- Stored results


def _files(listed: TunedList, operator: str | None) -> list[TunedFile]:
    """Files of one operator, or all files, unreadable ones included."""
    return [found for found in listed["files"] if operator is None or _operator(found["entry"]) == operator]


def _operator(entry: TunedEntry | None) -> str | None:
    from ..operators.measure import operator_of

    return entry and operator_of(entry["kernel"], entry["problem"])


def _where(listed: TunedList) -> str:
    from .. import _C

    return listed["folder"] or _C.cache_directory() or memory_only(_C.cache_refusals())


def _list(operator: str | None, as_json: bool) -> int:
    from .. import _C

    listed = _C.tuned_list()
    found = _files(listed, operator)
    if as_json:
        print_json({"folder": listed["folder"] or None, "versions": listed["versions"], "files": found})
        return 0
    terminal = console()
    devices = [(traits["name"], traits["multiprocessors"]) for traits in _C.driver()["devices"]]
    if found:
        rows = table("operator", "problem", "choice", ">µs", ">heuristic µs", "device", "")
        for one in found:
            entry = one["entry"]
            if entry is None:
                rows.add_row("?", one["file"], "", "", "", "", f"ignored: {one['problem']}")
                continue
            times = (f"{entry['us']:.2f}", f"{entry['heuristic_us']:.2f}")
            device = f"{entry['device']} ({entry['multiprocessors']})"
            remark = _remark(entry, listed["versions"], devices)
            rows.add_row(_operator(entry), entry["problem"], entry["choice"], *times, device, remark)
        show(terminal, rows)
    terminal.print(f"{len(found)} tuned {'problem' if len(found) == 1 else 'problems'} in {_where(listed)}", soft_wrap=True)
    return 0


def _remark(entry: TunedEntry, versions: dict[str, str], devices: list[tuple[str, int]]) -> str:
    if entry["version"] != (now := versions.get(entry["kernel"])):
        return f"ignored: made by version {entry['version']}, {f'this is {now}' if now else 'whose kernel is no longer tuned'}"
    if devices and (entry["device"], entry["multiprocessors"]) not in devices:
        return "for another device"
    return ""


def _clear(operator: str | None, as_json: bool) -> int:
    from .. import _C

    listed = _C.tuned_list()
    found = _files(listed, operator)
    removed = sum(_C.tuned_remove(one["file"]) for one in found)
    if as_json:
        print_json({"folder": listed["folder"] or None, "removed": removed})
    else:
        print(f"removed {removed} tuned {'problem' if removed == 1 else 'problems'} in {_where(listed)}")
    if removed < len(found):
        print(
            f"tune: {len(found) - removed} of {len(found)} stay in {listed['folder']}: not written by tune, or not permitted",
            file=sys.stderr,
        )
        return 1
    return 0
