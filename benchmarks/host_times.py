"""Host time of warm calls: queued one behind the other, as few at a time as the driver's queue holds.

    python benchmarks/host_times.py [--rounds 9] [--json FILE]

To compare two commits, run it for both in turns on one machine (PYTHONPATH chooses the tree): hosts differ by two times, and
torch.add is printed as their measure. Each figure is the least of the medians of all rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import gdn_cuda

CALLS, SAMPLES = 100, 15


def calls() -> dict[str, Callable[[], object]]:
    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def gates(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device="cuda")

    query, key, value = rows(1, 1, 16, 128), rows(1, 1, 16, 128), rows(1, 1, 32, 128)
    a, b, rates, bias = rows(1, 1, 32), rows(1, 1, 32), gates(32), gates(32)
    pool, out = torch.zeros(4, 32, 128, 128, device="cuda"), rows(1, 1, 32, 128)
    slots = torch.zeros(1, dtype=torch.int32, device="cuda")
    long = [rows(1, 64, 16, 128), rows(1, 64, 16, 128), rows(1, 64, 32, 128), gates(1, 64, 32), -gates(1, 64, 32)]
    x = torch.ones(16, device="cuda")

    def line(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.complex64)

    residues, points, poles = line(2, 32), line(128), line(32) - 2
    column, vector = torch.randn(4, 64, device="cuda"), torch.randn(4, 64, device="cuda")
    return {
        "torch.add": lambda: torch.add(x, x, out=x),
        "fused_decode": lambda: gdn_cuda.fused_decode(query, key, value, a, b, rates, bias, pool, slots, out=out),
        "fused_decode, no slots": lambda: gdn_cuda.fused_decode(query, key, value, a, b, rates, bias, pool, out=out),
        "fused_decode, allocating": lambda: gdn_cuda.fused_decode(query, key, value, a, b, rates, bias, pool, slots),
        "chunked_forward": lambda: gdn_cuda.chunked_forward(*long),
        "cauchy_conj": lambda: gdn_cuda.cauchy_conj(residues, points, poles),
        "log_vandermonde": lambda: gdn_cuda.log_vandermonde(residues, poles, 128),
        "toeplitz_matvec": lambda: gdn_cuda.toeplitz_matvec(column, column, vector),
    }


def median_us(call: Callable[[], object]) -> float:
    for _ in range(20):
        call()
    samples = []
    for _ in range(SAMPLES):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        samples.append((time.perf_counter_ns() - start) / CALLS * 1e-3)
    torch.cuda.synchronize()
    return statistics.median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json")
    options = parser.parse_args()
    table: dict[str, dict[str, float]] = {name: {} for name in calls()}
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            rounds = [{name: median_us(call) for name, call in calls().items()} for _ in range(options.rounds)]
        for name in table:
            table[name][mode.__name__] = min(times[name] for times in rounds)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {gdn_cuda.__path__[0]}: host time of a call, us")
    for name, times in table.items():
        print(f"{name:26}" + "".join(f"{mode} {us:6.2f}   " for mode, us in times.items()))
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
