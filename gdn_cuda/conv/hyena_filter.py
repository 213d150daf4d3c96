"""Filters in modal form: the operator, its gradients, examples, benchmark and sanitizer calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.calls import typical_call
from ..operators.examples import Arguments, call_operator, example, random
from ..operators.first_order import first_order
from ..operators.mapped import Mapped
from ..operators.measure import Case, Work, bench, draw, normal, sanitizes, size
from ..operators.schema import require_tensors
from .reference_hyena import modal_filter, powers

_NAME = "hyena_filter"


def _cpu(x: Any) -> Tensor:
    return modal_filter(x.residues, x.log_poles, x.L).to(x.residues.dtype).contiguous()


def _backward_cpu(x: Any) -> tuple[Tensor, Tensor]:
    """Iterates over blocks of tokens to bound the memory."""
    grad, R = x.grad.double(), x.residues.double()
    dresidues, drates = torch.zeros_like(R), torch.zeros_like(R)
    for first in range(0, grad.shape[1], 4096):
        part = grad[:, None, first : first + 4096]
        t = torch.arange(first, first + part.shape[2], device=grad.device)
        terms = part * powers(x.log_poles, t)
        dresidues += terms.sum(-1)
        drates += (terms * t).sum(-1)
    return dresidues.to(x.residues.dtype), (R * drates).to(x.residues.dtype)


def _gradients(x: Any, needs: Any, grad: Tensor) -> dict[str, Any]:
    dresidues, dlog_poles = _backward(grad.contiguous(), x.residues, x.log_poles)
    return {"residues": dresidues, "log_poles": dlog_poles}


def _with_more_rows(operator: Differentiable, results: int, x: Any, dims: Any) -> Any:
    """The dimension that torch.vmap maps over becomes more rows."""
    mapped = Mapped(x, dims)
    found = operator(
        *(
            mapped.widened(name, 0).contiguous() if isinstance(getattr(x, name), Tensor) else getattr(x, name)
            for name in operator.schema.arguments
        )
    )
    if results == 1:
        return mapped.split(found, 0)
    return tuple(zip(*(mapped.split(each, 0) for each in found), strict=True))


_filter: Differentiable = first_order(
    _NAME,
    _NAME,
    shapes=lambda x: x.residues.new_empty((x.residues.shape[0], x.L)),
    cpu=_cpu,
    backward=_gradients,
    batched=lambda x, dims: _with_more_rows(_filter, 1, x, dims),
)
_backward: Differentiable = first_order(
    _NAME,
    "hyena_filter_backward",
    shapes=lambda x: (x.residues.new_empty(x.residues.shape), x.residues.new_empty(x.residues.shape)),
    cpu=_backward_cpu,
    batched=lambda x, dims: _with_more_rows(_backward, 2, x, dims),
)


def hyena_filter(residues: Tensor, log_poles: Tensor, L: int) -> Tensor:
    """The filter of Hyena's modal form, with gradients.

    Formula:
        h[d, t] = Σ_s residues[d, s] e^{log_poles[d, s] t},  t from 0 to L − 1

    Shapes:
        residues: (rows, S) with S from 1 to 64, fp32
        log_poles: as residues, or (rows, S, 1); at most 0
        h: (rows, L), fp32

    Parameters:
        L: number of taps

    `hyena_long` convolves with such a filter without forming it. CPU tensors may also be fp64.

    Edge cases:
        A pole of 0, log_poles = −∞, contributes only at t = 0, as 0⁰ = 1. Its gradient is NaN.
        L = 0 gives an empty tensor, and gradients of 0.
        Gradients of gradients and forward mode raise RuntimeError.

    Example:
        >>> gdn_cuda.hyena_filter(torch.tensor([[8.0, 1.0]]), torch.tensor([[0.5, 1.0]]).log(), 4)
        tensor([[9., 5., 3., 2.]])
    """
    require_tensors(_NAME, residues=residues, log_poles=log_poles)
    if log_poles.dim() == 3 and log_poles.shape[2] == 1:
        log_poles = log_poles[..., 0]
    return _filter(residues.contiguous(), log_poles.contiguous(), L)


# ---- Examples


def _given(B: int, S: int, seed: int) -> Arguments:
    return {"residues": random(B, S, seed=seed), "log_poles": -random(B, S, seed=seed + 1).exp()}


@example(hyena_filter)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, 5, seed) | {"L": T}


@example(call_operator("hyena_filter_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    return _given(B, 5, seed) | {"grad": random(B, T, seed=seed + 2)}


typical_call(hyena_filter, {"D": 4096, "S": 16, "L": 8192}, "residues, log_poles: D S f32; L = L")


# ---- Measurements, compute-sanitizer


def _work(device: str, rows: int, L: int, backward: bool) -> Work:
    residues, log_poles = (normal(rows, 16, device=device, dtype=torch.float32) for _ in range(2))
    log_poles = -log_poles.abs()
    if not backward:
        return Work(partial(hyena_filter, residues, log_poles, L), 4 * rows * L, 2 * 16 * rows * L)
    leaves = residues.requires_grad_(), log_poles.requires_grad_()
    h = hyena_filter(*leaves, L)
    call = partial(torch.autograd.grad, h, leaves, torch.randn_like(h), retain_graph=True)
    return Work(call, size(h), 4 * 16 * rows * L)


@bench(operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    for rows, L in ((4096, 8192), (4096, 131072), (256, 1048576)) if device == "cuda" else ((16, 256),):
        for backward in (False, True):
            name = f"{rows}×{L}, {'backward' if backward else 'forward'}"
            yield Case(name, partial(_work, device, rows, L, backward))


@sanitizes("hyena_filter", "hyena_filter_backward")
def _sanitized() -> None:
    """Rows of odd lengths, several segments, and more poles than a block has."""
    for rows, S, L in ((3, 16, 5000), (2, 1, 1), (2, 64, 40000), (1, 17, 255)):
        leaves = draw(rows, S).requires_grad_(), (-draw(rows, S).abs()).requires_grad_()
        h = hyena_filter(*leaves, L)
        torch.autograd.grad(h, leaves, torch.ones_like(h))
