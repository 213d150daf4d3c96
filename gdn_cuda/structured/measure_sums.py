"""Benchmarks of sums, forward and backward: shapes, inputs, and peers in plain torch.

The roof of a row is the bytes it reads and writes. Outcomes are output and gradients, whichever pass is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ..operators.measure import Call, Case, Inputs, Outcome, Peer, Work, bench, size

Function = Callable[..., Tensor]

# rows, poles, points
GPU_PAIRS = ((1024, 32, 16384), (1024, 64, 4096))
GPU_POWERS = ((1024, 32, 16384),)
GPU_REAL = ((16, 4096, 4096),)
CPU_SHAPES = ((8, 16, 256),)


def _cases(device: str, shapes: tuple[tuple[int, int, int], ...], work: Callable[..., Work]) -> Iterator[Case]:
    for rows, poles, points in shapes if device == "cuda" else CPU_SHAPES:
        for backward in (False, True):
            name = f"{rows}×{poles}×{points} {'backward' if backward else 'forward'}"
            yield Case(name, partial(work, device, rows, poles, points, backward))


def _pairs_work(device: str, rows: int, poles: int, points: int, backward: bool) -> Work:
    """S4's points on the imaginary axis, and poles of its initialisation."""
    import gdn_cuda

    theta = math.pi * torch.arange(points, dtype=torch.float64, device=device) / points
    z = torch.complex(torch.zeros_like(theta), 2 * torch.tan(0.5 * theta)).to(torch.complex64)
    w = _poles(device, rows, poles)
    v = torch.randn(rows, poles, device=device, dtype=torch.complex64)
    return work_of(gdn_cuda.cauchy_conj, {"v": v, "z": z, "w": w}, ("v", "w"), backward)


def _real_work(device: str, rows: int, poles: int, points: int, backward: bool) -> Work:
    """One set of poles for all rows, between the points."""
    import gdn_cuda

    omega = torch.arange(points, device=device, dtype=torch.float32)
    lambd = torch.arange(poles, device=device) + 0.25 + 0.5 * torch.rand(poles, device=device)
    v = torch.randn(rows, poles, device=device)
    return work_of(gdn_cuda.cauchy_kernel, {"v": v, "omega": omega, "lambd": lambd}, ("v", "omega", "lambd"), backward)


def _powers_work(device: str, rows: int, poles: int, points: int, backward: bool) -> Work:
    """Exponents that decay over the length, with phases of which torch's product keeps three digits."""
    import gdn_cuda

    x = _poles(device, rows, poles) / points
    v = torch.randn(rows, poles, device=device, dtype=torch.complex64)
    return work_of(gdn_cuda.log_vandermonde, {"v": v, "x": x, "L": points}, ("v", "x"), backward)


def _poles(device: str, rows: int, poles: int) -> Tensor:
    imaginary = math.pi * torch.arange(poles, device=device, dtype=torch.float32)
    return torch.complex(torch.full_like(imaginary, -0.5), imaginary) * (0.5 + torch.rand(rows, 1, device=device))


def work_of(function: Function, x: Inputs, differentiated: tuple[str, ...], backward: bool) -> Work:
    x |= {"differentiated": differentiated, "backward": backward}
    read = [x[name] for name in x if isinstance(x[name], Tensor)]
    out = _call(function, x)
    moved = size(*read, out) + (size(*(x[name] for name in differentiated)) if backward else 0)
    x["grad"] = torch.randn_like(out)
    return Work(timed(function, x), moved, 0, x, partial(outcome, function), x)


def _call(function: Function, x: Inputs, leaves: dict[str, Tensor] | None = None) -> Tensor:
    hidden = ("differentiated", "backward", "grad")
    return function(**{name: value for name, value in x.items() if name not in hidden} | (leaves or {}))


def _leaves(x: Inputs) -> dict[str, Tensor]:
    return {name: x[name].detach().requires_grad_() for name in x["differentiated"]}


def timed(function: Function, x: Inputs) -> Call:
    """What a row times: the call, or its backward pass."""
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
    """For poles that all rows share: the matrix once, then a product."""
    return v @ (1 / (omega[:, None] - lambd)).mT


def in_torch(function: Function, x: Inputs) -> Peer:
    """A call to time, and the outcome, whatever that call returned."""
    return Peer(timed(function, x), lambda returned: outcome(function, x))


# ---- The rows


@bench({"naive torch": partial(in_torch, naive_cauchy_conj)}, "gradients")
def cauchy_conj(device: str) -> Iterator[Case]:
    return _cases(device, GPU_PAIRS, _pairs_work)


@bench(
    {
        "naive torch": partial(in_torch, naive_cauchy_kernel),
        "torch product": partial(in_torch, formed_cauchy_kernel),
    },
    "gradients",
)
def cauchy_kernel(device: str) -> Iterator[Case]:
    return _cases(device, GPU_REAL, _real_work)


@bench({"naive torch": partial(in_torch, naive_log_vandermonde)}, "gradients")
def log_vandermonde(device: str) -> Iterator[Case]:
    return _cases(device, GPU_POWERS, _powers_work)
