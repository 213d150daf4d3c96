"""Compiles CuTe DSL kernels of cuDNN frontend and FlashInfer for sm_90a, without a GPU: compile_kda_cute.py FOLDER

For pack_kda.py, which has set PYTHONPATH and CUTE_DSL_ARCH. An object file each, with a function for TVM FFI; those that are
there already stay. kda_cute.json says how many segments each of cuDNN's is for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cutlass
import fused_kda_decode as flashinfer
import kda_peers_inputs
from cudnn.linear_attention.hopper.kernel import kda_prefill_sm90 as cudnn
from cutlass import cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

OPTIONS = "--enable-tvm-ffi --gpu-arch sm_90a"
SMS, D = 132, 128


def tensor(dtype: Any, *shape: int, align: int = 16) -> Any:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return make_fake_tensor(dtype, shape=shape, stride=tuple(strides), assumed_align=align)


def transposed(dtype: Any, rows: int) -> Any:
    return make_fake_tensor(dtype, shape=(D, rows), stride=(1, D), assumed_align=16)


def export(folder: Path, name: str, function: Any, *arguments: Any) -> None:
    if not (folder / f"{name}.o").exists():
        cute.compile(function, *arguments, options=OPTIONS).export_to_c(str(folder / f"{name}.o"), function_name=name)
        print(name, flush=True)


def cudnn_prefill(folder: Path, tokens: int, heads: int, count: int) -> tuple[str, int]:
    """The arguments are those of its `run_cute`."""
    bf16, fp32 = cutlass.BFloat16, cutlass.Float32
    segments = cudnn._pick_nseg(tokens, count, heads, SMS)
    chunks = tokens // 16 + count + 1
    rows, maps = chunks * heads * 16, count * heads * segments
    x, row, state = tensor(bf16, tokens, heads, D), tensor(bf16, rows, D), tensor(fp32, count, heads, D, D)
    given = (
        x,
        x,
        x,
        tensor(fp32, tokens, heads, D),
        tensor(fp32, tokens, heads),
        tensor(cutlass.Int32, count + 1, align=4),
        state,
    )
    scratch = (row, row, row, row, tensor(bf16, rows, 16), tensor(fp32, chunks * heads, D), transposed(bf16, rows))
    scratch += (transposed(bf16, rows), tensor(fp32, maps, D, D), tensor(bf16, maps, D, D), transposed(bf16, maps * D))
    sizes = (count, heads, (tokens + 15) // 16 + count - 1, chunks, segments)
    name = f"cudnn_kda_{tokens}_{heads}_{count}"
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    export(folder, name, cudnn.kda_launch, *given, *scratch, tensor(fp32, maps, D, D), x, state, *sizes, stream)
    return name, segments


def main(folder: Path) -> None:
    for states, dtype in (("f32", cutlass.Float32), ("bf16", cutlass.BFloat16)):
        given = (*flashinfer._make_compile_inputs(dtype), states == "bf16", True, -5.0, 1e-5)
        export(folder, f"fi_kda_decode_{states}_lb", flashinfer._fused_kda_decode_launch, *given)
    shapes = dict.fromkeys((*kda_peers_inputs.SHAPES, *kda_peers_inputs.TEN, kda_peers_inputs.CHECKED))
    made = [cudnn_prefill(folder, sum(shape.lengths), shape.heads, len(shape.lengths)) for shape in shapes]
    (folder / "kda_cute.json").write_text(json.dumps(dict(made)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
