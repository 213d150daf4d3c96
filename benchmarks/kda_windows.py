"""chunked_forward with a gate for every channel of the key, by how many chunks a window has, or by how many segments a sequence
of few heads has. Needs a Hopper.

    for window in auto 12 20 32 48 64 128; do GDN_KDA_WINDOW=$window python benchmarks/kda_windows.py; done
    for n in auto 1 3 4 5 6 8 9 12 16 24; do GDN_KDA_SEGMENTS=$n python benchmarks/kda_windows.py --few-heads; done
    for n in auto 0 1; do GDN_KDA_AHEAD=$n python benchmarks/kda_windows.py --ahead; done
    python benchmarks/kda_windows.py --packed    sequences of benchmarks/kda_peers.py with more work tiles than a GPU has SMs

µs by events over replays of a CUDA graph with ten calls, median of nine; initial and final states in fp32.
"""

from __future__ import annotations

import argparse
import os

import torch
from kda_launches import DEVICE, gates, microseconds
from kda_peers_inputs import SHAPES as PEERS

import gdn_cuda

SHAPES = ((64, 8192, 1), (32, 8192, 1), (16, 8192, 1), (4, 8192, 1), (64, 1024, 1), (96, 8192, 1), (16, 2048, 8))
FEW_HEADS = (
    (4, 32768, 1),
    (8, 32768, 1),
    (12, 32768, 1),
    (16, 32768, 1),
    (2, 8192, 1),
    (4, 8192, 1),
    (8, 8192, 1),
    (4, 16384, 2),
)
# Where chunks may be prepared beside the owners of states.
AHEAD = (
    *((heads, 8192, 1) for heads in (8, 12, 16, 20, 24, 32, 40, 48, 56, 64)),
    *((heads, 2048, 1) for heads in (16, 32, 48)),
    (16, 1024, 1),
    (32, 1024, 1),
    (16, 32768, 1),
    (8, 4096, 4),
)


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


def time_packed(kind: str, heads: int, lengths: tuple[int, ...]) -> float:
    tokens = sum(lengths)
    rng = torch.Generator(DEVICE).manual_seed(tokens + heads)
    query, key, value = (torch.randn(tokens, heads, 128, generator=rng, device=DEVICE).bfloat16() for _ in range(3))
    beta = torch.rand(tokens, heads, generator=rng, device=DEVICE)
    raw = gates(kind, tokens, heads, rng)
    gate = raw.pop("gate")[0]
    state = torch.zeros(len(lengths), heads, 128, 128, device=DEVICE)
    offsets = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)

    def call() -> None:
        gdn_cuda.chunked_forward(query, key, value, beta, gate, state, offsets, use_qk_l2norm=True, **raw)

    return microseconds(call)


def print_padded(shapes: tuple[tuple[int, int, int], ...]) -> None:
    for kind in ("init", "heavy"):
        for heads, tokens, sequences in shapes:
            us = time_call(kind, heads, tokens, sequences)
            print(f"{kind:8} {heads:3} heads {sequences}×{tokens:5} {us:8.1f}", flush=True)
            torch.cuda.empty_cache()


def print_packed() -> None:
    shapes = {shape.packed: shape.lengths for shape in PEERS if shape.packed} | {"one": (8192,)}
    for kind in ("init", "heavy"):
        for heads in (64, 32, 16, 4):
            for name, lengths in shapes.items():
                us = time_packed(kind, heads, lengths)
                print(f"{kind:8} {heads:3} heads packed {name:10} {us:8.1f}", flush=True)
                torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few-heads", action="store_true", help="the shapes that segments are for")
    parser.add_argument("--ahead", action="store_true", help="the shapes that one launch for both kernels is for")
    parser.add_argument("--packed", action="store_true")
    options = parser.parse_args()
    names = ("GDN_KDA_WINDOW", "GDN_KDA_SEGMENTS", "GDN_KDA_AHEAD")
    print(", ".join([torch.cuda.get_device_name(), *(f"{name}={os.environ.get(name, 'auto')}" for name in names)]))
    if options.packed:
        print_packed()
    else:
        print_padded(FEW_HEADS if options.few_heads else AHEAD if options.ahead else SHAPES)


if __name__ == "__main__":
    main()
