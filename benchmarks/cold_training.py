"""The waiting time of a first training step: forward and backward of chunked_forward in a new process, with an empty cache and
then from disk. Needs a GPU. A first step also waits for torch's own kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

STEP = """
import json, sys, time
import torch
import gdn_cuda

def rows(heads, d):
    return torch.randn(1, 8192, heads, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)

def step():
    start = time.perf_counter()
    output, _ = gdn_cuda.chunked_forward(query, key, value, beta, gate, use_qk_l2norm=True)
    middle = time.perf_counter()
    output.float().square().mean().backward()
    torch.cuda.synchronize()
    return middle - start, time.perf_counter() - start

query, key, value = rows(16, 128), rows(16, 128), rows(32, 128)
beta, gate = (torch.rand(1, 8192, 32, device="cuda") for _ in range(2))
gate = -gate
beta.requires_grad_(), gate.requires_grad_()
torch.cuda.synchronize()
first, second = step(), step()
print(json.dumps([first, second, gdn_cuda._C.load_events()]))
"""


def run(cache: str) -> tuple[list[float], list[float], list[dict]]:
    environment = os.environ | {"GDN_JIT_CACHE_DIR": cache, "GDN_JIT_PREBUILT_DIR": ""}
    done = subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    print(f"{os.cpu_count()} cores; seconds of a first step of 1x8192 tokens, 16/32 heads: forward, whole step")
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("empty cache", "from disk"):
                first, second, events = run(folder)
                print(f"{name:12} {first[0]:7.3f} {first[1]:7.3f}   second step {second[1]:.4f}")
                for event in events:
                    print(f"    {event['kernel']:24} {event['origin']:9} {event['seconds']:7.3f}")


if __name__ == "__main__":
    main()
