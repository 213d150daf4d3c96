"""measure.py [compile] VARIANT:SHAPE,...: a process per variant of gdn/prefill (CARD_VARIANT), times in us."""
import os
import sys
import time

import torch  # noqa

import gdn_cuda
from gdn_cuda.gdn.measure_prefill import PACKED_LENGTHS, Shape, prefill_work

SHAPES = {
    "8x4096": Shape(16, 32, 8 * (4096,), gates="init"),
    "8x4096m": Shape(16, 32, 8 * (4096,), gates="mixed"),
    "32x1024": Shape(16, 32, 32 * (1024,), gates="init"),
    "64x512": Shape(16, 32, 64 * (512,), gates="init"),
    "8x2048": Shape(16, 16, 8 * (2048,), gates="init"),
    "1x8192": Shape(16, 32, (8192,), gates="init"),
    "1x8192m": Shape(16, 32, (8192,), gates="mixed"),
    "1x32768": Shape(16, 32, (32768,), gates="init"),
    "1x32768m": Shape(16, 32, (32768,), gates="mixed"),
    "1x8192d64": Shape(16, 32, (8192,), key_dim=64, value_dim=64, gates="init"),
    "1x8192d256": Shape(16, 32, (8192,), key_dim=256, value_dim=256, gates="init"),
    "det": Shape(16, 32, (8192,), gates="init", deterministic=True),
    "packed": Shape(16, 32, PACKED_LENGTHS, packed=True, gates="init"),
    "norm": Shape(16, 32, 8 * (4096,), gates="init", l2norm=True),
}


def child(variant, action):
    pid = os.fork()
    if pid == 0:
        os.environ["CARD_VARIANT"] = str(variant)
        try:
            action(variant)
        except BaseException as error:
            print(variant, repr(error)[:2000], flush=True)
        finally:
            sys.stdout.flush()
            os._exit(0)
    return pid


def compile_some(variant, names):
    """By calling: what the shapes need, and nothing else."""
    for name in names:
        prefill_work(SHAPES[name], "cuda").call()
    torch.cuda.synchronize()


def measure(variant, names):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    line = f"{variant:4d}"
    for name in names:
        call = prefill_work(SHAPES[name], "cuda").call
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
        line += f"  {name} {sorted(times)[7]:6.1f}"
    print(line, flush=True)


if __name__ == "__main__":
    compiles = sys.argv[1] == "compile"
    sets = [a.split(":") for a in sys.argv[1 + compiles :]]
    work = [(int(v), names.split(",")) for v, names in sets]
    start = time.time()
    pids = []
    for v, names in work:
        pids.append(child(v, lambda v, n=names: (compile_some if compiles else measure)(v, n)))
        if not compiles or len(pids) == 4:
            for pid in pids:
                os.waitpid(pid, 0)
            pids = []
    for pid in pids:
        os.waitpid(pid, 0)
    print(f"{time.time() - start:.1f} s", flush=True)
