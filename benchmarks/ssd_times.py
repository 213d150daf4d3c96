"""Mamba-2's prefill, ssd/prefill beside mamba-ssm's Triton kernels, whose files are enough: no build of its wheel.

    python benchmarks/ssd_times.py [--peer] [--backward] [SHAPE...]

ms of a graph's replay with the L2 flushed, as in `gdn-cuda bench`; the roof is the time of the bytes at 4.24 TB/s. Inputs are
those of a layer at initialisation, D and the last state, no z. mamba-ssm has the faster of chunks of 128 and 256 tokens.
--backward: the gradients alone, up to 128 states, without the peer and the roof.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.operators.measure import normal
from gdn_cuda.ssd.gradients import ssd_scan_backward
from gdn_cuda.ssd.scan import ssd_scan

BYTES_A_MS = 4.24e9


class Shape(NamedTuple):
    heads: int
    channels: int
    groups: int
    states: int
    batch: int
    tokens: int


SHAPES = {
    f"{batch}×{tokens} {heads}×{channels}, G {groups}, N {states}": Shape(heads, channels, groups, states, batch, tokens)
    for heads, channels, groups, states, batch, tokens in (
        (128, 64, 8, 128, 1, 8192),
        (128, 64, 8, 128, 1, 32768),
        (128, 64, 8, 128, 8, 4096),
        (128, 64, 1, 128, 8, 2048),
        (128, 64, 1, 128, 1, 1024),
        (128, 64, 1, 128, 1, 8192),
        (128, 64, 1, 128, 1, 65536),
        (32, 64, 1, 128, 1, 8192),
        (16, 64, 1, 128, 1, 8192),
        (16, 64, 1, 128, 1, 32768),
        (128, 80, 8, 128, 1, 8192),
        (128, 80, 8, 128, 8, 4096),
        (64, 64, 8, 128, 1, 8192),
        (64, 64, 8, 128, 8, 4096),
        (256, 64, 8, 128, 1, 131072),
        (256, 64, 8, 256, 1, 8192),
        (32, 128, 2, 256, 1, 8192),
        (32, 128, 2, 256, 8, 4096),
        (112, 64, 2, 64, 1, 8192),
    )
}


def inputs(shape: Shape) -> dict[str, Tensor]:
    heads, channels, groups, states, batch, tokens = shape

    def rows(*sizes: int) -> Tensor:
        return normal(batch, tokens, *sizes, device="cuda")

    steps = torch.exp(torch.rand(heads, device="cuda") * math.log(100) + math.log(1e-3))
    return {
        "x": rows(heads, channels),
        "dt": rows(heads) / 2,
        "A": -(1 + 15 * torch.rand(heads, device="cuda")),
        "B": rows(groups, states),
        "C": rows(groups, states),
        "D": torch.ones(heads, device="cuda"),
        "dt_bias": torch.log(torch.expm1(steps)),
    }


def roof_ms(shape: Shape) -> float:
    heads, channels, groups, states, batch, tokens = shape
    token_bytes = 2 * (2 * heads * channels + 2 * groups * states + heads)
    return (batch * tokens * token_bytes + 4 * batch * heads * channels * states) / BYTES_A_MS


def peers(x: dict[str, Tensor]) -> list[Callable[[], Any]]:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    rest = {"D": x["D"], "dt_bias": x["dt_bias"], "dt_softplus": True, "return_final_states": True}
    return [
        partial(mamba_chunk_scan_combined, x["x"], x["dt"], x["A"], x["B"], x["C"], chunk_size=size, **rest)
        for size in (128, 256)
    ]


def error(x: dict[str, Tensor]) -> float:
    """The error of the output's first tokens, against the recurrence in fp64."""
    from gdn_cuda.ssd.reference import Scan, Steps, recurrent

    few = {name: y[:, :300].double() if y.dim() > 1 else y.double() for name, y in x.items()}
    wanted, _ = recurrent(Scan(**few), Steps(softplus=True))
    found = ssd_scan(**x, dt_softplus=True)[0][:, :300].double()
    return float((found - wanted).norm() / wanted.norm())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--backward", action="store_true")
    chosen = parser.parse_args()
    timer = Timer(20)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name in chosen.shapes or SHAPES:
        shape = SHAPES[name]
        x = inputs(shape)
        if chosen.backward:
            if shape.states <= 128:
                call = partial(ssd_scan_backward, **x, out_gradient=torch.randn_like(x["x"]), dt_softplus=True)
                print(f"{name:32} {timer.graph_us(call) / 1e3:8.3f}", flush=True)
            continue
        mine = timer.graph_us(partial(ssd_scan, **x, dt_softplus=True)) / 1e3
        line = f"{name:32} {mine:8.3f}, roof {roof_ms(shape):.3f}, {mine / roof_ms(shape):.2f} ×, error {error(x):.1e}"
        if chosen.peer:
            theirs = min(timer.graph_us(call) for call in peers(x)) / 1e3
            line += f"; mamba-ssm {theirs:.3f}, {theirs / mine:.2f} ×"
        print(line, flush=True)
        del x
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
