"""Decode as in an engine: the time of a CUDA graph of 36 layers, each with its own pool, divided by 36.

    python benchmarks/decode_chain.py [--layers 36] [--peers]

Prints microseconds per layer: fused_decode of one token and plain verify of four, alone and between two projections (torch's
products of a Qwen3-Next layer); and a layer's step between its projections by three operators, and in one launch. The L2 is not
flushed: the pools of all layers exceed it, except for one sequence in bf16.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from itertools import product

import torch

import gdn_cuda
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.gdn.measure_decode import decode_work
from gdn_cuda.gdn.measure_peers import flashinfer_decode
from gdn_cuda.layers.decode_layer import by_operators, layer_work
from gdn_cuda.operators.measure import Absent

HEADS, HIDDEN = (16, 32), 2048
STATES = (torch.float32, torch.bfloat16)
PROJECTED = 2 * sum(HEADS) * 128  # q, k, v and z
Step = Callable[[], object]


def fused_decode(batch: int, tokens: int, state: torch.dtype) -> Step:
    return decode_work("cuda", batch, tokens, *HEADS, state).call


def flashinfer(batch: int, tokens: int, state: torch.dtype) -> Step:
    return flashinfer_decode(decode_work("cuda", batch, tokens, *HEADS, state).inputs).call


def three_operators(batch: int, tokens: int, state: torch.dtype) -> Step:
    given = dict(layer_work("cuda", batch, tokens, state).inputs)
    del given["out"]
    return partial(by_operators, **given)


def one_launch(batch: int, tokens: int, state: torch.dtype) -> Step:
    return layer_work("cuda", batch, tokens, state).call


def projected(step: Step, batch: int) -> Step:
    """`step` between a layer's projections."""
    x, into, out_of = (
        torch.randn(*shape, device="cuda").bfloat16()
        for shape in ((batch, HIDDEN), (HIDDEN, PROJECTED), (HEADS[1] * 128, HIDDEN))
    )
    projections, outputs = x.new_empty(batch, PROJECTED), torch.empty_like(x)

    def call() -> None:
        torch.mm(x, into, out=projections)
        step()
        torch.mm(projections[:, : HEADS[1] * 128], out_of, out=outputs)

    return call


def us_of_layer(timer: Timer, steps: list[Step]) -> float:
    def chain() -> None:
        for step in steps:
            step()

    graph = timer.capture(chain)
    times = []
    for _ in range(12):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        graph.replay()
        events[1].record()
        torch.cuda.synchronize()
        times.append(events[0].elapsed_time(events[1]) * 1e3 / len(steps))
    return statistics.median(times[2:])


def cell(timer: Timer, step: Callable[..., Step], sizes: tuple[int, int, torch.dtype], layers: int) -> str:
    steps = [step(*sizes) for _ in range(layers)]
    alone = f"{step.__name__} {us_of_layer(timer, steps):7.2f}"
    if step not in (fused_decode, flashinfer):
        return alone
    between = [projected(each, sizes[0] * sizes[1]) for each in steps]
    return f"{alone}   between projections {us_of_layer(timer, between):7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--peers", action="store_true", help="FlashInfer's decode beside ours")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__, gdn_cuda.__path__[0])
    timer = Timer(1)
    for tokens, batch, state in product((1, 4), (1, 4, 16, 64, 256), STATES):
        if batch * tokens > 256:
            continue
        cells = []
        for step in (fused_decode, flashinfer, three_operators, one_launch):
            if (step is flashinfer and not options.peers) or (step in (three_operators, one_launch) and tokens > 1):
                continue
            try:
                cells.append(cell(timer, step, (batch, tokens, state), options.layers))
            except (Absent, RuntimeError) as reason:  # a peer that does not support these shapes
                cells.append(f"{step.__name__} -: {str(reason)[:50]}")
            torch.cuda.empty_cache()
        print(f"B={batch:<4} T={tokens} {state!s:15}" + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
