"""The selective scan by its definition, in fp64, token by token, which tests compare with. Gradients are autograd's.

Runs on the device of its inputs. Nothing here comes from the package.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

DISCRETIZATIONS = ("mamba", "zoh", "bilinear", "dirac", "s7", "rglru")
REAL_ONLY = ("s7", "rglru")


def is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def wide(x: Any) -> Any:
    """Converts floating-point tensors to fp64 or complex128, with autograd history; others are returned as they are."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64) if is_floating(x) else x


def transition(name: str, delta: Tensor, delta_a: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Ā and the factor of B u."""
    if name == "s7":
        return 1 - 1 / (delta**2 + 0.5) + 0 * A, torch.ones_like(delta)
    if name == "rglru":
        log = torch.where(delta == 0, 0, delta * torch.log(A))
        root = torch.sqrt(torch.where(log == 0, 1, -torch.expm1(2 * log)))
        return torch.exp(log), torch.where(log == 0, 0, root)
    if name == "bilinear":
        return (1 + delta_a * A / 2) / (1 - delta_a * A / 2), delta / (1 - delta * A / 2)
    decay = torch.exp(delta_a * A)
    if name == "zoh":
        z = delta * A
        small = z.abs() < 1e-3
        near = delta * (1 + z / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5 * (1 + z / 6)))))
        far = (torch.exp(torch.where(small, 1, z)) - 1) / torch.where(small, 1, A)
        return decay, torch.where(small, near, far)
    return decay, {"mamba": delta, "dirac": torch.ones_like(delta)}[name]


def coefficients(given: Tensor, A: Tensor, length: int, dim: int) -> Tensor:
    """B or C as (L or 1, B or 1, D, N)."""
    if given.dim() == 2:
        return given[None, None]
    grouped = given if given.dim() == 4 else given[:, None]
    if A.is_complex() and not grouped.is_complex():
        assert grouped.shape[-1] == 2 * length
        grouped = torch.complex(grouped[..., 0::2], grouped[..., 1::2])
    return grouped.repeat_interleave(dim // grouped.shape[1], 1).permute(3, 0, 1, 2)


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_a: Tensor | None = None,
    delta_softplus: bool = False,
    discretization: str = "mamba",
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, last state)"""
    u, delta, A, B, C, D, z, delta_bias, delta_a, initial_state = map(
        wide, (u, delta, A, B, C, D, z, delta_bias, delta_a, initial_state)
    )
    batch, dim, length = u.shape
    if delta_bias is not None:
        delta = delta + delta_bias[:, None]
    if delta_softplus:
        delta = torch.where(delta > 20, delta, torch.log1p(torch.exp(torch.clamp(delta, max=20))))
    u_t, delta_t = u.permute(2, 0, 1)[..., None], delta.permute(2, 0, 1)[..., None]  # (L, B, D, 1)
    delta_a_t = delta_t if delta_a is None else delta_a.permute(2, 0, 1)[..., None]
    decay, factor = transition(discretization, delta_t, delta_a_t, A)
    B_is_constant = B.dim() == 2
    B, C = coefficients(B, A, length, dim), coefficients(C, A, length, dim)
    if discretization == "rglru":
        driven = factor * u_t
        C = B * C if B_is_constant else C
    else:
        driven = factor * B * u_t
    decays, inputs = decay.unbind(), driven.unbind()
    count = batch if cu_seqlens is None else len(cu_seqlens) - 1
    start = A.new_zeros(count, *A.shape) if initial_state is None else initial_state
    offsets = [0, length] if cu_seqlens is None else cu_seqlens.tolist()
    states, last = [], []
    for n, (first, end) in enumerate(pairwise(offsets)):
        state = start if cu_seqlens is None else start[n : n + 1]
        for t in range(first, end):
            state = torch.addcmul(inputs[t], decays[t], state)
            states.append(state)
        last.append(state)
    last_state = torch.cat(last) if last else start
    covered = len(states)
    y = torch.zeros(length, batch, dim, dtype=torch.float64, device=u.device)
    if covered:
        x = (C[:covered] * torch.stack(states)).sum(-1)
        y = torch.cat([2 * x.real if x.is_complex() else x, y[covered:]])
    y = y.permute(1, 2, 0)
    if D is not None:
        y = y + D[:, None] * u
    if z is not None:
        y = y * z * torch.sigmoid(z)
    return torch.where(torch.arange(length, device=y.device) < covered, y, 0), last_state


def gradients(
    scan: Callable[..., tuple[Tensor, Tensor]], arguments: dict[str, Any], grad_out: Tensor, grad_last: Tensor | None
) -> dict[str, Tensor]:
    """Gradients of ⟨out, grad_out⟩ + Re ⟨last state, grad_last⟩ for every floating-point tensor, by name; zeros for unused
    tensors."""
    leaves = {k: x.detach().requires_grad_() for k, x in arguments.items() if is_floating(x)}
    out, last = scan(**{**arguments, **leaves})
    results, grads = [out], [grad_out.to(out.dtype)]
    if grad_last is not None:
        results, grads = [out, last], [*grads, grad_last.to(last.dtype)]
    found = torch.autograd.grad(results, list(leaves.values()), grads, allow_unused=True)
    return {k: torch.zeros_like(leaf) if g is None else g for (k, leaf), g in zip(leaves.items(), found, strict=True)}


def relative_rms(got: Tensor, wanted: Tensor) -> float:
    """‖got − wanted‖ / ‖wanted‖ in fp64; for a tensor of zeros, ‖got‖."""
    got, wanted = wide(got), wide(wanted)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    error, size = torch.linalg.vector_norm(got - wanted).item(), torch.linalg.vector_norm(wanted).item()
    return error / size if size > 0 else error


def within(got: Tensor, wanted: Tensor, most: float) -> bool:
    """Whether the error is below `most` plus that of storing the result: half a unit in the last place."""
    stored = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(got.dtype, 0.0)
    return relative_rms(got, wanted) < most + stored
