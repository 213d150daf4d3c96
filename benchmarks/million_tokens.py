"""Hyena's operators on a million tokens of Evo 2's 4096 channels: milliseconds, and the peak of memory in use.

    python benchmarks/million_tokens.py [--json FILE]

Inputs and output alone are 32 GiB. Times are the minimum of three calls, after one that loads the kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.cli.bench_environment import environment
from gdn_cuda.cli.bench_report import write
from gdn_cuda.cli.bench_targets import Targets

CHANNELS, GROUPS, TOKENS = 4096, 256, (1 << 17, 1 << 20)
GIBIBYTE = 1 << 30


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def operators() -> dict[tuple[str, str], Callable[..., Any]]:
    """The operators with Evo 2's arguments, except x1, x2 and v."""
    poles = -(3 * torch.randn(CHANNELS, 16, device="cuda") - 4).exp()
    return {
        ("hyena_short", "7 taps"): partial(gdn_cuda.hyena_short, weight=normal(GROUPS, 1, 7)),
        ("hyena_medium", "128 taps"): partial(gdn_cuda.hyena_medium, weight=normal(GROUPS, 1, 128) / 11, bias=normal(CHANNELS)),
        ("hyena_long", "16 poles"): partial(
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="a report as that of bench, for benchmarks/fill_pages.py")
    options, rows = parser.parse_args(), []
    targets = Targets("million_tokens", torch.cuda.get_device_name())
    for tokens in TOKENS:
        x1, x2, v = (normal(1, CHANNELS, tokens) for _ in range(3))
        for (name, filters), operator in operators().items():
            call = partial(operator, x1, x2, v)
            call()
            torch.cuda.reset_peak_memory_stats()
            time = min(milliseconds(call) for _ in range(3))
            peak = torch.cuda.max_memory_allocated()
            print(f"{name} 1×{CHANNELS}×{tokens}: {time:.2f} ms, {peak / GIBIBYTE:.1f} GiB", flush=True)
            row, kind = f"`{name}`, {filters}", f"{tokens} tokens"
            rows.append({"shape": f"{row}, {kind}", "row": row, "kind": kind, "time_us": 1e3 * time, "peak_bytes": peak})
            rows[-1]["reach_us"] = targets.reach_us(row, kind, 0, [])
    if options.json:
        write([environment("million_tokens", cpu=False) | {"rows": rows}], options.json)


if __name__ == "__main__":
    main()
