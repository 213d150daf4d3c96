"""times.py LABEL SHAPE...: microseconds of chunked_forward; SHAPE: BxT:heads:dk/dv."""

import sys

import torch
from gdn_cuda.gdn.measure_prefill import Shape, prefill_work

flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def time(call):
    for _ in range(3):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(15):
        flush.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1e3)
    return sorted(times)[7]


label, *shapes = sys.argv[1:]
for text in shapes:
    extent, heads, dims = text.split(":")
    B, T = map(int, extent.split("x"))
    Hk, Hv = map(int, heads.split("/"))
    dk, dv = map(int, dims.split("/"))
    for kind, fixed in (("init", False), ("fast", False)) + ((("init", True),) if Hv * dv < 8192 else ()):
        work = prefill_work(Shape(Hk, Hv, B * (T,), key_dim=dk, value_dim=dv, gates=kind, deterministic=fixed), "cuda")
        print(f"{label:12} {text:22} {kind} {"det" * fixed:3} {time(getattr(work, 'call', None) or work.run):9.1f}", flush=True)
