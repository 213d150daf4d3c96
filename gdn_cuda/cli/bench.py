"""bench: time, rate and share of the roof of an operator, compared with its peers; prints, joins and draws reports."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..names import unknown
from .output import print_json

if TYPE_CHECKING:
    from ..operators.measure import Bench, Case

Report = dict[str, Any]

ALL = "all"


def benches() -> dict[str, Bench]:
    """Every declared benchmark, by operator."""
    from ..operators.measure import load

    return load().benches


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure an operator: time, GB/s or TFLOP/s, share of the roof, peers")
    parser.add_argument(
        "operators",
        nargs="+",
        type=_operator_or_file,
        metavar="OP",
        help=f"{ALL}, or some of {', '.join(benches())}; or files that --json wrote, to print, draw or join them",
    )
    parser.add_argument("--only", metavar="TEXT", help="only the shapes that contain TEXT (x stands for ×)")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print JSON instead of the table, or also write it to FILE, after every row; of several operators a list, "
        "or a file each if FILE is a folder",
    )
    parser.add_argument(
        "--plot", metavar="FILE.svg", help="draw the rows, of several operators into a folder (pip install gdn_cuda[plot])"
    )
    parser.add_argument("--markdown", action="store_true", help="print tables as the pages of docs/benchmarks have them")
    parser.add_argument("--peers", metavar="NAMES", help="only these other libraries, separated by commas; none: -")
    parser.add_argument("--check-peers", action="store_true", help="compare each peer's result with ours before timing it")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU path, on a few small shapes")
    parser.set_defaults(run=run)


def _operator_or_file(text: str) -> str:
    if text == ALL or text.endswith(".json") or text in benches():
        return text
    raise argparse.ArgumentTypeError(f"{unknown(text, [*benches(), ALL])} A file's name ends in .json.")


def run(arguments: argparse.Namespace) -> int:
    files = [each for each in arguments.operators if each.endswith(".json")]
    if not files and not arguments.cpu and not _has_gpu():
        print(
            "bench: expected a CUDA GPU, got none. `python -m gdn_cuda doctor` says why; --cpu measures the CPU path.",
            file=sys.stderr,
        )
        return 2
    _check_options(arguments, files)
    from . import bench_report

    reports: list[Report] = []
    for report in _read(files, arguments.only) if files else _measured(arguments):
        reports.append(report)
        if arguments.json != "-":
            _print(report, arguments.markdown)
    if arguments.json == "-":
        print_json(reports if len(reports) > 1 or ALL in arguments.operators else reports[0], bench_report.dumps)
    elif arguments.json and files:
        bench_report.write(reports, arguments.json)
    if arguments.plot:
        from .bench_plot import draw

        for report in reports:
            draw(report, _plot_of(report, arguments.plot))
    return 1 if any(report.get("peers_disagree") for report in reports) else 0


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _check_options(arguments: argparse.Namespace, files: list[str]) -> None:
    """Refuses wrong options before the measurements, which take minutes."""
    if files and len(files) < len(arguments.operators):
        raise ValueError(f"OP: expected operators or files, got both: {' '.join(arguments.operators)}")
    known = {peer for bench in benches().values() for peer in bench.peers}
    if others := [peer for peer in (arguments.peers or "").split(",") if peer not in (*known, "", "-")]:
        raise ValueError(f"--peers: expected some of {', '.join(sorted(known))}, got {', '.join(others)}")
    if arguments.check_peers and arguments.cpu:
        raise ValueError("--check-peers: expected a GPU, on which peers are measured, got --cpu")
    for option, file in (("--json", arguments.json), ("--plot", arguments.plot)):
        folder = file if file and Path(file).is_dir() else Path(file or ".").absolute().parent
        if file and file != "-" and not os.access(folder, os.W_OK):
            raise ValueError(f"{option}: expected a file in a folder that can be written, got {file}")
    if arguments.plot:
        from .bench_plot import require_format, require_matplotlib

        require_matplotlib()
        if not Path(arguments.plot).is_dir():
            require_format(arguments.plot)
            if arguments.operators == [ALL] or len(arguments.operators) > 1:
                raise ValueError(f"--plot: expected a folder for several operators, got {arguments.plot}")


def _plot_of(report: Report, plot: str) -> str:
    return str(Path(plot) / f"{report['operator']}.svg") if Path(plot).is_dir() else plot


# ---- Reports: measured now, or read from files


def _read(files: list[str], only: str | None) -> list[Report]:
    from .bench_report import read, selected

    return [report for each in read(files) if (report := selected(each, only))["rows"]]


def _measured(arguments: argparse.Namespace) -> Iterator[Report]:
    from .bench_environment import environment
    from .bench_measure import QUICK_REPEATS, REPEATS, measure_cpu, measure_gpu
    from .bench_report import write

    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    peers = None if arguments.peers is None else arguments.peers.split(",")
    written: list[Report] = []
    for operator, cases in _selected(arguments.operators, "cpu" if arguments.cpu else "cuda", arguments.only).items():
        made_on = environment(operator, arguments.cpu)
        rows = (
            [measure_cpu(cases, repeats)]
            if arguments.cpu
            else measure_gpu(operator, cases, repeats, arguments.check_peers, peers)
        )
        for measured in rows:
            report = made_on | measured
            if arguments.json not in (None, "-"):
                write([*written, report], arguments.json)
        written.append(report)
        yield report


def _selected(operators: list[str], device: str, only: str | None) -> dict[str, list[Case]]:
    if operators == [ALL]:
        operators = list(benches())
    if len(operators) == 1:
        return {operators[0]: chosen(operators[0], device, only)}
    found = {name: _matching(benches()[name].cases(device), only) for name in operators}
    if not any(found.values()):
        raise ValueError(f"--only: expected a part of some operator's shape, got {only}")
    return {name: cases for name, cases in found.items() if cases}


def chosen(operator: str, device: str, only: str | None) -> list[Case]:
    cases = list(benches()[operator].cases(device))
    found = _matching(cases, only)
    if not found:
        raise ValueError(f"--only: expected a part of one of {'; '.join(case.shape for case in cases)}; got {only}")
    return found


def _matching(cases: Iterator[Case] | list[Case], only: str | None) -> list[Case]:
    from .bench_report import matches

    return [case for case in cases if matches(case.shape, only)]


def _print(report: Report, markdown: bool) -> None:
    if markdown:
        from .bench_markdown import page

        print(page(report))
    else:
        from .bench_table import print_report

        print_report(report)
