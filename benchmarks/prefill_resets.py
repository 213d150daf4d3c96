"""Prefill where gates reset the state: time of a chunk of one long sequence with two heads, unsplit.

    python benchmarks/prefill_resets.py

*plain*: no gate resets. *reset*: the second gate of every chunk resets. *by token*: also the first value of every chunk is
infinite, so that the chunk is processed token by token.
"""

from __future__ import annotations

import math

import torch

import gdn_cuda
from gdn_cuda.cli.bench_timing import Timer

CHUNKS, CHUNK, HEADS, DIM = 100, 64, 2, 128


def main() -> None:
    timer = Timer(50)
    torch.manual_seed(0)
    tokens = CHUNKS * CHUNK
    unit = torch.nn.functional.normalize
    query, key = (unit(torch.randn(1, tokens, 1, DIM, device="cuda"), dim=-1).bfloat16() for _ in range(2))
    value = torch.randn(1, tokens, HEADS, DIM, device="cuda").bfloat16()
    beta, gate = torch.rand(1, tokens, HEADS, device="cuda"), -torch.rand(1, tokens, HEADS, device="cuda")

    def report(name: str) -> None:
        us = timer.graph_us(lambda: gdn_cuda.chunked_forward(query, key, value, beta, gate, deterministic=True))
        print(f"{name:10}{us / CHUNKS:8.2f} us a chunk", flush=True)

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    report("plain")
    gate[:, 1::CHUNK] = -math.inf
    report("reset")
    value[:, ::CHUNK] = math.inf
    report("by token")


if __name__ == "__main__":
    main()
