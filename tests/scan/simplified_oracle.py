"""simplified_scan by its definition: a loop over tokens in complex128, differentiable, on the CPU."""

from __future__ import annotations

import torch
from oracle import transition
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    return x.cpu().to(torch.complex128 if x.is_complex() else torch.float64)


def diagonal_scan(
    Bu: Tensor, delta: Tensor, A: Tensor, delta_a: Tensor | None, initial_state: Tensor | None, discretization: str
) -> tuple[Tensor, Tensor]:
    Bu, A = wide(Bu), wide(A).flatten()
    sizes = [wide(d) if d.dim() == 1 else wide(d).mT for d in (delta, delta if delta_a is None else delta_a)]
    a, factor = (x.expand(*Bu.mT.shape) for x in transition(discretization, *sizes, A))
    state = Bu.new_zeros(Bu.shape[:2]) if initial_state is None else wide(initial_state)
    states = []
    for decay, added in zip(a.unbind(1), (factor * Bu.mT).unbind(1), strict=True):
        state = decay * state + added
        states.append(state)
    return torch.stack(states, -1) if states else Bu, state


def simplified_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    delta_a: Tensor | None = None,
    discretization: str = "bilinear",
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    states, last = diagonal_scan(
        torch.einsum("ph,bhl->bpl", wide(B), wide(u)), delta, A, delta_a, initial_state, discretization
    )
    return torch.einsum("hp,bpl->bhl", wide(C), states), last


NAMES = ("bilinear", "zoh", "dirac")


def drawn(
    seed: int,
    batch: int,
    H: int,
    P: int,
    L: int,
    *,
    varying: bool,
    with_a: bool = False,
    with_state: bool = False,
    dtype: torch.dtype = torch.complex64,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Arguments of simplified_scan, with frequencies of S5's size."""
    rng = torch.Generator().manual_seed(seed)
    real = torch.empty(0, dtype=dtype).real.dtype

    def number(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.complex128).to(device, dtype)

    def size() -> Tensor:
        shape = (batch, P, L) if varying else (P,)
        return (0.01 + 0.3 * torch.rand(*shape, generator=rng, dtype=torch.float64)).to(device, real)

    A = torch.complex(
        -torch.rand(P, generator=rng, dtype=torch.float64), 10 * torch.randn(P, generator=rng, dtype=torch.float64)
    )
    found = {"u": number(batch, H, L), "delta": size(), "A": A.to(device, dtype), "B": number(P, H), "C": number(H, P)}
    if with_a:
        found["delta_a"] = size()
    if with_state:
        found["initial_state"] = number(batch, P)
    return found
