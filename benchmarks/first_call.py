"""The first call of a process, its kernels on disk: each figure is from a new process, the median of several.

    python benchmarks/first_call.py [--repeats 7] [--only chunked_forward] [--without-gpu]

"first" is what the first call takes more than the third, up to the end of its kernels, "least" the least of it, and "cpu" what
its thread computes, which a busy machine changes less; torch, its context and gdn_cuda are loaded before, and "import" is what
gdn_cuda takes after torch. Without a GPU launches do nothing (host_profile.cpp), and cubins are not loaded into a driver.
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
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import host_profile


def child(name: str, device: str) -> None:
    if device == "cpu":
        host_profile.keep_kernels_for_cpu_tensors()
    else:
        torch.ones(1, device=device).sum().item()
    start = time.perf_counter()
    import gdn_cuda

    imported = time.perf_counter() - start
    from host_times import make_calls

    call = make_calls(device)[name]

    def timed() -> tuple[float, float]:
        if device != "cpu":
            torch.cuda.synchronize()
        start, cpu = time.perf_counter(), time.thread_time()
        with torch.no_grad():
            call()
        cpu = time.thread_time() - cpu
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start, cpu

    (first, cpu), _, (third, cpu_third) = timed(), timed(), timed()
    origins = sorted({event["origin"] for event in gdn_cuda._C.load_events()})
    print(json.dumps({"import": imported, "first": first - third, "cpu": cpu - cpu_third, "origins": origins}))


def measured(name: str, device: str, repeats: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", name, "--device", device]

    def run() -> dict[str, object]:
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])

    run()  # compiles what is missing
    time.sleep(2.5)  # files as new as this are read again
    run()
    found = [run() for _ in range(repeats)]
    for each in found:
        if each["origins"] not in (["disk"], ["prebuilt"]):
            raise RuntimeError(f"{name}: expected kernels on disk, got {each['origins']}")
    return {
        "first": statistics.median(each["first"] for each in found) * 1e3,
        "least": min(each["first"] for each in found) * 1e3,
        "cpu": statistics.median(each["cpu"] for each in found) * 1e3,
        "import": statistics.median(each["import"] for each in found) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="calls whose names contain this")
    parser.add_argument("--without-gpu", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
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

    print(f"{'ms: first, least, cpu, import':>74}")
    for name in make_calls(device):
        if name != "torch.add" and options.only in name:
            print(f"{name:42}" + "".join(f"{ms:8.1f}" for ms in measured(name, device, options.repeats).values()), flush=True)


if __name__ == "__main__":
    main()
