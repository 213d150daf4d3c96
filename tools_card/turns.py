"""turns.py warm|time VARIANTS: a process a variant (a tree /tmp/card_v<N>), which take turns; times of gdn/prefill's rows in us."""
import os
import subprocess
import sys
import time

HERE = os.path.abspath(__file__)
GROUPS = ((0, 1), (128, 2))


def shapes():
    from gdn_cuda.gdn.measure_prefill import PACKED_LENGTHS, Shape

    rows = {
        "8x4096": Shape(16, 32, 8 * (4096,), gates="init"),
        "32x1024": Shape(16, 32, 32 * (1024,), gates="init"),
        "64x512": Shape(16, 32, 64 * (512,), gates="init"),
        "8x2048": Shape(16, 16, 8 * (2048,), gates="init"),
        "packed": Shape(16, 32, PACKED_LENGTHS, packed=True, gates="init"),
        "1x8192": Shape(16, 32, (8192,), gates="init"),
        "64/64": Shape(64, 64, (8192,), gates="init"),
    }
    from dataclasses import replace

    for name in ("8x4096", "64x512", "32x1024", "8x2048", "packed"):
        rows[name + " mixed"] = replace(rows[name], gates="mixed")
        rows[name + " fast"] = replace(rows[name], gates="fast")
        rows[name + " norm"] = replace(rows[name], l2norm=True)
        rows[name + " mixed norm"] = replace(rows[name], gates="mixed", l2norm=True)
    return rows


def child():
    import torch
    from gdn_cuda import runtime
    from gdn_cuda.gdn.measure_prefill import prefill_work

    rows = shapes()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    works = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name, count = line.strip().rsplit(":", 1)
        if name == "compile":
            for persistent in (False, True):
                for r in runtime.compile("gdn", "prefill", jobs=2, head_k=128, value_groups=2, chained=False, persistent=persistent, io="bf16"):
                    print("#", "spill", r.spill_bytes, "serialized", r.is_serialized, flush=True)
            print("0", flush=True)
            continue
        if name not in works:
            works.clear()
            torch.manual_seed(0)
            work = prefill_work(rows[name], "cuda")
            for _ in range(3):
                work.call()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work.call()
            graph.replay()
            torch.cuda.synchronize()
            works[name] = (work, graph)
        graph = works[name][1]
        times = []
        for _ in range(int(count)):
            flush.zero_()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            graph.replay()
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b) * 1e3)
        print(" ".join(f"{t:.2f}" for t in times) or "0", flush=True)


def start(variants):
    children = {}
    for v in variants:
        tree = f"/tmp/card_v{v}"
        env = dict(os.environ, PYTHONPATH=tree + ":" + os.environ.get("PYTHONPATH", ""))
        children[v] = subprocess.Popen([sys.executable, HERE, "child"], cwd=tree, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(f"/tmp/card_v{v}.err", "w"))
    return children


def answer(v, p):
    while True:
        line = p.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{v}: {open(f'/tmp/card_v{v}.err').read()[-1500:]}")
        if line[0] in "b#":
            if line[0] == "b":
                beyond[v] = beyond.get(v, 0) + 1
            else:
                print(v, line, flush=True)
            continue
        return line


def ask(children, name, count):
    for v, p in children.items():
        p.stdin.write(f"{name}:{count}\n")
        p.stdin.flush()
        yield v, answer(v, p)


beyond = {}
if __name__ == "__main__":
    if sys.argv[1] == "child":
        child()
        sys.exit()
    began = time.time()
    variants, names = sys.argv[2].split(","), sys.argv[3].split(",")
    children = start(variants)
    for v, p in children.items():
        assert answer(v, p) == "ready"
    if sys.argv[1] == "warm":  # all at once
        for p in children.values():
            p.stdin.write("compile:0\n")
            p.stdin.flush()
        for v, p in children.items():
            answer(v, p)
        print(f"compiled in {time.time() - began:.0f} s", flush=True)
        for name in names:
            print(name, *(f"{v}:{t.split()[0]}" for v, t in ask(children, name, 1)), "beyond", beyond, flush=True)
    else:
        print(f"{'row':18s}" + "".join(f"{v:>8s}" for v in variants), flush=True)
        for name in names:
            times = {v: [] for v in variants}
            for _ in range(3):
                for v, line in ask(children, name, 7):
                    times[v] += [float(t) for t in line.split()]
            print(f"{name:18s}" + "".join(f"{sorted(t)[len(t) // 2]:8.1f}" for t in times.values()), flush=True)
    for p in children.values():
        p.stdin.close()
    print(f"{time.time() - began:.1f} s", flush=True)
