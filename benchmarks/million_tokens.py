"""Hyena's operators on a million tokens of Evo 2's 4096 channels: milliseconds, and the most memory that was in use.

    python benchmarks/million_tokens.py

Inputs and output alone are 32 GiB. Times are the least of three calls, after one that loads the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import gdn_cuda

CHANNELS, GROUPS, TOKENS = 4096, 256, (1 << 17, 1 << 20)
GIBIBYTE = 1 << 30


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def operators() -> dict[str, Callable[..., Any]]:
    """As Evo 2 calls them, but for x1, x2 and v."""
    poles = -(3 * torch.randn(CHANNELS, 16, device="cuda") - 4).exp()
    return {
        "hyena_short": partial(gdn_cuda.hyena_short, weight=normal(GROUPS, 1, 7)),
        "hyena_medium": partial(gdn_cuda.hyena_medium, weight=normal(GROUPS, 1, 128) / 11, bias=normal(CHANNELS)),
        "hyena_long": partial(
            gdn_cuda.hyena_long,
            residues=torch.randn(CHANNELS, 16, device="cuda"),
            log_poles=poles,
            bias=normal(CHANNELS).float(),
        ),
    }


def milliseconds(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def main() -> None:
    for tokens in TOKENS:
        x1, x2, v = (normal(1, CHANNELS, tokens) for _ in range(3))
        for name, operator in operators().items():
            call = partial(operator, x1, x2, v)
            call()
            torch.cuda.reset_peak_memory_stats()
            time = min(milliseconds(call) for _ in range(3))
            peak = torch.cuda.max_memory_allocated() / GIBIBYTE
            print(f"{name} 1×{CHANNELS}×{tokens}: {time:.2f} ms, {peak:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
