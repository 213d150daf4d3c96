"""Benchmark of the selective scan, forward and backward, beside mamba-ssm; calls of its kernels for compute-sanitizer.

Inputs are those of a Mamba layer at initialisation (A = −1 … −N, δ log-uniform in 0.001 … 0.1 through bias and softplus, z and
D), or `trained`. The roof of a row is the time of the bytes that it reads and writes, or where it is known, of its
exponentials, which bound the scan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..operators.measure import (
    Absent,
    Call,
    Case,
    Inputs,
    Outcome,
    Peer,
    Work,
    bench,
    draw,
    import_peer,
    normal,
    sanitizes,
    size,
)
from .selective import selective_scan
from .selective_summary import summary, summary_backward


@dataclass(frozen=True)
class Shape:
    batch: int
    dim: int
    length: int
    N: int = 16
    dtype: torch.dtype = torch.bfloat16
    is_complex: bool = False
    layout: str = "tokens"  # or "transposed": views of (B, L, D); or "mixed": as in transformers' Mamba
    packed: tuple[int, ...] = ()  # lengths of sequences
    trained: bool = False

    @property
    def name(self) -> str:
        options = " fp32" * (self.dtype == torch.float32) + " complex" * self.is_complex + f" N={self.N}" * (self.N != 16)
        options += " packed" * bool(self.packed) + " trained" * self.trained
        return f"{self.batch}×{self.dim}×{self.length}{options}{f' {self.layout}' * (self.layout != 'tokens')}"


_PACKED = (1, 4096, 7, 2048, 33, 1024, 129, 512, 255, 3071, 64, 2000, 1, 1500, 900, 743)
GPU_SHAPES = (
    Shape(1, 5120, 4096),
    Shape(8, 5120, 2048),
    Shape(8, 1536, 2048),
    Shape(1, 8192, 32768),
    Shape(1, 256, 131072),
    Shape(8, 1536, 2048, dtype=torch.float32),
    Shape(8, 1024, 2048, is_complex=True),
    Shape(8, 5120, 2048, N=64),
    Shape(1, 1536, 512),
    Shape(1, 2048, 4096),
    Shape(8, 1536, 2047),
    Shape(8, 1536, 2048, trained=True),
    Shape(1, 1536, sum(_PACKED), packed=_PACKED),
)
MIXED_SHAPES = tuple(replace(shape, layout="mixed") for shape in (Shape(8, 1536, 2048), Shape(1, 2048, 4096), GPU_SHAPES[-1]))
CPU_SHAPES = (Shape(2, 8, 70), Shape(1, 8, 40, trained=True, packed=(1, 39)))
CPU_MIXED_SHAPES = (Shape(1, 16, 9, layout="mixed"),)
_DIFFERENTIATED = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def layer_inputs(device: str, shape: Shape) -> Inputs:
    """With a complex A, B and C are in pairs. Mixed: u is contiguous, as a convolution returns it, the others are views of a
    projection's output: z is one half, B and C are the last columns, after those of δ. Trained: poles at a tenth to ten times
    their initial size, and δ that varies between tokens by as much."""
    options = {"device": device, "dtype": shape.dtype}
    batch, dim, length, N = shape.batch, shape.dim, shape.length, shape.N

    def rows(scale: float = 1, before: int = 0, layout: str = shape.layout) -> Tensor:
        if layout == "tokens":
            return scale * normal(batch, dim, length, **options)
        return scale * normal(batch, length, before + dim, **options)[..., before:].mT

    def coefficients() -> tuple[Tensor, Tensor]:
        if shape.layout == "mixed":
            B, C = normal(batch, length, dim // 16 + 2 * N, **options)[..., -2 * N :].chunk(2, -1)
            return B.mT, C.mT
        B, C = (normal(batch, N, length * (1 + shape.is_complex), **options) for _ in range(2))
        return B, C

    A = -torch.arange(1, N + 1, dtype=torch.float32, device=device).repeat(dim, 1)
    if shape.trained:
        A *= torch.exp(torch.randn_like(A))
    if shape.is_complex:  # as S4D-Lin
        A = torch.complex(torch.full_like(A, -0.5), -math.pi * (A + 1))
    steps = torch.exp(math.log(0.001) + math.log(100) * torch.rand(dim, device=device))
    B, C = coefficients()
    x = {
        "u": rows(layout="tokens" if shape.layout == "mixed" else shape.layout),
        "delta": rows(1 if shape.trained else 0.1),
        "A": A,
        "B": B,
        "C": C,
        "D": torch.ones(dim, device=device),
        "z": rows(before=dim if shape.layout == "mixed" else 0),
        "delta_bias": steps + torch.log(-torch.expm1(-steps)),  # the inverse of softplus
    }
    if shape.packed:
        x["cu_seqlens"] = torch.tensor([0, *accumulate(shape.packed)], device=device, dtype=torch.int32)
    return x


def _leaves(x: Inputs) -> Inputs:
    return {name: x[name].detach().requires_grad_() for name in _DIFFERENTIATED}


def _scan(given: Inputs, leaves: Inputs | None = None) -> Tensor:
    x = {name: value for name, value in given.items() if name != "backward"}
    out: Tensor = selective_scan(**x | (leaves or {}), delta_softplus=True)
    return out


def timed_call(x: Inputs, backward: bool) -> Call:
    if not backward:
        return partial(_scan, x)
    leaves = _leaves(x)
    out = _scan(x, leaves)
    return partial(torch.autograd.grad, out, tuple(leaves.values()), torch.randn_like(out), retain_graph=True)


def _outcome(x: Inputs) -> Outcome:
    """Output and gradients, whichever pass is timed."""
    leaves = _leaves(x)
    return _with_gradients(_scan(x, leaves), leaves)


def _with_gradients(out: Tensor, leaves: Inputs) -> Outcome:
    """The output and all gradients, each divided by its mean size."""
    weights = torch.cos(torch.arange(out.shape[-1], device=out.device)).to(out.dtype).expand(out.shape)
    found = torch.autograd.grad(out, tuple(leaves.values()), weights.contiguous())
    parts = [torch.view_as_real(g) if g.is_complex() else g for g in found]
    return out.detach(), torch.cat([(g / g.abs().mean()).flatten().float() for g in parts])


def _work(device: str, shape: Shape, backward: bool) -> Work:
    x = layer_inputs(device, shape)
    moved = size(*x.values(), x["u"])
    if backward:
        moved += size(*x.values())
    small = tuple(count for count in shape.packed if count < 256)
    length = sum(small) if small else min(shape.length, 512)
    few = layer_inputs(device, replace(shape, dim=min(shape.dim, 64), length=length, packed=small))
    return Work(timed_call(x, backward), moved, 0, x | {"backward": backward}, _outcome, few | {"backward": backward})


def mamba_ssm(x: Inputs) -> Peer:
    """Its CUDA scan takes contiguous tokens only; the copies are made before it is timed."""
    if "cu_seqlens" in x:
        raise Absent("it has no packed sequences")
    scan = import_peer("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")
    leaves = {name: x[name].contiguous().detach() for name in _DIFFERENTIATED}

    def run(**given: Tensor) -> Tensor:
        out: Tensor = scan(**given, delta_softplus=True, return_last_state=False)
        return out

    def read(_: object) -> Outcome:
        differentiated = _leaves(leaves)
        return _with_gradients(run(**differentiated), differentiated)

    if not x["backward"]:
        return Peer(partial(run, **leaves), read)
    differentiated = _leaves(leaves)
    out = run(**differentiated)
    call = partial(torch.autograd.grad, out, tuple(differentiated.values()), torch.randn_like(out), retain_graph=True)
    return Peer(call, read)


@bench({"mamba-ssm": mamba_ssm}, "gradients", operator="selective_scan")
def _measured(device: str) -> Iterator[Case]:
    shapes, mixed = (GPU_SHAPES, MIXED_SHAPES) if device == "cuda" else (CPU_SHAPES, CPU_MIXED_SHAPES)
    for shape in (*shapes, *(replace(shape, layout="transposed") for shape in shapes), *mixed):
        for backward in (False, True):
            name = f"{shape.name} {'backward' if backward else 'forward'}"
            kind = "contiguous" if shape.layout == "tokens" else shape.layout
            yield Case(name, partial(_work, device, shape, backward), kind=kind)


# ---- compute-sanitizer


def _differentiated(backward: bool, **x: Tensor | bool | str) -> None:
    given = {name: v.requires_grad_(backward) if isinstance(v, Tensor) and name != "cu_seqlens" else v for name, v in x.items()}
    out, last = selective_scan(**given, return_last_state=True)  # type: ignore[arg-type]
    if backward:
        grads = torch.randn_like(out), torch.randn_like(last)
        leaves = [v for v in given.values() if isinstance(v, Tensor) and v.requires_grad]
        torch.autograd.grad((out, last), leaves, grads)


def _small_calls(backward: bool) -> None:
    """Both layouts, every dtype, odd sizes, packed sequences and invalid offsets."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for layout in ("tokens", "transposed", "mixed"):
            for N, is_complex in ((1, False), (7, False), (16, False), (64, False), (3, True), (16, True)):
                if is_complex and layout == "mixed":
                    continue
                shape = Shape(2, 37, 131, N, dtype, is_complex, layout)
                x = layer_inputs("cuda", shape)
                start = draw(2, 37, N, dtype=x["A"].dtype)
                _differentiated(backward, **x, initial_state=start, delta_softplus=True)
            packed = layer_inputs("cuda", Shape(1, 70, 271, 16, dtype, layout=layout))
            for offsets in (
                [0, 70, 70, 71, 271],
                [0, 271, 0, 271, 0],
                [300, 200, 100, 0, -100],
                [-(2**63), 2**63 - 1, 5, 2**62],
            ):
                _differentiated(backward, **packed, cu_seqlens=torch.tensor(offsets, device="cuda"), delta_softplus=True)
    for name in ("zoh", "bilinear", "dirac", "s7", "rglru"):
        x = layer_inputs("cuda", Shape(1, 9, 70, 5, torch.float32))
        _differentiated(backward, **x | {"A": torch.rand(9, 5, device="cuda")}, discretization=name, delta_softplus=True)


sanitizes("selective_forward")(partial(_small_calls, False))
sanitizes("selective_backward", "selective_backward_sums")(partial(_small_calls, True))


@sanitizes("selective_lanes")
def _lanes_calls() -> None:
    """Few channels and many states, whole and partial tiles."""
    for dtype in (torch.bfloat16, torch.float16):
        for N, length in ((3, 8), (16, 136), (16, 512), (64, 264)):
            x = layer_inputs("cuda", Shape(2, 37, length, N, dtype))
            _differentiated(True, **x, initial_state=draw(2, 37, N), delta_softplus=True)


def _long_calls(backward: bool) -> None:
    """So few channels that sequences are split into segments."""
    for layout in ("tokens", "transposed"):
        for N, is_complex in ((16, False), (70, False), (3, True)):
            x = layer_inputs("cuda", Shape(1, 37, 1031, N, torch.float32, is_complex, layout))
            _differentiated(backward, **x, initial_state=draw(1, 37, N, dtype=x["A"].dtype), delta_softplus=True)
        packed = layer_inputs("cuda", Shape(1, 37, 1031, layout=layout))
        for offsets in ([0, 3, 3, 700, 1031], [0, 1031, 0, 1031, 0], [2000, 200, 100, 0, -100]):
            _differentiated(backward, **packed, cu_seqlens=torch.tensor(offsets, device="cuda"), delta_softplus=True)
    for name in ("zoh", "bilinear", "s7", "rglru"):
        x = layer_inputs("cuda", Shape(1, 9, 1031, 5, torch.float32))
        _differentiated(backward, **x | {"A": torch.rand(9, 5, device="cuda")}, discretization=name, delta_softplus=True)


sanitizes("selective_pieces", "selective_starts")(partial(_long_calls, True))


@sanitizes("selective_summary")
def _summaries() -> None:
    """Summaries for which all segments matter, and the last one alone."""
    absent = dict.fromkeys(("D", "z", "delta_bias", "delta_a", "initial_state", "cu_seqlens"))
    flags = {"delta_softplus": True, "discretization": "mamba"}

    def both(x: Inputs, sequences: int = 1, **more: Tensor) -> None:
        given: dict[str, Any] = absent | flags | dict(x) | more
        given["initial_state"] = draw(sequences, *x["A"].shape, dtype=x["A"].dtype)
        summary(**given)
        summary_backward(**given, grad_out=torch.randn_like(x["u"]), grad_last_state=given["initial_state"])

    for layout in ("tokens", "transposed"):
        for N, is_complex in ((16, False), (70, False), (3, True)):
            x = layer_inputs("cuda", Shape(1, 37, 5131, N, torch.float32, is_complex, layout))
            both(x)
            both(x | {"A": x["A"] * 30})
        packed = layer_inputs("cuda", Shape(1, 37, 5131, layout=layout))
        for offsets in ([0, 3, 3, 4700, 5131], [0, 5131, 0, 5131, 0], [9000, 200, 100, 0, -100]):
            both(packed, 4, cu_seqlens=torch.tensor(offsets, device="cuda"))


@sanitizes("uncovered_zeros")
def _uncovered() -> None:
    """Tokens before, between and after sequences, as vectors and one by one."""
    for layout in ("tokens", "transposed"):
        for dim, tokens in ((64, 2056), (37, 3001)):
            x = layer_inputs("cuda", Shape(1, dim, tokens, dtype=torch.bfloat16, layout=layout))
            for offsets in ([0, tokens], [5, 70, 1500], [1500, 1600, 1400, 2000], [9000, 200, 100, 0, -100]):
                _differentiated(True, **x, cu_seqlens=torch.tensor(offsets, device="cuda"), delta_softplus=True)


@sanitizes("transposed_copy")
def _mixed_calls() -> None:
    """Copies with 16-byte loads, 16-byte stores, both, or neither."""
    for dtype in (torch.float32, torch.bfloat16):
        for dim, length in ((72, 136), (37, 136), (72, 131), (37, 131)):
            _differentiated(
                True, **layer_inputs("cuda", Shape(2, dim, length, dtype=dtype, layout="mixed")), delta_softplus=True
            )
