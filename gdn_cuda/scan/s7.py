"""S7's scan: the operator, its gradients, example, benchmark and sanitizer calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.calls import typical_call
from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments, call_operator, example, random
from ..operators.first_order import first_order
from ..operators.mapped import Mapped
from ..operators.measure import Case, Work, bench, draw, normal, sanitizes, size
from . import reference_s7 as reference

_NAME = "s7_scan"


def _shapes(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    b, N, L = x.A.shape
    wide = state_dtype(x.u)
    return x.u.new_empty(x.u.shape), x.u.new_empty((b, N), dtype=wide), x.u.new_empty((b, N, L), dtype=wide)


def _backward_shapes(x: Any) -> tuple[Tensor, ...]:
    return (*(y.new_empty(y.shape) for y in (x.u, x.A, x.B, x.C)), x.states.new_empty(x.states.shape))


def _gradients(x: Any, needs: Any, grad: Tensor, grad_last: Tensor, _: Tensor) -> dict[str, Any]:
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    found = _backward(grad, x.results[2], grad_last.contiguous(), x.u, x.A, x.B, x.C, x.bias)
    dbias = found[4].to(x.u.dtype) if needs.bias else None
    return dict(zip(("u", "A", "B", "C"), found[:4], strict=True)) | {"bias": dbias}


def _forward(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, last, states = reference.s7_forward(x)
    return out.contiguous(), last.clone(), states.contiguous()


def _with_more_sequences(operator: Differentiable, x: Any, dims: Any) -> Any:
    """For torch.vmap: the mapped dimension becomes more sequences, and tokens are made contiguous."""
    mapped = Mapped(x, dims)
    more = (None if y is None else mapped.widened(name, 0).contiguous() for name, y in vars(x).items())
    return tuple(zip(*(mapped.split(y, 0) for y in operator(*more)), strict=True))


_scan: Differentiable = first_order(
    _NAME,
    _NAME,
    shapes=_shapes,
    cpu=_forward,
    backward=_gradients,
    batched=lambda x, dims: _with_more_sequences(_scan, x, dims),
    uses_results=True,
)
_backward: Differentiable = first_order(
    _NAME,
    "s7_scan_backward",
    shapes=_backward_shapes,
    cpu=reference.s7_backward,
    batched=lambda x, dims: _with_more_sequences(_backward, x, dims),
)


def s7_scan(u: Tensor, A: Tensor, B: Tensor, C: Tensor, bias: Tensor | None = None, return_last_state: bool = False) -> Any:
    """The recurrence of S7: a scan whose A, B and C depend on the input, with gradients.

    Formula:
        x_t = (1 − 1 / (A_t² + ½)) x_{t−1} + B_t u_t + bias_t,  out_t = C_t x_t

    Shapes:
        u: (b, H, L), fp32, bf16 or fp16, the dtype of all others; out has u's shape and dtype
        A, bias: (b, N, L)
        B: (b, N, H, L)
        C: (b, H, N, L)
        last state: (b, N), fp32

    Parameters:
        return_last_state: whether (out, last state) is returned, and not out alone

    Tokens must be contiguous. CPU tensors may also be fp64. The states are stored for backward: b·N·L elements, 1 / H of B's.

    Edge cases:
        |A| < 1/√2 gives a negative decay; at A = 0 it is −1. Decays near one keep full precision: they are computed in fp64.
        Without tokens the last state is zero. An infinity or NaN stays in the state, however small the decay.
        Gradients of gradients and forward mode raise RuntimeError.

    Example:
        >>> ones = torch.ones(1, 1, 3)
        >>> gdn_cuda.s7_scan(ones, ones, ones[None], ones[None])
        tensor([[[1.0000, 1.3333, 1.4444]]])
    """
    out, last, _ = _scan(u, A, B, C, bias)
    return (out, last) if return_last_state else out


# ---- Examples


def _given(b: int, L: int, seed: int) -> Arguments:
    H, N = 3, 2
    shapes = {"u": (b, H, L), "A": (b, N, L), "B": (b, N, H, L), "C": (b, H, N, L), "bias": (b, N, L)}
    return {name: random(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}


@example(s7_scan)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed) | {"return_last_state": True}


@example(call_operator("s7_scan_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    result_shapes = {"grad": (B, 3, T), "states": (B, 2, T), "grad_last": (B, 2)}
    return _given(B, T, seed) | {name: random(*shape, seed=seed + 9) for name, shape in result_shapes.items()}


# ---- Measurements


def _work(device: str, shape: tuple[int, int, int, int], dtype: torch.dtype, backward: bool) -> Work:
    b, H, N, L = shape
    u, A = normal(b, H, L, device=device, dtype=dtype), normal(b, N, L, device=device, dtype=dtype)
    B, C = normal(b, N, H, L, device=device, dtype=dtype), normal(b, H, N, L, device=device, dtype=dtype)
    if not backward:
        return Work(partial(s7_scan, u, A, B, C), size(u, u, A, B, C), 0)
    leaves = [x.requires_grad_() for x in (u, A, B, C)]
    out = s7_scan(*leaves)
    grad = torch.empty_like(u).normal_()
    moved = 2 * size(u, A, B, C) + size(u)
    return Work(partial(torch.autograd.grad, out, leaves, grad, retain_graph=True), moved, 0)


@bench(operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    for shape in ((4, 128, 64, 2048), (1, 256, 64, 8192)) if device == "cuda" else ((1, 4, 3, 32),):
        for dtype in (torch.bfloat16, torch.float32):
            for backward in (False, True):
                kind = str(dtype).removeprefix("torch.")
                name = f"{'×'.join(map(str, shape))} {kind} {'backward' if backward else 'forward'}"
                yield Case(name, partial(_work, device, shape, dtype, backward), kind=kind)


typical_call(s7_scan, {"b": 4, "H": 128, "N": 64, "L": 2048}, "u: b H L; A: b N L; B: b N H L; C: b H N L")


@sanitizes("s7_product", "s7_states", "s7_outer")
def _sanitized() -> None:
    """Rows of whole vectors and others; more rows than a thread has."""
    for dtype in (torch.bfloat16, torch.float32):
        for L in (1104, 37):
            shapes = (2, 5, L), (2, 3, L), (2, 3, 5, L), (2, 5, 3, L), (2, 3, L)
            leaves = u, A, B, C, bias = [draw(*shape, dtype=dtype).requires_grad_() for shape in shapes]
            out, last = s7_scan(u, A, B, C, bias, True)
            torch.autograd.grad((out, last), leaves, (torch.ones_like(out), torch.ones_like(last)))
