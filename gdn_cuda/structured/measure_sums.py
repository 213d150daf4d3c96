"""Benchmarks of sums, forward and backward: shapes, inputs, and peers in plain torch.

The roof of a row is the bytes that it reads and writes. Outcomes are output and gradients, whichever pass is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ..operators.measure import Absent, Call, Case, Inputs, Outcome, Peer, Work, bench, size

Function = Callable[..., Tensor]
Sizes = tuple[int, int, int]  # rows, poles, points

LARGE, DEEP = (1024, 32, 16384), (1024, 64, 4096)
GPU_SHAPES = (LARGE, DEEP)
GPU_REAL = ((16, 4096, 4096),)
CPU_SHAPES = ((8, 16, 256),)

AXIS, CIRCLE, ANYWHERE = "imaginary axis", "unit circle", "anywhere"
DECAYING = "decaying"


def _cases(
    device: str,
    shapes: tuple[Sizes, ...],
    work: Callable[..., Work],
    kinds: tuple[str, ...] = ("",),
) -> Iterator[Case]:
    for sizes in shapes if device == "cuda" else CPU_SHAPES:
        for kind in kinds:
            for backward in (False, True):
                name = f"{'×'.join(map(str, sizes))}{f' {kind}' * bool(kind)} {'backward' if backward else 'forward'}"
                given = partial(work, device, *sizes, backward, *((kind,) if kind else ()))
                yield Case(name, given, kind=kind)


def _points(kind: str, device: str, points: int) -> Tensor:
    """Points of S4, on the imaginary axis; roots of unity; or points to the right of the axis, with no pole close."""
    theta = math.pi * torch.arange(points, dtype=torch.float64, device=device) / points
    if kind == AXIS:
        z = torch.complex(torch.zeros_like(theta), 2 * torch.tan(0.5 * theta))
    elif kind == CIRCLE:
        z = torch.polar(torch.ones_like(theta), 2 * theta)
    else:
        z = torch.complex(torch.rand_like(theta), 100 * torch.randn_like(theta))
    return z.to(torch.complex64)


def _pairs_work(device: str, rows: int, poles: int, points: int, backward: bool, kind: str) -> Work:
    """Poles of S4's initialisation."""
    from ..runtime import package as gdn_cuda

    v = torch.randn(rows, poles, device=device, dtype=torch.complex64)
    x = {"v": v, "z": _points(kind, device, points), "w": _poles(device, rows, poles)}
    return work_of(gdn_cuda.cauchy_conj, x, ("v", "w"), backward)


def _complex_work(device: str, rows: int, poles: int, points: int, backward: bool, kind: str) -> Work:
    """The same poles without their conjugates."""
    from ..runtime import package as gdn_cuda

    v = torch.randn(rows, poles, device=device, dtype=torch.complex64)
    x = {"v": v, "omega": _points(kind, device, points), "lambd": _poles(device, rows, poles)}
    return work_of(gdn_cuda.cauchy_kernel, x, ("v", "lambd"), backward)


def _real_work(device: str, rows: int, poles: int, points: int, backward: bool) -> Work:
    """The same real poles for all rows, between the points."""
    from ..runtime import package as gdn_cuda

    omega = torch.arange(points, device=device, dtype=torch.float32)
    lambd = torch.arange(poles, device=device) + 0.25 + 0.5 * torch.rand(poles, device=device)
    v = torch.randn(rows, poles, device=device)
    return work_of(gdn_cuda.cauchy_kernel, {"v": v, "omega": omega, "lambd": lambd}, ("v", "omega", "lambd"), backward)


def _powers_work(device: str, rows: int, poles: int, points: int, backward: bool, kind: str) -> Work:
    """Exponents that decay over the length, as in S4D, or whose powers are on the unit circle, both with phases of which
    torch's product has three correct digits; or arbitrary phases that decay within a few steps."""
    from ..runtime import package as gdn_cuda

    if kind == ANYWHERE:
        phases = 2 * math.pi * torch.rand(rows, poles, device=device)
        x = torch.complex(-torch.randn(rows, poles, device=device).abs(), phases)
    else:
        x = _poles(device, rows, poles) / points
    if kind == CIRCLE:
        x = torch.complex(torch.zeros_like(x.real), x.imag)
    v = torch.randn(rows, poles, device=device, dtype=torch.complex64)
    return work_of(gdn_cuda.log_vandermonde, {"v": v, "x": x, "L": points}, ("v", "x"), backward)


def _poles(device: str, rows: int, poles: int) -> Tensor:
    imaginary = math.pi * torch.arange(poles, device=device, dtype=torch.float32)
    return torch.complex(torch.full_like(imaginary, -0.5), imaginary) * (0.5 + torch.rand(rows, 1, device=device))


def work_of(
    function: Function, x: Inputs, differentiated: tuple[str, ...], backward: bool, checked: Inputs | None = None
) -> Work:
    """`checked`: replacements of inputs for the comparison of outcomes."""
    x |= {"differentiated": differentiated, "backward": backward}
    read = [x[name] for name in x if isinstance(x[name], Tensor)]
    out = _call(function, x)
    moved = size(*read, out) + (size(*(x[name] for name in differentiated)) if backward else 0)
    x["grad"] = torch.randn_like(out)
    return Work(timed(function, x), moved, 0, x, partial(outcome, function), x | (checked or {}))


def _call(function: Function, x: Inputs, leaves: dict[str, Tensor] | None = None) -> Tensor:
    hidden = ("differentiated", "backward", "grad")
    return function(**{name: value for name, value in x.items() if name not in hidden} | (leaves or {}))


def _leaves(x: Inputs) -> dict[str, Tensor]:
    return {name: x[name].detach().requires_grad_() for name in x["differentiated"]}


def timed(function: Function, x: Inputs) -> Call:
    """The timed part of a row: the call, or its backward pass."""
    if not x["backward"]:
        return partial(_call, function, x)
    leaves = _leaves(x)
    out = _call(function, x, leaves)
    return partial(torch.autograd.grad, out, tuple(leaves.values()), x["grad"], retain_graph=True)


def outcome(function: Function, x: Inputs) -> Outcome:
    leaves = _leaves(x)
    out = _call(function, x, leaves)
    found = torch.autograd.grad(out, tuple(leaves.values()), x["grad"])
    return _real(out.detach()), torch.cat([_real(part).flatten() / part.abs().mean() for part in found])


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


# ---- In plain torch, as S4's fallbacks write it


def _with_conjugates(x: Tensor) -> Tensor:
    return torch.cat([x, x.conj()], -1)


def naive_cauchy_kernel(v: Tensor, omega: Tensor, lambd: Tensor) -> Tensor:
    return (v[..., None, :] / (omega[..., :, None] - lambd[..., None, :])).sum(-1)


def naive_cauchy_conj(v: Tensor, z: Tensor, w: Tensor) -> Tensor:
    return naive_cauchy_kernel(_with_conjugates(v), z, _with_conjugates(w))


def naive_log_vandermonde(v: Tensor, x: Tensor, L: int) -> Tensor:
    steps = torch.arange(L, device=x.device).to(x.dtype)
    return 2 * torch.einsum("...n,...nl->...l", v, (x[..., None] * steps).exp()).real


def formed_cauchy_kernel(v: Tensor, omega: Tensor, lambd: Tensor) -> Tensor:
    """For poles that are the same for all rows: forms the matrix once, then multiplies."""
    return v @ (1 / (omega[:, None] - lambd)).mT


def in_torch(function: Function, x: Inputs) -> Peer:
    """A call to time, and its outcome, independent of the call's result."""
    return Peer(timed(function, x), lambda returned: outcome(function, x))


def _product(x: Inputs) -> Peer:
    if x["lambd"].dim() > 1:
        raise Absent("it needs the same poles for all rows")
    return in_torch(formed_cauchy_kernel, x)


# ---- The rows


@bench({"naive torch": partial(in_torch, naive_cauchy_conj)}, "gradients")
def cauchy_conj(device: str) -> Iterator[Case]:
    return _cases(device, GPU_SHAPES, _pairs_work, (AXIS, CIRCLE, ANYWHERE))


@bench(
    {
        "naive torch": partial(in_torch, naive_cauchy_kernel),
        "torch product": _product,
    },
    "gradients",
)
def cauchy_kernel(device: str) -> Iterator[Case]:
    """Real poles that are the same for 16 rows; poles and points of S4's sizes."""
    yield from _cases(device, GPU_REAL, _real_work)
    yield from _cases(device, (LARGE,), _complex_work, (AXIS, CIRCLE, ANYWHERE))


@bench({"naive torch": partial(in_torch, naive_log_vandermonde)}, "gradients")
def log_vandermonde(device: str) -> Iterator[Case]:
    return _cases(device, GPU_SHAPES, _powers_work, (DECAYING, CIRCLE, ANYWHERE))
