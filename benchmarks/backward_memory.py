"""Peak memory of forward and backward of Gated Delta Net above its inputs, in MiB, beside FlashQLA where it is installed.

    python benchmarks/backward_memory.py [SHAPE...]

Gradients of query, key, value, beta, gate and initial state are part of it; both libraries return the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import gdn_cuda
from gdn_cuda.gdn import measure_peers as peers
from gdn_cuda.gdn.measure_prefill import PLAIN, prefill_work
from gdn_cuda.operators.measure import Absent

DEFAULT = ("1×8192 16/32", "1×32768 16/32", "8×4096 16/32", "1×8192 16/64")
DIFFERENTIATED = ("query", "key", "value", "beta", "gate", "state")


def ours(x: dict[str, Any]) -> Any:
    return gdn_cuda.chunked_forward(**x)[:2]


def flashqla(x: dict[str, Any]) -> Any:
    peer = peers.flashqla_chunked(x)
    return peer.read(peer.call())


def peak(forward: Callable[[dict[str, Any]], Any], x: dict[str, Any]) -> float:
    leaves = {name: x[name].detach().requires_grad_() for name in DIFFERENTIATED}
    most = 0
    for _ in range(2):  # the first call compiles and tunes
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        results = forward(x | leaves)
        grads = torch.autograd.grad(results, tuple(leaves.values()), [torch.ones_like(each) for each in results])
        most = torch.cuda.max_memory_allocated() - before
        del results, grads
    return most / 2**20


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name in sys.argv[1:] or DEFAULT:
        x = dict(prefill_work(PLAIN[name], "cuda").inputs)
        own = peak(ours, x)
        try:
            beside = f", FlashQLA {(other := peak(flashqla, x)):.0f}: {own / other:.2f} times"
        except Absent as absent:
            beside = f" ({absent})"
        print(f"{name}: {own:.0f}{beside}", flush=True)


if __name__ == "__main__":
    main()
