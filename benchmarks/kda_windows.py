"""chunked_forward with a gate for every channel of the key, by how many chunks a window has. Needs a Hopper.

    for window in auto 12 20 32 48 64 128; do GDN_KDA_WINDOW=$window python benchmarks/kda_windows.py; done

µs by events over replays of a CUDA graph with ten calls, median of nine; initial and final states in fp32.
"""

from __future__ import annotations

import os

import torch
from kda_launches import DEVICE, gates, microseconds

import gdn_cuda

SHAPES = ((64, 8192, 1), (32, 8192, 1), (16, 8192, 1), (4, 8192, 1), (64, 1024, 1), (96, 8192, 1), (16, 2048, 8))


def time_call(kind: str, heads: int, tokens: int, sequences: int) -> float:
    rng = torch.Generator(DEVICE).manual_seed(tokens + heads)
    shape = (sequences, tokens, heads, 128)
    query, key, value = (torch.randn(shape, generator=rng, device=DEVICE).bfloat16() for _ in range(3))
    beta = torch.rand(shape[:3], generator=rng, device=DEVICE)
    raw = gates(kind, tokens, heads, rng)
    gate = raw.pop("gate").expand(sequences, -1, -1, -1).contiguous()
    state = torch.zeros(sequences, heads, 128, 128, device=DEVICE)

    def call() -> None:
        gdn_cuda.chunked_forward(query, key, value, beta, gate, state, use_qk_l2norm=True, **raw)

    return microseconds(call)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, window {os.environ.get('GDN_KDA_WINDOW', 'auto')}")
    for kind in ("init", "heavy"):
        for heads, tokens, sequences in SHAPES:
            us = time_call(kind, heads, tokens, sequences)
            print(f"{kind:8} {heads:3} heads {sequences}×{tokens:5} {us:8.1f}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
