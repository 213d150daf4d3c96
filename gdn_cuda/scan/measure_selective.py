"""Benchmark of the selective scan, forward and backward, beside mamba-ssm; calls of its kernels for compute-sanitizer.

Inputs are those of a Mamba layer at initialisation: A = −1 … −N, δ log-uniform in 0.001 … 0.1 through bias and softplus, z and
D. The roof of a row is the bytes that it reads and writes; what bounds the scan is exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..operators.measure import Call, Case, Inputs, Outcome, Peer, Work, bench, draw, import_peer, normal, sanitizes, size
from .selective import selective_scan


@dataclass(frozen=True)
class Shape:
    batch: int
    dim: int
    length: int
    N: int = 16
    dtype: torch.dtype = torch.bfloat16
    is_complex: bool = False
    channels_last: bool = False  # the transposed view of (B, L, D)

    @property
    def name(self) -> str:
        options = " fp32" * (self.dtype == torch.float32) + " complex" * self.is_complex + f" N={self.N}" * (self.N != 16)
        return f"{self.batch}×{self.dim}×{self.length}{options}{' transposed' * self.channels_last}"


GPU_SHAPES = (
    Shape(1, 5120, 4096),
    Shape(8, 5120, 2048),
    Shape(8, 1536, 2048),
    Shape(1, 8192, 32768),
    Shape(1, 256, 131072),
    Shape(8, 1536, 2048, dtype=torch.float32),
    Shape(8, 1024, 2048, is_complex=True),
    Shape(8, 5120, 2048, N=64),
)
CPU_SHAPES = (Shape(2, 8, 70),)
_DIFFERENTIATED = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def layer_inputs(device: str, shape: Shape) -> Inputs:
    """B and C of a complex A are in pairs."""

    def rows(scale: float = 1) -> Tensor:
        sizes = (shape.length, shape.dim) if shape.channels_last else (shape.dim, shape.length)
        x = scale * normal(shape.batch, *sizes, device=device, dtype=shape.dtype)
        return x.mT if shape.channels_last else x

    A = -torch.arange(1, shape.N + 1, dtype=torch.float32, device=device).repeat(shape.dim, 1)
    if shape.is_complex:  # as S4D-Lin
        A = torch.complex(torch.full_like(A, -0.5), -math.pi * (A + 1))
    steps = torch.exp(math.log(0.001) + math.log(100) * torch.rand(shape.dim, device=device))
    coefficients = (shape.batch, shape.N, shape.length * (1 + shape.is_complex))
    return {
        "u": rows(),
        "delta": rows(0.1),
        "A": A,
        "B": normal(*coefficients, device=device, dtype=shape.dtype),
        "C": normal(*coefficients, device=device, dtype=shape.dtype),
        "D": torch.ones(shape.dim, device=device),
        "z": rows(),
        "delta_bias": steps + torch.log(-torch.expm1(-steps)),  # the inverse of softplus
    }


def _leaves(x: Inputs) -> Inputs:
    return {name: x[name].detach().requires_grad_() for name in _DIFFERENTIATED}


def _timed(x: Inputs, backward: bool) -> Call:
    if not backward:
        return partial(selective_scan, **x, delta_softplus=True)
    leaves = _leaves(x)
    out = selective_scan(**leaves, delta_softplus=True)
    return partial(torch.autograd.grad, out, tuple(leaves.values()), torch.randn_like(out), retain_graph=True)


def _outcome(x: Inputs) -> Outcome:
    """Output and gradients, whichever pass is timed."""
    leaves = _leaves(x)
    return _with_gradients(selective_scan(**leaves, delta_softplus=True), leaves)


def _with_gradients(out: Tensor, leaves: Inputs) -> Outcome:
    """The gradients that are sums over tokens or channels, each at its own scale."""
    weights = torch.cos(torch.arange(out.shape[-1], device=out.device)).to(out.dtype).expand(out.shape)
    found = torch.autograd.grad(out, tuple(leaves.values()), weights.contiguous())
    parts = [torch.view_as_real(g) if g.is_complex() else g for g in found]
    return out.detach(), torch.cat([(g / g.abs().mean()).flatten().float() for g in parts])


def _work(device: str, shape: Shape, backward: bool) -> Work:
    x = layer_inputs(device, shape)
    moved = size(*x.values(), x["u"])
    if backward:
        moved += size(*x.values())
    few = layer_inputs(device, replace(shape, dim=min(shape.dim, 64), length=min(shape.length, 512)))
    return Work(_timed(x, backward), moved, 0, x | {"backward": backward}, _checked, few | {"backward": backward})


def _checked(x: Inputs) -> Outcome:
    return _outcome({name: value for name, value in x.items() if name != "backward"})


def mamba_ssm(x: Inputs) -> Peer:
    """Its CUDA scan takes tokens that are neighbours only: the copies are made before it is timed."""
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
    shapes = GPU_SHAPES if device == "cuda" else CPU_SHAPES
    for backward in (False, True):
        for shape in (*shapes, *(replace(shape, channels_last=True) for shape in shapes)):
            name = f"{shape.name} {'backward' if backward else 'forward'}"
            yield Case(name, partial(_work, device, shape, backward))


# ---- compute-sanitizer


def _differentiated(backward: bool, **x: Tensor | bool | str) -> None:
    given = {name: v.requires_grad_(backward) if isinstance(v, Tensor) and name != "cu_seqlens" else v for name, v in x.items()}
    out, last = selective_scan(**given, return_last_state=True)  # type: ignore[arg-type]
    if backward:
        grads = torch.randn_like(out), torch.randn_like(last)
        leaves = [v for v in given.values() if isinstance(v, Tensor) and v.requires_grad]
        torch.autograd.grad((out, last), leaves, grads)


def _small_calls(backward: bool) -> None:
    """Both layouts, every dtype, odd sizes, packed sequences and offsets that lie."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for transposed in (False, True):
            for N, is_complex in ((1, False), (7, False), (16, False), (64, False), (3, True), (16, True)):
                shape = Shape(2, 37, 131, N, dtype, is_complex, transposed)
                x = layer_inputs("cuda", shape)
                start = draw(2, 37, N, dtype=x["A"].dtype)
                _differentiated(backward, **x, initial_state=start, delta_softplus=True)
            packed = layer_inputs("cuda", Shape(1, 70, 271, 16, dtype, channels_last=transposed))
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
