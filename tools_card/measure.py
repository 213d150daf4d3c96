"""measure.py VARIANTS...: forks a process per variant of gdn/prefill (-DCARD_VARIANT), times shapes; odd variants print clocks."""
import os
import sys
import time

import torch

import gdn_cuda
from gdn_cuda.gdn.measure_prefill import PACKED_LENGTHS, Shape, prefill_work

SHAPES = {
    "8x4096": Shape(16, 32, 8 * (4096,), gates="init"),
    "32x1024": Shape(16, 32, 32 * (1024,), gates="init"),
    "64x512": Shape(16, 32, 64 * (512,), gates="init"),
    "8x2048": Shape(16, 16, 8 * (2048,), gates="init"),
    "1x8192": Shape(16, 32, (8192,), gates="init"),
    "det": Shape(16, 32, (8192,), gates="init", deterministic=True),
    "packed": Shape(16, 32, PACKED_LENGTHS, packed=True, gates="init"),
    "norm": Shape(16, 32, 8 * (4096,), gates="init", l2norm=True),
    "p8": Shape(16, 32, 8 * (4096,), packed=True, gates="init"),
    "p1": Shape(16, 32, (4096,) + 7 * (1,), packed=True, gates="init"),
}
ROWS = ("inv w0", "inv w3", "sco w0", "sco w3", "val 0", "val 1")


def child(variant, action):
    pid = os.fork()
    if pid == 0:
        os.environ["CARD_VARIANT"] = str(variant)
        try:
            action(variant)
        finally:
            sys.stdout.flush()
            os._exit(0)
    return pid


def compile_one(variant, names):
    from gdn_cuda import runtime

    fields = [dict(head_k=128, value_groups=2, chained=False, persistent=False)]
    if "64x512" in names or "32x1024" in names:
        fields.append(dict(head_k=128, value_groups=2, persistent=True))
    for each in fields:
        runtime.compile("gdn", "prefill", jobs=1, arch="sm_90a", **each)


def medians(f, flush, n=15):
    for _ in range(3):
        f()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    times = []
    for _ in range(n):
        flush.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1e3)
    return sorted(times)[n // 2]


def measure(variant, names):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    line = f"{variant:5d}"
    for name in names:
        work = prefill_work(SHAPES[name], "cuda")
        line += f"  {name} {medians(work.call, flush):7.1f}"
        if variant & 1 and name in ("8x4096", "p8", "p1"):
            torch.cuda.synchronize()
            result = work.call()
            out = result[0] if isinstance(result, tuple) else result
            torch.cuda.synchronize()
            out = out.reshape(-1, *out.shape[-2:])
            raw = out[:6, 0, :].contiguous().view(torch.int32).cpu().tolist()
            chunks = 64
            for label, row in zip(ROWS, raw):
                line += f"\n      {name} {label:7s}" + "".join(f"{x / chunks:8.0f}" for x in row[:12])
    print(line, flush=True)


if __name__ == "__main__":
    sets = [a.split(":") for a in sys.argv[1:]]
    work = [(int(v), names.split(",") if names else ["8x4096"]) for v, names in ((s + [""])[:2] for s in sets)]
    start = time.time()
    pids = [child(v, lambda v, n=n: compile_one(v, n)) for v, n in dict((v, (v, n)) for v, n in work).values()]
    for pid in pids:
        os.waitpid(pid, 0)
    print(f"compiled in {time.time() - start:.1f} s", flush=True)
    for v, names in work:
        os.waitpid(child(v, lambda v, n=names: measure(v, n)), 0)
    print(f"{time.time() - start:.1f} s", flush=True)
