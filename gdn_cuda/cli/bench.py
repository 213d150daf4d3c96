"""bench: time, rate and share of the roof of an operator, beside those of its peers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_json

if TYPE_CHECKING:
    from ..operators.measure import Bench, Call, Case, Work
    from .bench_timing import Timer

ALL = "all"

# Ceilings of the roof per device. They are constants, because the measured speed of a product varies with temperature; devices
# that are not listed use the ceilings measured in the run.
NOMINAL_CEILINGS = {"NVIDIA H200": {"copy_bytes_per_s": 4.3e12, "bf16_flop_per_s": 790e12}}


def benches() -> dict[str, Bench]:
    """By operator."""
    from ..operators.measure import load

    return load().benches


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure an operator: time, GB/s or TFLOP/s, share of the roof, peers")
    parser.add_argument("operator", choices=(*benches(), ALL), metavar="OP", help=f"{ALL}, or one of {', '.join(benches())}")
    parser.add_argument("--only", metavar="TEXT", help="only the shapes that contain TEXT (x stands for ×)")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print JSON instead of the table, or also write it to FILE; a list for `all`",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw the rows (needs matplotlib: pip install gdn_cuda[plot])")
    parser.add_argument("--check-peers", action="store_true", help="compare each peer's result with ours before timing it")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU path, on a few small shapes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import torch

    if not arguments.cpu and not torch.cuda.is_available():
        print(
            "bench: expected a CUDA GPU, got none. `python -m gdn_cuda doctor` says why; --cpu measures the CPU path.",
            file=sys.stderr,
        )
        return 2
    _check_options(arguments)
    every = arguments.operator == ALL
    selected = _selected(arguments.operator, "cpu" if arguments.cpu else "cuda", arguments.only)
    torch.manual_seed(0)
    reports: list[dict[str, Any]] = []
    for operator, cases in selected.items():
        reports.append(_report(operator, cases, arguments))
        _print_and_write(reports[-1], reports if every else reports[-1], arguments.json)
    if arguments.json == "-":
        print_json(reports if every else reports[0])
    if arguments.plot:
        from .bench_plot import draw

        draw(reports[0], arguments.plot)
    return 1 if any(report.get("peers_disagree") for report in reports) else 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Before the measurements, which take minutes."""
    if arguments.check_peers and arguments.cpu:
        raise ValueError("--check-peers: expected a GPU, on which peers are measured, got --cpu")
    for option, file in (("--json", arguments.json), ("--plot", arguments.plot)):
        if file and file != "-" and not os.access(Path(file).absolute().parent, os.W_OK):
            raise ValueError(f"{option}: expected a file in a folder that can be written, got {file}")
    if arguments.plot:
        from .bench_plot import require_format, require_matplotlib

        require_matplotlib()
        require_format(arguments.plot)
        if arguments.operator == ALL:
            raise ValueError(f"--plot: expected one operator, got {ALL}")


def _selected(operator: str, device: str, only: str | None) -> dict[str, list[Case]]:
    if operator != ALL:
        return {operator: chosen(operator, device, only)}
    found = {name: _matching(bench.cases(device), only) for name, bench in benches().items()}
    if not any(found.values()):
        raise ValueError(f"--only: expected a part of some operator's shape, got {only}")
    return {name: cases for name, cases in found.items() if cases}


def chosen(operator: str, device: str, only: str | None) -> list[Case]:
    cases = list(benches()[operator].cases(device))
    found = _matching(cases, only)
    if not found:
        raise ValueError(f"--only: expected a part of one of {'; '.join(case.shape for case in cases)}; got {only}")
    return found


def _matching(cases: Iterable[Case], only: str | None) -> list[Case]:
    return [case for case in cases if only is None or only.replace("x", "×") in case.shape.replace("x", "×")]


def _report(operator: str, cases: list[Case], arguments: argparse.Namespace) -> dict[str, Any]:
    from .bench_environment import environment

    repeats = 20 if arguments.quick else 200
    measured = (
        _measure_cpu(cases, max(repeats // 20, 3))
        if arguments.cpu
        else _measure_gpu(operator, cases, repeats, arguments.check_peers)
    )
    return environment(operator, arguments.cpu) | measured


def _print_and_write(report: dict[str, Any], written: Any, file: str | None) -> None:
    if file == "-":
        return
    from .bench_table import print_report

    print_report(report)
    if file:
        text = json.dumps(written, indent=2, ensure_ascii=False)
        Path(file).write_text(text + "\n", encoding="utf-8")


# ---- Measuring

Absences = dict[tuple[str, str], list[str]]  # (peer, reason) -> shapes at which the peer was not measured


def _measure_gpu(operator: str, cases: list[Case], repeats: int, check_peers: bool) -> dict[str, Any]:
    import torch

    from .bench_timing import Timer

    timer = Timer(repeats)
    ceilings = {"copy_bytes_per_s": timer.copy_ceiling(), "bf16_flop_per_s": timer.matmul_ceiling()}
    roof = NOMINAL_CEILINGS.get(torch.cuda.get_device_name(), ceilings)
    floor_us = timer.floor_us()
    absent: Absences = {}
    rows = []
    for case in cases:
        # A backward pass runs on the stream of its forward pass, which must be the one that captures the graph.
        with torch.cuda.stream(timer.side if case.captured else None):
            rows.append(_row(operator, case, timer, roof, check_peers, absent))
    gaps = [{"peer": peer, "reason": reason, "shapes": shapes} for (peer, reason), shapes in absent.items()]
    return {
        "repeats": repeats,
        "ceilings": ceilings | {"floor_us": floor_us},
        "roof": roof,
        "rows": rows,
        "peers_absent": gaps,
        "peers_disagree": any(row["peers_disagree"] for row in rows),
    }


def _row(
    operator: str, case: Case, timer: Timer, roof: dict[str, float], check_peers: bool, absent: Absences
) -> dict[str, Any]:
    work = case.prepare()
    time_us = _device_us(case.captured, timer, work.call)
    roof_us = max(work.bytes / roof["copy_bytes_per_s"], work.flops / roof["bf16_flop_per_s"]) * 1e6
    return {
        "shape": case.shape,
        "curve": case.curve,
        "time_us": time_us,
        "host_us": timer.host_us(work.call, time_us),
        "bytes": work.bytes,
        "flops": work.flops,
        "gb_per_s": work.bytes / time_us * 1e-3,
        "tflop_per_s": work.flops / time_us * 1e-6,
        "roof_us": roof_us,
        "share_of_roof": roof_us / time_us,
        "in_place_us": None if work.flops else timer.in_place_us(work.bytes),
        **_peers(operator, case, work, timer, check_peers, absent),
    }


def _device_us(captured: bool, timer: Timer, call: Call) -> float:
    return timer.graph_us(call) if captured else timer.stream_us(call)


def _peers(operator: str, case: Case, work: Work, timer: Timer, check: bool, absent: Absences) -> dict[str, Any]:
    from ..operators.measure import Absent
    from .bench_peers import Disagreement, errors
    from .bench_timing import LEAST_REPEATS, cpu_us

    times: dict[str, float | None] = {}
    found: dict[str, tuple[float, ...]] = {}
    disagree = []
    bench = benches()[operator]
    expected = None
    if check and bench.peers:
        assert work.outcome is not None, f"{operator}: expected an outcome to compare peers with"
        expected = work.outcome(work.checked)
    for name, adapter in bench.peers.items():
        times[name] = None
        try:
            if expected is not None:
                peer = adapter(work.checked)
                found[name] = errors(expected, peer.read(peer.call()))
                Disagreement.unless_small(found[name], bench.parts)
            peer = adapter(work.inputs)
            captured = case.captured and peer.captured
            times[name] = cpu_us(peer.call, LEAST_REPEATS) if peer.on_host else _device_us(captured, timer, peer.call)
        except Exception as error:  # another library's failure is a gap in its column, with the reason under the table
            reason = str(error) if isinstance(error, Absent) else f"{type(error).__name__}: {error}"
            absent.setdefault((name, reason.splitlines()[0]), []).append(case.shape)
            if isinstance(error, Disagreement):
                disagree.append(name)
    return {"peers_us": times, "peers_errors": found, "peers_disagree": disagree}


def _measure_cpu(cases: list[Case], repeats: int) -> dict[str, Any]:
    from .bench_timing import cpu_us

    return {
        "repeats": repeats,
        "rows": [{"shape": case.shape, "time_us": cpu_us(case.prepare().call, repeats)} for case in cases],
    }
