"""One token of a diagonal complex scan (S5, LRU): the operator, its reference, examples, benchmark and sanitizer call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..operators import operator
from ..operators.calls import typical_call
from ..operators.examples import Arguments, example
from ..operators.examples import draw as drawn
from ..operators.measure import Case, Inputs, Work, bench, draw, normal, sanitizes, size
from ..operators.schema import refuse
from .discretizations import TRANSITIONS

_NAMES = ("bilinear", "zoh", "dirac")


def _reference(x: Any) -> Tensor:
    """The literal recurrence in fp64, whatever the inputs."""
    if x.discretization not in _NAMES:
        refuse("simplified_state_update", "discretization", f"one of {', '.join(map(repr, _NAMES))}", repr(x.discretization))
    wide = torch.complex128
    delta = x.dt.to(torch.float64)
    delta_a = delta if x.delta_a is None else x.delta_a.to(torch.float64)
    decay, gain = TRANSITIONS[x.discretization](delta, delta_a, x.A.to(wide).reshape(-1))
    state = decay * x.state.to(wide, copy=True) + gain * (x.x.to(wide) @ x.B.to(wide).T)
    x.state.copy_(state)
    out = (2 if x.conj_sym else 1) * (state @ x.C.to(wide).T).real
    if x.D is not None:
        u, D = torch.real(x.x).to(torch.float64), x.D.to(torch.float64)
        out = out + (D * u if D.dim() == 1 else u @ D.T)
    return out.to(x.state.real.dtype)


def _shape(x: Any) -> Tensor:
    return x.state.new_empty(x.x.shape, dtype=torch.float32)


@operator(reference=_reference, shapes=_shape)
def simplified_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    delta_a: Tensor | None = None,
    discretization: str = "bilinear",
    conj_sym: bool = True,
) -> Tensor:
    """One token of a simplified scan (S5, LRU), with the state updated in place. Returns the output.

    Formula:
        state ← Ā state + B̄ (B x)        out = (2 if conj_sym else 1) · Re(C state) + D Re(x)
        Ā and B̄ of δ_A = delta_a (or dt), δ = dt and A by `discretization`: "bilinear", "zoh" or "dirac" (docs/scan.md)

    Shapes:
        state: (B, P), complex64, any strides
        x: (B, H), fp32 or complex64; out: (B, H), fp32
        dt, delta_a: (B, P) or (P,), fp32
        A: (P,) or (P, 1); B: (P, H); C: (H, P); complex64
        D: (H,), or a matrix (H, H), fp32

    Parameters:
        discretization: "bilinear", "zoh" or "dirac"
        conj_sym: whether each state represents a conjugate pair, whose sum is twice the state's real part

    The products with B and C are torch's, around one kernel for the states.

    Edge cases:
        P = 0 gives D Re(x), or zeros.
        Ā = 0 does not erase an infinity or NaN in the state: 0·∞ is NaN.

    Example:
        >>> state, x, dt = torch.zeros(1, 1, dtype=torch.complex64), torch.ones(1, 1), torch.ones(1)
        >>> A, B, C = -torch.ones(1) + 0j, torch.ones(1, 1) + 0j, torch.ones(1, 1) + 0j
        >>> gdn_cuda.simplified_state_update(state, x, dt, A, B, C, discretization="dirac"), state
        (tensor([[2.]]), tensor([[1.+0.j]]))
        >>> gdn_cuda.simplified_state_update(state, x, dt, A, B, C, discretization="dirac")  # 2 (1 / e + 1)
        tensor([[2.7358]])
    """


# ---- Examples

_P, _H = 7, 5


def _inputs(B: int, seed: int, P: int = _P, H: int = _H) -> Arguments:
    A = drawn(P, seed=seed + 1, dtype=torch.complex64)
    return {
        "state": drawn(B, P, seed=seed, dtype=torch.complex64),
        "x": drawn(B, H, seed=seed + 2, dtype=torch.float32),
        "dt": drawn(B, P, seed=seed + 3, dtype=torch.float32).abs(),
        "A": torch.complex(-A.real.abs(), 5 * A.imag),
        "B": drawn(P, H, seed=seed + 4, dtype=torch.complex64),
        "C": drawn(H, P, seed=seed + 5, dtype=torch.complex64),
    }


@example(simplified_state_update)
def _step(B: int, T: int, seed: int) -> Arguments:
    return _inputs(B, seed) | {"D": drawn(_H, seed=seed + 6, dtype=torch.float32)}


@example(simplified_state_update, "simplified_state_update-matrix")
def _with_matrix(B: int, T: int, seed: int) -> Arguments:
    """A matrix D, complex inputs, and step sizes and poles in the shapes that modules have."""
    x = _inputs(B, seed)
    x |= {"A": x["A"][:, None], "x": drawn(B, _H, seed=seed + 2, dtype=torch.complex64), "dt": torch.full((_P,), 0.3)}
    x["delta_a"] = drawn(_P, seed=seed + 7, dtype=torch.float32).abs()
    return x | {"D": drawn(_H, _H, seed=seed + 6, dtype=torch.float32), "discretization": "zoh", "conj_sym": False}


# Where `python -m gdn_cuda explain simplified_state_update P=64` starts.
typical_call(
    simplified_state_update,
    {"B": 64, "P": 512, "H": 1024},
    "state: B P c64; x: B H f32; dt: P f32; A: P c64; B: P H c64; C: H P c64; D: H f32",
)


# ---- Benchmark, compute-sanitizer


@bench(operator="simplified_state_update")
def _measured(device: str) -> Iterator[Case]:
    for (P, H), batch in product(((256, 512), (512, 1024)) if device == "cuda" else ((64, 64),), (1, 64, 1024)):
        yield Case(f"B={batch} P={P} H={H}", partial(_work, device, batch, P, H))


def _work(device: str, batch: int, P: int, H: int) -> Work:
    c64, fp32 = partial(_complex, device), partial(normal, device=device, dtype=torch.float32)
    A = c64(P)
    x: Inputs = {"state": c64(batch, P), "x": fp32(batch, H), "dt": fp32(P).abs(), "A": torch.complex(-A.real.abs(), A.imag)}
    x |= {"B": c64(P, H), "C": c64(H, P), "D": fp32(H)}
    return Work(partial(simplified_state_update, **x), 2 * size(x["state"], x["x"]) + size(x["B"], x["C"]), 12 * batch * P * H)


def _complex(device: str, *shape: int) -> Tensor:
    return torch.complex(*(normal(*shape, device=device, dtype=torch.float32) for _ in range(2)))


@sanitizes("simplified_step")
def _sanitized() -> None:
    c64 = partial(draw, dtype=torch.complex64)
    for name in _NAMES:
        for dt in (draw(37), draw(5, 37)):
            simplified_state_update(c64(5, 37), draw(5, 9), dt.abs(), -c64(37), c64(37, 9), c64(9, 37), None, dt, name)
