"""bench: time, rate and share of the roof of one operator, its peers beside it."""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import console, print_json, show, table

if TYPE_CHECKING:
    from .bench_cases import Case
    from .bench_timing import Timer

OPERATORS = ("fused_decode", "recurrent_forward", "fused_gdn_gating", "chunked_forward")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure one operator: time, GB/s or TFLOP/s, share of the roof, peers")
    parser.add_argument("operator", choices=OPERATORS, metavar="OP", help=", ".join(OPERATORS))
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print JSON instead of the table, or write it to FILE too"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw the rows (needs matplotlib: pip install gdn_cuda[plot])")
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
    if arguments.plot:
        from .bench_plot import require_matplotlib

        require_matplotlib()
    repeats = 20 if arguments.quick else 200
    torch.manual_seed(0)
    report = environment(arguments) | (
        _measure_cpu(arguments.operator, max(repeats // 20, 3)) if arguments.cpu else _measure_gpu(arguments.operator, repeats)
    )
    if arguments.json == "-":
        print_json(report)
    else:
        _print(report)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    if arguments.plot:
        from .bench_plot import draw

        draw(report, arguments.plot)
    return 0


# ---- Measuring

Absences = dict[tuple[str, str], list[str]]  # (peer, why) -> the shapes it was not measured at


def _measure_gpu(operator: str, repeats: int) -> dict[str, Any]:
    from .bench_cases import CASES
    from .bench_timing import Timer

    timer = Timer(repeats)
    ceilings = {
        "copy_bytes_per_s": timer.copy_ceiling(),
        "bf16_flop_per_s": timer.matmul_ceiling(),
        "floor_us": timer.floor_us(),
    }
    absent: Absences = {}
    rows = [_row(operator, case, timer, ceilings, absent) for case in CASES[operator]("cuda")]
    gaps = [{"peer": peer, "reason": reason, "shapes": shapes} for (peer, reason), shapes in absent.items()]
    return {"repeats": repeats, "ceilings": ceilings, "rows": rows, "peers_absent": gaps}


def _row(operator: str, case: Case, timer: Timer, ceilings: dict[str, float], absent: Absences) -> dict[str, Any]:
    time_us = timer.graph_us(case.call)
    memory_us = case.bytes / ceilings["copy_bytes_per_s"] * 1e6
    roof_us = max(memory_us, case.flops / ceilings["bf16_flop_per_s"] * 1e6)
    return {
        "shape": case.shape,
        "time_us": time_us,
        "host_us": timer.host_us(case.call),
        "bytes": case.bytes,
        "flops": case.flops,
        "gb_per_s": case.bytes / time_us * 1e-3,
        "tflop_per_s": case.flops / time_us * 1e-6,
        "roof_us": roof_us,
        "share_of_roof": roof_us / time_us,
        "in_place_us": timer.in_place_us(case.bytes),
        "peers_us": _peers(operator, case, timer, absent),
    }


def _peers(operator: str, case: Case, timer: Timer, absent: Absences) -> dict[str, float | None]:
    from .bench_peers import PEERS, Absent

    times: dict[str, float | None] = {}
    for name, adapter in PEERS[operator].items():
        try:
            times[name] = timer.graph_us(adapter(case.tensors))
        except Exception as error:  # another library's failure is a gap in its column, with the reason under the table
            times[name] = None
            reason = str(error) if isinstance(error, Absent) else f"{type(error).__name__}: {error}"
            absent.setdefault((name, reason.splitlines()[0]), []).append(case.shape)
    return times


def _measure_cpu(operator: str, repeats: int) -> dict[str, Any]:
    from .bench_cases import CASES
    from .bench_timing import cpu_us

    rows = [{"shape": case.shape, "time_us": cpu_us(case.call, repeats)} for case in CASES[operator]("cpu")]
    return {"repeats": repeats, "rows": rows}


# ---- What was measured on


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    import gdn_cuda

    device = platform.processor() or platform.machine() if arguments.cpu else torch.cuda.get_device_name()
    return {
        "operator": arguments.operator,
        "device": device,
        "driver": None if arguments.cpu else _driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gdn_cuda": gdn_cuda.__version__,
        "commit": _commit(),
        "command": shlex.join(["python", "-m", "gdn_cuda", *sys.argv[1:]]),
    }


def _driver_version() -> str | None:
    module = Path("/proc/driver/nvidia/version")
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", module.read_text()) if module.exists() else None
    return found[1] if found else _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    return f"{commit}, with changes" if commit and _output("git", "-C", str(root), "status", "--porcelain") else commit


def _output(*command: str) -> str | None:
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return text.splitlines()[0] if text else None


# ---- Printing


def _print(report: dict[str, Any]) -> None:
    terminal = console()
    keys = ("device", "driver", "torch", "cuda", "gdn_cuda", "commit")
    terminal.print(f"{report['operator']}: " + ", ".join(f"{key} {report[key]}" for key in keys if report[key]), soft_wrap=True)
    if "ceilings" not in report:
        listing = table("shape", ">time µs")
        for row in report["rows"]:
            listing.add_row(row["shape"], f"{row['time_us']:.1f}")
        show(terminal, listing)
        return
    ceilings = report["ceilings"]
    terminal.print(
        f"in this run: copy {ceilings['copy_bytes_per_s'] * 1e-12:.2f} TB/s, bf16 product "
        f"{ceilings['bf16_flop_per_s'] * 1e-12:.0f} TFLOP/s, "
        f"a one-element kernel's replay {ceilings['floor_us']:.1f} µs; medians of {report['repeats']}, L2 flushed",
        soft_wrap=True,
    )
    computes = any(row["flops"] for row in report["rows"])
    peers = list(report["rows"][0]["peers_us"])
    rate = ">TFLOP/s" if computes else ">GB/s"
    listing = table(
        "shape", ">time µs", rate, ">roof µs", ">share", ">in-place add µs", ">host µs", *(f">{peer} µs" for peer in peers)
    )
    for row in report["rows"]:
        times = (row["peers_us"][peer] for peer in peers)
        listing.add_row(
            row["shape"],
            f"{row['time_us']:.1f}",
            f"{row['tflop_per_s']:.1f}" if computes else f"{row['gb_per_s']:.0f}",
            f"{row['roof_us']:.1f}",
            f"{row['share_of_roof']:.0%}",
            f"{row['in_place_us']:.1f}",
            f"{row['host_us']:.1f}",
            *("-" if value is None else f"{value:.1f}" for value in times),
        )
    show(terminal, listing)
    for gap in report["peers_absent"]:
        shapes = "" if len(gap["shapes"]) == len(report["rows"]) else f" at {', '.join(gap['shapes'])}"
        terminal.print(f"{gap['peer']} was not measured{shapes}: {gap['reason']}", soft_wrap=True)
