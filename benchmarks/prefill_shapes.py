"""Times of chunked_forward for each kind of gates, a row for each shape, with digests of outputs and final states.

    python benchmarks/prefill_shapes.py [(BxT|packed):Hk/Hv[:l2norm|:deterministic|:GATES ...] ...]

Run in two checkouts, one after the other on one GPU, it compares them: microseconds of a graph's replay, and whether the bits
are the same. docs/benchmarks/prefill.md says what the kinds of gates are.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace

import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.gdn.measure_gates import KINDS
from gdn_cuda.gdn.measure_prefill import PACKED_LENGTHS, Shape, prefill_work

SHAPES = (
    *("1x8192:4/8", "1x32768:4/8", "1x32768:2/4", "1x8192:8/16", "1x8192:16/32", "1x32768:16/32", "1x131072:4/8"),
    *("8x4096:16/32", "32x1024:16/32", "64x512:16/32", "8x2048:16/16", "packed:16/32"),
    *("1x8192:16/32:l2norm", "8x4096:16/32:l2norm", "32x1024:16/32:l2norm"),
)


def digest(*tensors: Tensor) -> str:
    of = hashlib.sha1()
    for x in tensors:
        of.update(x.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return of.hexdigest()[:8]


def cell(timer: Timer, shape: Shape) -> str:
    torch.manual_seed(1)
    work = prefill_work(shape, "cuda")
    output, state = gdn_cuda.chunked_forward(**work.inputs, deterministic=shape.deterministic)[:2]
    return f"{shape.gates} {timer.graph_us(work.call):7.1f} {digest(output, state)}"


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__, gdn_cuda.__path__[0])
    timer = Timer(20)
    for name in sys.argv[1:] or SHAPES:
        extent, heads, *options = name.split(":")
        key_heads, value_heads = map(int, heads.split("/"))
        packed = extent == "packed"
        batch, tokens = (0, 0) if packed else map(int, extent.split("x"))
        lengths = PACKED_LENGTHS if packed else batch * (tokens,)
        l2norm, deterministic = "l2norm" in options, "deterministic" in options
        one = Shape(key_heads, value_heads, lengths, packed=packed, l2norm=l2norm, deterministic=deterministic)
        shapes = [replace(one, gates=kind) for kind in KINDS if kind in options or not set(KINDS) & set(options)]
        print(f"{name:20}", "   ".join(cell(timer, shape) for shape in shapes), flush=True)


if __name__ == "__main__":
    main()
