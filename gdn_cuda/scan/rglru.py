"""RG-LRU's scan: the operator, its gradients, example, benchmark and sanitizer calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.calls import typical_call
from ..operators.examples import Arguments, call_operator, example, random
from ..operators.first_order import first_order
from ..operators.layout import channels_are_last, empty_in_layout
from ..operators.mapped import Mapped
from ..operators.measure import Case, Work, bench, draw, normal, sanitizes, size
from ..operators.transposed import dense_in_layout
from . import reference_rglru as reference

_NAME = "rglru_scan"


def _states_shape(x: Any) -> tuple[Any, ...]:
    sequences = x.u.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    return (sequences, *x.A.shape)


def _shapes(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    B, D, L = x.u.shape
    tile = reference.tile_of(x.u, x.A)
    checkpoints = x.A.new_empty((B, (L + tile - 1) // tile, x.A.shape[1], D))
    return empty_in_layout(x.u), x.A.new_empty(_states_shape(x)), checkpoints


def _backward_shapes(x: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dinitial = x.A.new_empty((0,) if x.initial_state is None else _states_shape(x))
    return empty_in_layout(x.u), empty_in_layout(x.u), x.A.new_empty(x.A.shape), dinitial


def _gradients(x: Any, needs: Any, grad: Tensor, grad_last: Tensor, _: Tensor) -> dict[str, Any]:
    if channels_are_last(grad) != channels_are_last(x.u):
        grad = dense_in_layout(grad, x.u)
    du, ddelta, dlog_A, dinitial = _backward(
        grad,
        x.results[2],
        grad_last,
        *(x.u, x.delta, x.A, x.initial_state, x.cu_seqlens, x.reset, x.first_multiplier, x.max_sqrt_gradient),
    )
    return {
        "u": du,
        "delta": ddelta,
        "A": torch.where(x.A == 0, 0, dlog_A / x.A) if needs.A else None,
        "initial_state": dinitial if needs.initial_state else None,
    }


# For torch.vmap, the mapped dimension becomes more channels, which are dimension 1 except in these tensors.
_CHANNELS_AT = {"A": 0, "checkpoints": 3}


def _with_more_channels(operator: Differentiable, results: Sequence[str], x: Any, dims: Any) -> Any:
    mapped = Mapped(x, dims)
    if mapped.is_over("cu_seqlens", "reset"):
        raise RuntimeError(f"{_NAME}: torch.vmap over cu_seqlens and reset is not supported")

    def more(name: str) -> Any:
        given = getattr(x, name)
        if not isinstance(given, Tensor) or name in ("cu_seqlens", "reset"):
            return given
        return mapped.widened(name, _CHANNELS_AT.get(name, 1)).contiguous()  # so that forward and backward have the same tiles

    def split(name: str, result: Tensor) -> tuple[Tensor, int | None]:
        absent = getattr(x, name, result) is None
        return (result, None) if absent else mapped.split(result, _CHANNELS_AT.get(name, 1))

    found = operator(*(more(name) for name in operator.schema.arguments))
    return tuple(zip(*(split(*each) for each in zip(results, found, strict=True)), strict=True))


_scan: Differentiable = first_order(
    _NAME,
    _NAME,
    shapes=_shapes,
    cpu=reference.rglru_forward,
    backward=_gradients,
    batched=lambda x, dims: _with_more_channels(_scan, ("out", "last", "checkpoints"), x, dims),
    uses_results=True,
)
_backward: Differentiable = first_order(
    _NAME,
    "rglru_scan_backward",
    shapes=_backward_shapes,
    cpu=reference.rglru_backward,
    batched=lambda x, dims: _with_more_channels(_backward, ("u", "delta", "A", "initial_state"), x, dims),
)


def rglru_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    return_last_state: bool = False,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reset: Tensor | None = None,
    first_multiplier: bool = False,
    max_sqrt_gradient: float | None = None,
) -> Any:
    """The recurrence of RG-LRU (Griffin, RecurrentGemma), with gradients.

    Formula:
        a = A^delta_t,  x_t = a x_{t−1} + √(1 − a²) u_t,  out_t = Σ_n x_t

    Shapes:
        u, delta: (B, D, L), fp32, bf16 or fp16, contiguous or the transposed view of (B, L, D); out as u
        A: (D, N), in (0, 1), fp32; N from 1 to 256
        initial_state, last state: (B, D, N), or (sequences, D, N) with cu_seqlens; fp32
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences, for which B is 1
        reset: (B, L), bool or integer: not 0 at tokens that start a sequence

    Parameters:
        return_last_state: whether (out, last state) is returned, and not out alone
        first_multiplier: whether a token that starts a sequence has the multiplier 1, not √(1 − a²)
        max_sqrt_gradient: upper bound of the root's derivative; None: no bound

    Neither layout is copied. CPU tensors may also be fp64, with A in fp64.

    Edge cases:
        A token starts a sequence, without a state before it, if reset is set, and if it is the first of a sequence without
          initial_state; with one, initial_state is the state before it. Nothing of earlier tokens remains, not even NaN.
        The last state of a sequence without tokens is its initial state, or zeros.
        At 1 − a² = 0 the root's derivative is infinite and counts as 0; max_sqrt_gradient bounds it.
        delta = 0 keeps the state, also for A = 0, which is computed as 2^(−1e30); the gradient of A = 0 is 0. A > 1 gives NaN.
        a = 0 does not erase an infinity or NaN in the state, as a reset does: 0·∞ is NaN.
        Gradients of gradients, forward mode and torch.vmap over cu_seqlens or reset raise RuntimeError.

    Example:
        >>> ones = torch.ones(1, 1, 3)
        >>> gdn_cuda.rglru_scan(ones, ones, torch.tensor([[0.6]]), first_multiplier=True)
        tensor([[[1.0000, 1.4000, 1.6400]]])
    """
    if isinstance(reset, Tensor) and reset.dtype == torch.bool:
        reset = reset.to(torch.int32)
    out, last, _ = _scan(u, delta, A, initial_state, cu_seqlens, reset, first_multiplier, max_sqrt_gradient)
    return (out, last) if return_last_state else out


# ---- Examples


def _given(B: int, D: int, L: int, N: int, seed: int, channels_last: bool = False) -> Arguments:
    u, delta = random(B, D, L, seed=seed), random(B, D, L, seed=seed + 1).sigmoid()
    if channels_last:
        u, delta = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (u, delta))
    return {"u": u, "delta": delta, "A": random(D, N, seed=seed + 2).sigmoid()}


@example(rglru_scan)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, 3, T, 2, seed) | {"first_multiplier": True, "return_last_state": True}


@example(rglru_scan, "rglru_scan, channels last")
def _example_channels_last(B: int, T: int, seed: int) -> Arguments:
    reset = (random(B, T, seed=seed + 4) > 1).int()
    return _given(B, 3, T, 1, seed, True) | {"reset": reset, "initial_state": random(B, 3, 1, seed=seed + 3)}


@example(rglru_scan, "rglru_scan, packed", packed=True)
def _example_packed(B: int, T: int, seed: int) -> Arguments:
    cu_seqlens = torch.tensor([0, 5, 5, 7], dtype=torch.int32)
    return _given(1, 3, 7, 2, seed) | {"cu_seqlens": cu_seqlens, "initial_state": random(3, 3, 2, seed=seed + 3)}


@example(call_operator("rglru_scan_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    given = _given(B, 3, T, 2, seed) | {"cu_seqlens": None, "reset": None, "initial_state": random(B, 3, 2, seed=seed + 3)}
    given |= {"first_multiplier": True, "max_sqrt_gradient": 1000.0}
    checkpoints = random(B, (T + 2047) // 2048, 2, 3, seed=seed + 4)
    last = random(B, 3, 2, seed=seed + 5)
    return given | {"grad": random(B, 3, T, seed=seed + 6), "checkpoints": checkpoints, "grad_last": last}


# ---- Measurements

GPU_SHAPES = ((8, 4096, 2048), (1, 2560, 8192), (1, 256, 131072))
CPU_SHAPES = ((2, 16, 32),)


def _work(device: str, shape: tuple[int, int, int], dtype: torch.dtype, channels_last: bool, backward: bool) -> Work:
    """As in RecurrentGemma: one state, decays of 0.9 to 0.999 to the power of a gate."""
    B, D, L = shape
    u, delta = (normal(*((B, L, D) if channels_last else shape), device=device, dtype=dtype) for _ in range(2))
    delta = delta.sigmoid()
    if channels_last:
        u, delta = u.transpose(1, 2), delta.transpose(1, 2)
    A = torch.empty(D, 1, device=device).uniform_(0.9, 0.999)
    if not backward:
        return Work(partial(rglru_scan, u, delta, A, first_multiplier=True), 3 * size(u), 0)
    leaves = [x.detach().requires_grad_() for x in (u, delta, A)]
    out = rglru_scan(*leaves, first_multiplier=True)
    grad = torch.empty_like(u).normal_()
    return Work(partial(torch.autograd.grad, out, leaves, grad, retain_graph=True), 5 * size(u), 0)


@bench(operator="rglru_scan")
def _measured(device: str) -> Iterator[Case]:
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            for channels_last in (False, True):
                for backward in (False, True):
                    kind = f"{'channels' if channels_last else 'tokens'} last"
                    words = f"{kind}, {str(dtype).removeprefix('torch.')}, {'backward' if backward else 'forward'}"
                    work = partial(_work, device, shape, dtype, channels_last, backward)
                    yield Case(f"{'×'.join(map(str, shape))} {words}", work, kind=kind)


typical_call(rglru_scan, {"B": 8, "D": 4096, "L": 2048, "N": 1}, "u, delta: B D L; A: D N f32")


@sanitizes("rglru", "rglru_backward")
def _sanitized() -> None:
    """Both layouts, one state and several, packed sequences, some empty, resets, rows that are not whole vectors."""
    for dtype in (torch.bfloat16, torch.float32):
        for D, L, N in ((3, 4100, 1), (35, 300, 2)):
            for channels_last in (False, True):
                u, delta = draw(1, D, L, dtype=dtype), draw(1, D, L, dtype=dtype).sigmoid()
                if channels_last:
                    u, delta = u.mT.contiguous().mT, delta.mT.contiguous().mT
                A, starts = draw(D, N).sigmoid(), torch.tensor([0, 7, 7, 200, L - 1], device="cuda")
                reset = draw(1, L) > 2
                initial = draw(4, D, N)
                leaves = [x.requires_grad_() for x in (u, delta, A, initial)]
                given = {"initial_state": initial, "cu_seqlens": starts, "reset": reset}
                out, last = rglru_scan(u, delta, A, True, **given)
                torch.autograd.grad((out, last), leaves, (torch.ones_like(out), torch.ones_like(last)))
