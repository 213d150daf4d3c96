"""The passes of the backward of Gated Delta Net, one by one: when each kernel of a call starts and how long it runs, in µs.

    python benchmarks/backward_passes.py [SHAPE...]

Medians over 20 calls, by torch's profiler, of kernels above 2 µs; *all* is a graph's replay with the L2 flushed, as in
`gdn-cuda bench`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.gdn.measure_prefill import PLAIN, Shape
from gdn_cuda.gdn.measure_training import training_work

SHAPES = PLAIN | {"8×1024 16/32": Shape(16, 32, 8 * (1024,))}
DEFAULT = ("1×8192 4/8", "1×8192 16/32", "8×1024 16/32", "1×32768 16/32", "8×4096 16/32")
CALLS, LEAST_US = 20, 2


def passes(call: object) -> dict[str, tuple[float, float]]:
    """Kernel to (start, duration)."""
    call()
    torch.cuda.synchronize()
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(CALLS):
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            call()
            torch.cuda.synchronize()
        events = sorted((e for e in recorded.events() if e.device_time > LEAST_US), key=lambda e: e.time_range.start)
        count: dict[str, int] = defaultdict(int)
        for event in events:
            name = event.name.split("<")[0].split("::")[-1]
            count[name] += 1
            found[f"{name} {count[name]}"].append((event.time_range.start - events[0].time_range.start, event.device_time))
    return {name: (median(s for s, _ in each), median(d for _, d in each)) for name, each in found.items()}


def main() -> None:
    timer = Timer(20)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, init gates")
    for name in sys.argv[1:] or DEFAULT:
        with torch.cuda.stream(timer.side):  # a graph captures there, and the backward runs in forward's stream
            call = training_work(replace(SHAPES[name], gates="init"), "cuda").call
        print(f"\n{name}: all {timer.graph_us(call):.0f}")
        for kernel, (start, duration) in passes(call).items():
            print(f"    {kernel:45} at {start:7.1f}: {duration:7.1f}")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
