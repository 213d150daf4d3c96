"""An infinite state before a token whose decay is 0, in every scan and step. Each call returns the output of that token and of
later ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import gdn_cuda

C64 = torch.complex64
Call = Callable[[str], Tensor]


def _selective(discretization: str, A: float, delta: float, is_complex: bool = False) -> Call:
    def call(device: str) -> Tensor:
        one = torch.ones(1, 1, 3, device=device)
        poles = torch.full((1, 1), A, device=device, dtype=C64 if is_complex else None)
        coefficients = one.to(poles.dtype)
        u = one.clone()
        u[..., 0] = torch.inf
        steps = torch.full_like(one, delta)
        return gdn_cuda.selective_scan(u, steps, poles, coefficients, coefficients, discretization=discretization)[..., 1:]

    return call


def _step(discretization: str, A: float, delta: float, dtype: torch.dtype = torch.float32) -> Call:
    def call(device: str) -> Tensor:
        one, state = torch.ones(1, 1, device=device), torch.full((1, 1, 2), torch.inf, device=device, dtype=dtype)
        poles = torch.full((1, 2), A, device=device, dtype=dtype)  # a value for each of N: one for all of them erases
        coefficients = torch.ones(1, 2, device=device, dtype=dtype)
        given = (state, one, one * delta, poles, coefficients, coefficients)
        return gdn_cuda.selective_state_update(*given, discretization=discretization)

    return call


def _simplified(discretization: str, A: float) -> Call:
    def call(device: str) -> Tensor:
        one, poles = torch.ones(1, 1, dtype=C64, device=device), torch.full((1,), A, dtype=C64, device=device)
        u = torch.ones(1, 1, 3, dtype=C64, device=device)
        start = torch.full((1, 1), torch.inf, dtype=C64, device=device)
        step = torch.ones(1, device=device)
        return gdn_cuda.simplified_scan(u, step, poles, one, one, discretization=discretization, initial_state=start)

    return call


def _simplified_step(device: str) -> Tensor:
    one, poles = torch.ones(1, 1, dtype=C64, device=device), torch.full((1,), -1e4, dtype=C64, device=device)
    state = torch.full((1, 1), torch.inf, dtype=C64, device=device)
    return gdn_cuda.simplified_state_update(state, one.real, one.real[0], poles, one, one, discretization="zoh")


def rglru(device: str, resets: bool = False) -> Tensor:
    one = torch.ones(1, 1, 3, device=device)
    u = one.clone()
    u[..., 0] = torch.inf
    reset = torch.tensor([[False, resets, False]], device=device)
    return gdn_cuda.rglru_scan(u, one, torch.zeros(1, 1, device=device), reset=reset)[..., 1:]


def _s7(device: str) -> Tensor:
    one = torch.ones(1, 1, 1, 3, device=device)
    bias = one[0].clone()
    bias[..., 0] = torch.inf
    return gdn_cuda.s7_scan(one[0], one[0] * 0.5**0.5, one, one, bias)[..., 1:]


def gdn(device: str) -> Tensor:
    """A gate of −∞ in place of the decay of 0."""
    one = torch.ones(1, 3, 1, 8, device=device)
    gate = torch.tensor([[[0.0], [-torch.inf], [0.0]]], device=device)
    value = one.clone()
    value[:, 0] = torch.inf
    out, _ = gdn_cuda.recurrent_forward(one, one, value, None, one[..., 0], gate)
    return out[:, 1:]


CALLS: dict[str, Call] = {
    **{f"selective_scan, {name}": _selective(name, -1e4, 1.0) for name in ("mamba", "zoh", "dirac")},
    **{f"selective_scan, {name}, complex": _selective(name, -1e4, 1.0, True) for name in ("mamba", "zoh", "dirac")},
    "selective_scan, bilinear": _selective("bilinear", -2.0, 1.0),
    "selective_scan, bilinear, complex": _selective("bilinear", -2.0, 1.0, True),
    "selective_scan, s7": _selective("s7", 0.0, 0.5**0.5),
    "selective_scan, rglru": _selective("rglru", 0.0, 1.0),
    "rglru_scan": rglru,
    "s7_scan": _s7,
    "simplified_scan, zoh": _simplified("zoh", -1e4),
    "simplified_scan, bilinear": _simplified("bilinear", -2.0),
    "selective_state_update, mamba": _step("mamba", -1e4, 1.0),
    "selective_state_update, bilinear": _step("bilinear", -2.0, 1.0),
    "selective_state_update, rglru": _step("rglru", 0.0, 1.0),
    "selective_state_update, complex": _step("mamba", -1e4, 1.0, C64),
    "simplified_state_update": _simplified_step,
}


def check(name: str, device: str) -> None:
    """A decay of 0 does not erase the state, as docs/scan.md says."""
    found = CALLS[name](device)
    assert found.numel() > 0 and not found.isfinite().any()


def check_resets(device: str) -> None:
    """A reset of RG-LRU, and a gate of −∞ in a Gated Delta Net, erase the state."""
    assert rglru(device, resets=True).isfinite().all()
    assert gdn(device).isfinite().all()
