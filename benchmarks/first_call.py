"""The first call of a process, its kernels on disk: each figure is from a new process, the median of several.

    python benchmarks/first_call.py [--repeats 7] [--only chunked_forward] [--without-gpu]
    python benchmarks/first_call.py --together [--repeats 4]

A process takes some seconds until it has torch and a context: with `--together` a process makes all calls, one after another,
each repeat's process beginning with another call, so that what they share is paid once ("began" is the process's first call).

"first" is what the first call takes more than the third, up to the end of its kernels, "least" the least of it, "cpu" what its
thread computes, which a busy machine changes less, and "loading" what finding kernels and loading them into the driver takes.
Torch, its context and gdn_cuda are loaded before; "import" is what gdn_cuda takes after torch. Without a GPU launches do
nothing (host_profile.cpp), and cubins are not loaded into a driver.
cold_start.py measures kernels one by one, and compiles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import host_profile


def child(names: list[str], device: str) -> None:
    if device == "cpu":
        host_profile.keep_kernels_for_cpu_tensors()
    else:
        torch.ones(1, device=device).sum().item()
    start = time.perf_counter()
    import gdn_cuda

    imported = time.perf_counter() - start
    from host_times import make_calls

    calls = make_calls(device)

    def timed(call: Callable[[], object]) -> tuple[float, float]:
        if device != "cpu":
            torch.cuda.synchronize()
        start, cpu = time.perf_counter(), time.thread_time()
        with torch.no_grad():
            call()
        cpu = time.thread_time() - cpu
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start, cpu

    for name in names:
        known = len(gdn_cuda._C.load_events())
        (first, cpu), _, (third, cpu_third) = (timed(calls[name]) for _ in range(3))
        events = gdn_cuda._C.load_events()
        found = {"import": imported, "first": first - third, "cpu": cpu - cpu_third, "loads": len(events) - known}
        found["loading"] = sum(event["seconds"] for event in events[known:])
        print(json.dumps(found | {"origins": sorted({event["origin"] for event in events})}))


def run(names: list[str], device: str) -> list[dict[str, Any]]:
    """A new process, which makes these calls."""
    command = [sys.executable, __file__, "--child", *names, "--device", device]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def warm(names: list[str], device: str) -> None:
    """Compiles what is missing."""
    if "compiled" in run(names, device)[-1]["origins"]:
        time.sleep(2.5)  # files as new as this are read again
        run(names, device)


def measured(name: str, device: str, repeats: int) -> dict[str, float]:
    warm([name], device)
    found = [run([name], device)[0] for _ in range(repeats)]
    for each in found:
        if each["origins"] not in (["disk"], ["prebuilt"]):
            raise RuntimeError(f"{name}: expected kernels on disk, got {each['origins']}")
    return {
        "first": statistics.median(each["first"] for each in found) * 1e3,
        "least": min(each["first"] for each in found) * 1e3,
        "cpu": statistics.median(each["cpu"] for each in found) * 1e3,
        "loading": statistics.median(each["loading"] for each in found) * 1e3,
        "import": statistics.median(each["import"] for each in found) * 1e3,
    }


def print_together(names: list[str], device: str, repeats: int) -> None:
    began: dict[str, float] = {}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for repeat in range(repeats):
        start = 4 * (repeat + 1) % len(names)  # chunked_forward, then ssd_scan: those that load most
        order = names[start:] + names[:start]
        results = run(order, device)
        if "compiled" in results[-1]["origins"]:
            time.sleep(2.5)
            results = run(order, device)
        for at, (name, each) in enumerate(zip(order, results, strict=True)):
            if at == 0:
                began[name] = each["first"] * 1e3
            else:
                found[name].append(each)
    print(f"{'ms: after others: median, least, cpu, loading (kernels); began':>92}")
    for name, each in found.items():
        if not each:
            continue
        first = [one["first"] * 1e3 for one in each]
        cpu, loading = (statistics.median(one[kind] for one in each) * 1e3 for kind in ("cpu", "loading"))
        line = f"{name:42}{statistics.median(first):8.1f}{min(first):8.1f}{cpu:8.1f}{loading:8.1f} ({each[0]['loads']})"
        print(line + (f"{began[name]:8.1f}" if name in began else ""), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="calls whose names contain this")
    parser.add_argument("--without-gpu", action="store_true")
    parser.add_argument("--together", action="store_true", help="all calls in one process a repeat")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.device)
        return
    if options.without_gpu and "libhost_profile" not in os.environ.get("LD_PRELOAD", ""):
        host_profile.preload()
    device = "cpu" if options.without_gpu else "cuda"
    if device == "cpu":
        host_profile.keep_kernels_for_cpu_tensors()
    from host_times import make_calls

    names = [name for name in make_calls(device) if name != "torch.add" and options.only in name]
    if options.together:
        print_together(names, device, options.repeats)
        return
    print(f"{'ms: first, least, cpu, loading, import':>82}")
    for name in names:
        print(f"{name:42}" + "".join(f"{ms:8.1f}" for ms in measured(name, device, options.repeats).values()), flush=True)


if __name__ == "__main__":
    main()
