"""Prefill under four kinds of gates: the default split beside none at all (`deterministic=True`), graph replays.

    python benchmarks/prefill_gates.py [--only 1x8192] [--kinds fast init mixed slow] [--json FILE]

*fast* gates are uniform in (-1, 0). *init* is how FLA and Mamba-2 initialise a model: -A dt, A uniform in 1 ... 16 and dt
log-uniform in 0.001 ... 0.1, both of a head. *mixed* has every second head fast, and the others keep 0.999 to 0.99999 of the
state at each token. *slow* keeps 0.99999 everywhere: nothing is ever forgotten.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch

import gdn_cuda
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.gdn.measure_prefill import PACKED_LENGTHS

ROWS = (
    *((16, 32, (tokens,)) for tokens in (1024, 2048, 4096, 8192, 32768, 131072)),
    (16, 32, 8 * (4096,)),
    (16, 32, 32 * (1024,)),
    (16, 32, 64 * (512,)),
    (16, 32, PACKED_LENGTHS),
    (4, 8, (8192,)),
    (4, 8, (32768,)),
    (16, 64, (8192,)),
    (16, 48, (32768,)),
    (16, 16, 8 * (2048,)),
)
KINDS = ("fast", "init", "mixed", "slow")


def gates(kind: str, leading: tuple[int, ...], heads: int) -> torch.Tensor:
    fast = -torch.rand(*leading, heads, device="cuda")
    if kind == "fast":
        return fast
    if kind == "slow":
        return torch.full_like(fast, math.log(0.99999))
    if kind == "init":
        rate = torch.empty(heads, device="cuda").uniform_(1, 16)
        step = torch.empty(heads, device="cuda").uniform_(math.log(0.001), math.log(0.1)).exp()
        return (-rate * step).expand(*leading, heads).contiguous()
    kept = 1 - torch.logspace(-3, -5, (heads + 1) // 2, device="cuda")
    fast[..., ::2] = kept.log()
    return fast


def inputs(key_heads: int, value_heads: int, lengths: tuple[int, ...], kind: str) -> dict[str, torch.Tensor]:
    packed = len(set(lengths)) > 1
    leading = (sum(lengths),) if packed else (len(lengths), lengths[0])
    unit = torch.nn.functional.normalize
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    x = {
        "query": unit(draw(*leading, key_heads, 128), dim=-1),
        "key": unit(draw(*leading, key_heads, 128), dim=-1),
        "value": draw(*leading, value_heads, 128),
        "beta": torch.rand(*leading, value_heads, device="cuda"),
        "gate": gates(kind, leading, value_heads),
        "state": torch.randn(len(lengths), value_heads, 128, 128, device="cuda"),
    }
    if packed:
        x["cu_seqlens"] = torch.tensor([0, *accumulate(lengths)], device="cuda", dtype=torch.int32)
    return x


def row_name(key_heads: int, value_heads: int, lengths: tuple[int, ...]) -> str:
    extent = f"{len(lengths)}x{lengths[0]}" if len(set(lengths)) == 1 else f"packed {len(lengths)}"
    return f"{extent} {key_heads}/{value_heads}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    timer, results = Timer(200), []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; ms, default / unsplit (ratio)")
    print(f"{'':18}" + "".join(f"{kind:>24}" for kind in arguments.kinds))
    for shape in ROWS:
        name, cells = row_name(*shape), []
        if arguments.only not in name:
            continue
        for kind in arguments.kinds:
            torch.manual_seed(0)
            x = inputs(*shape, kind)
            times = [
                timer.graph_us(partial(gdn_cuda.chunked_forward, **x, deterministic=unsplit)) / 1e3 for unsplit in (False, True)
            ]
            results.append({"row": name, "gates": kind, "default_ms": times[0], "unsplit_ms": times[1]})
            cells.append(f"{times[0]:8.4f} /{times[1]:8.4f} ({times[0] / times[1]:.2f})")
        print(f"{name:18}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
