"""Scans of diagonal systems between two matrix products: the layers of S5 and LRU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..operators.calls import typical_call
from ..operators.examples import Arguments, call_operator, example
from ..operators.examples import draw as drawn
from ..operators.gradients import under_transforms
from ..operators.measure import Case, Inputs, Outcome, Peer, Work, bench, draw, sanitizes, size
from ..operators.registration import check
from ..operators.schema import Schema
from .diagonal import diagonal_scan
from .discretizations import TRANSITIONS

_SCHEMAS = {name: Schema.of(f"validate_{name}", name) for name in ("simplified_scan", "s5_inner")}


def check_composed(function: str, args: tuple[Any, ...]) -> None:
    """args: u, delta, A, B, C, delta_a, initial_state, discretization, and D of s5_inner, as validate_<function> takes them."""
    schema = _SCHEMAS[function]
    schema.check_types(args)
    schema.check_devices(args)
    if not under_transforms():  # under torch.vmap tensors have other shapes; diagonal_scan checks the mapped ones
        check(schema.name, args)


def _composed(function: str, *args: Any) -> tuple[Tensor, Tensor]:
    if not torch.compiler.is_compiling():
        check_composed(function, args)
    u, delta, A, B, C, delta_a, initial_state, discretization = args[:8]
    states, last = diagonal_scan(torch.matmul(B, u), delta, A.reshape(-1), delta_a, initial_state, discretization)
    return torch.matmul(C, states), last


def simplified_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    delta_a: Tensor | None = None,
    return_last_state: bool = False,
    discretization: str = "bilinear",
    *,
    initial_state: Tensor | None = None,
) -> Any:
    """The scan of a diagonal system with dense input and output matrices: S5 and LRU.

    Formula:
        x[b, p, t] = Ā x[b, p, t−1] + B̄ Σ_h B[p, h] u[b, h, t]
        y[b, h, t] = Σ_p C[h, p] x[b, p, t]
        bilinear: Ā = (1 + ½δ_A A) / (1 − ½δ_A A), B̄ = δ / (1 − ½δ A)
        zoh: Ā = exp(δ_A A), B̄ = (exp(δ A) − 1) / A
        dirac: Ā = exp(δ_A A), B̄ = 1

    Shapes:
        u: (batch, H, L), complex64
        delta, delta_a: (batch, P, L) or (P,), fp32; delta_a is delta if None
        A: (P,) or (P, 1); B: (P, H); C: (H, P); initial_state: (batch, P), zeros if None; all complex64
        y: (batch, H, L); last state: (batch, P); complex64

    Parameters:
        return_last_state: whether (y, last state) is returned, and not y alone
        discretization: "bilinear", "zoh" or "dirac", see above

    Gradients flow to every tensor, through the last state too. On CPU tensors everything may be complex128 and fp64. The two
    products are torch.matmul's: `torch.backends.cuda.matmul.allow_tf32` and torch's precision settings decide how they round.
    The scan itself keeps fp64 in registers, so that decays near one and phases up to 1e4 rad a step do not drift. Forward
    mode and second derivatives are refused.

    Edge cases:
        y is not doubled: s5_inner does that for systems that stand for their conjugates as well.
        For L = 0 the last state is the initial state, or zeros.
        A = 0 is the limit of A → 0, and δ = 0 keeps the state (dirac: adds Bu to it), both with finite gradients.
        bilinear has a pole at ½δA = 1 or ½δ_A A = 1, where results and gradients are undefined.
        Ā = 0 does not erase an infinity or NaN in the state: 0·∞ is NaN.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.complex64)
        >>> gdn_cuda.simplified_scan(torch.ones(1, 1, 3) + 0j, torch.ones(1), -one[0], one, one, discretization="zoh").real
        tensor([[[0.6321, 0.8647, 0.9502]]])
    """
    y, last = _composed("simplified_scan", u, delta, A, B, C, delta_a, initial_state, discretization)
    return (y, last) if return_last_state else y


def s5_inner(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    delta_a: Tensor | None = None,
    discretization: str = "bilinear",
    conj_sym: bool = True,
) -> Tensor:
    """S5's layer without its nonlinearity: the real part of simplified_scan, plus D times the input.

    Formula:
        y = 2·Re(simplified_scan(u, delta, A, B, C, delta_a)) + D·Re(u), the factor 1 without conj_sym

    Shapes:
        u, delta, A, B, C, delta_a: as in `simplified_scan`
        D: (H,), fp32
        y: (batch, H, L), fp32

    Parameters:
        discretization: as in `simplified_scan`
        conj_sym: whether each state represents a conjugate pair, whose sum is twice the state's real part

    Edge cases:
        L = 0 gives an empty y.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.complex64)
        >>> gdn_cuda.s5_inner(torch.ones(1, 1, 3) + 0j, torch.ones(1), -one[0], one, one, torch.zeros(1), conj_sym=False)
        tensor([[[0.6667, 0.8889, 0.9630]]])
    """
    y, _ = _composed("s5_inner", u, delta, A, B, C, delta_a, None, discretization, D)
    return (2 if conj_sym else 1) * y.real + D[:, None] * u.real


# ---- Examples


def _system(B: int, T: int, seed: int) -> Arguments:
    H, P, dtype = 3, 5, torch.complex64
    A = drawn(P, seed=seed, dtype=dtype)
    return {
        "u": drawn(B, H, T, seed=seed + 1, dtype=dtype),
        "delta": drawn(B, P, T, seed=seed + 2, dtype=torch.float32).abs(),
        "A": torch.complex(-A.real.abs(), A.imag),
        "B": drawn(P, H, seed=seed + 3, dtype=dtype),
        "C": drawn(H, P, seed=seed + 4, dtype=dtype),
    }


@example(simplified_scan)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _system(B, T, seed)


@example(simplified_scan, "simplified_scan-state")
def _example_state(B: int, T: int, seed: int) -> Arguments:
    x = _system(B, T, seed)
    x |= {"delta": x["delta"].new_full((5,), 0.3), "delta_a": x["delta"], "A": x["A"][:, None], "discretization": "zoh"}
    return x | {"initial_state": drawn(B, 5, seed=seed + 5, dtype=torch.complex64), "return_last_state": True}


@example(s5_inner)
def _example_s5(B: int, T: int, seed: int) -> Arguments:
    return _system(B, T, seed) | {"D": drawn(3, seed=seed + 5, dtype=torch.float32)}


def _diagonal(B: int, T: int, seed: int) -> Arguments:
    x = _system(B, T, seed)
    return {
        "Bu": drawn(B, 5, T, seed=seed + 5, dtype=torch.complex64),
        "delta": x["delta"],
        "A": x["A"],
        "delta_a": None,
        "initial_state": drawn(B, 5, seed=seed + 6, dtype=torch.complex64),
        "discretization": "zoh",
    }


@example(call_operator("diagonal_scan"))
def _example_scan(B: int, T: int, seed: int) -> Arguments:
    return _diagonal(B, T, seed)


@example(call_operator("diagonal_scan_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    x = _diagonal(B, T, seed)
    more = {name: drawn(B, 5, T, seed=seed + at, dtype=torch.complex64) for at, name in ((7, "grad"), (8, "x"))}
    return more | {"grad_of_last": drawn(B, 5, seed=seed + 9, dtype=torch.complex64)} | x


typical_call(
    simplified_scan,
    {"batch": 8, "H": 256, "P": 256, "L": 8192},
    "u: batch H L; delta: batch P L f32; A: P; B: P H; C: H P",
    dtype="c64",
)
typical_call(
    s5_inner,
    {"batch": 8, "H": 256, "P": 256, "L": 8192},
    "u: batch H L; delta: batch P L f32; A: P; B: P H; C: H P; D: H f32",
    dtype="c64",
)

# ---- Benchmark: the scan alone, as the products are torch's

# batch, P, L
GPU_SHAPES = ((1, 64, 16384), (1, 1024, 16384), (8, 256, 8192), (64, 64, 1024), (64, 1024, 1024), (1, 256, 131072))
CPU_SHAPES = ((2, 16, 256),)


def _work(device: str, batch: int, P: int, L: int, varying: bool, backward: bool) -> Work:
    """Step sizes and frequencies of S5's initialisation."""
    A = torch.complex(torch.full((P,), -0.5, device=device), torch.pi * torch.arange(P, device=device, dtype=torch.float32))
    step = torch.logspace(-3, -1, P, device=device)
    delta = step[:, None] * (0.5 + torch.rand(batch, P, L, device=device)) if varying else step
    Bu = torch.randn(batch, P, L, device=device, dtype=torch.complex64)
    grad = torch.randn_like(Bu)
    x: Inputs = {"Bu": Bu, "delta": delta, "A": A, "grad": grad, "backward": backward}
    # x is written forward and read backward; backward reads the gradient of x and writes those of Bu and delta
    moved = size(Bu, Bu, delta) + (size(grad, Bu, delta) if backward else 0)
    return Work(_timed(diagonal_scan, x), moved, 0, x, partial(_outcome, diagonal_scan), x)


def _scan(function: Any, x: Inputs, leaves: tuple[Tensor, Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    return function(*(leaves or (x["Bu"], x["delta"], x["A"])), None, None, "zoh")


def _leaves(x: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    Bu, delta, A = (x[name].detach().requires_grad_() for name in ("Bu", "delta", "A"))
    return Bu, delta, A


def _timed(function: Any, x: Inputs) -> Any:
    if not x["backward"]:
        return partial(_scan, function, x)
    leaves = _leaves(x)
    states, _ = _scan(function, x, leaves)
    return partial(torch.autograd.grad, states, leaves, x["grad"], retain_graph=True)


def _outcome(function: Any, x: Inputs) -> Outcome:
    leaves = _leaves(x)
    states, _ = _scan(function, x, leaves)
    found = torch.autograd.grad(states, leaves, x["grad"])
    real = [torch.view_as_real(part) if part.is_complex() else part for part in found]
    return torch.view_as_real(states.detach()), torch.cat([part.flatten() / part.abs().mean() for part in real])


def _associative_scan(
    Bu: Tensor, delta: Tensor, A: Tensor, delta_a: None, initial_state: None, discretization: str
) -> tuple[Tensor, Tensor]:
    """In plain torch, by doubling: log2(L) passes, as JAX's associative_scan."""
    sizes = delta if delta.dim() == 3 else delta[:, None]
    a, factor = TRANSITIONS[discretization](sizes, sizes, A[:, None])
    a, x = a.expand_as(Bu), factor * Bu
    shift = 1
    while shift < x.shape[-1]:
        x = torch.cat([x[..., :shift], x[..., shift:] + a[..., shift:] * x[..., :-shift]], -1)
        a = torch.cat([a[..., :shift], a[..., shift:] * a[..., :-shift]], -1)
        shift *= 2
    return x, x[..., -1]


def _torch(x: Inputs) -> Peer:
    return Peer(_timed(_associative_scan, x), lambda _: _outcome(_associative_scan, x))


@bench(peers={"torch": _torch}, second="gradients", operator="simplified_scan")
def _measured(device: str) -> Iterator[Case]:
    for (batch, P, L), varying, backward in product(
        GPU_SHAPES if device == "cuda" else CPU_SHAPES, (False, True), (False, True)
    ):
        words = f"{batch}×{P}×{L}{', δ varies' if varying else ''} {'backward' if backward else 'forward'}"
        yield Case(words, partial(_work, device, batch, P, L, varying, backward))


@sanitizes("diagonal_scan", "diagonal_scan_backward", "diagonal_scan_parts")
def _sanitized() -> None:
    """Short rows, long ones, and few that are split over blocks; constant and varying step sizes, without and with δ_A."""
    for (batch, P, L), name in product(((2, 3, 7), (3, 2, 300), (1, 2, 5003)), ("bilinear", "zoh", "dirac")):
        A = torch.complex(-draw(P).abs(), draw(P))
        for shape, with_a in product(((P,), (batch, P, L)), (False, True)):
            delta = draw(*shape).abs()
            given = [draw(batch, P, L, dtype=torch.complex64), delta, A, delta.clone() if with_a else None]
            given.append(draw(batch, P, dtype=torch.complex64))
            leaves = [x.requires_grad_() for x in given if x is not None]
            states, last = diagonal_scan(*given, name)
            torch.autograd.grad((states, last), leaves, (torch.ones_like(states), torch.ones_like(last)))
