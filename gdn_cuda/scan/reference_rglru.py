"""RG-LRU in plain torch: the recurrence and its gradients, token by token in fp64. CPU tensors run these."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..operators.dtypes import state_dtype
from ..operators.layout import channels_are_last, in_layout
from .discretizations import expm1

_WIDE = torch.float64
_LEAST_LOG = -1e30 * math.log(2)  # log A for A = 0, as in kernels/scan/rglru/gate.cuh


def tile_of(u: Tensor, A: Tensor) -> int:
    """Tokens between the states that forward stores for backward, as in kernels/scan/rglru/plan.cuh."""
    return 2048 if not channels_are_last(u) else 64 if A.shape[1] > 1 else 128


class _Root(torch.autograd.Function):
    """The square root; its derivative 1 / √(4x) is at most `bound`, and 0 where it would be infinite."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bound: float | None) -> Tensor:
        return torch.sqrt(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.bound = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (root,) = ctx.saved_tensors
        return grad * inverse_of_root(root, ctx.bound) / 2, None


def inverse_of_root(root: Tensor, bound: float | None) -> Tensor:
    divisor = root if bound is None else root.clamp(min=0.5 / bound)
    return torch.where(divisor == 0, 0, 1 / divisor)


@dataclass
class Marks:
    """For each token (B, L): whether it begins a sequence, which sequence it belongs to, and whether it has no state before it.
    Tokens after the last packed sequence count as one more sequence."""

    starts: Tensor
    sequence: Tensor
    fresh: Tensor


def _marks(x: Any) -> Marks:
    B, _, L = x.u.shape
    device = x.u.device
    if x.cu_seqlens is None:
        starts = torch.arange(L, device=device).expand(B, L) == 0
        sequence = torch.arange(B, device=device)[:, None].expand(B, L)
    else:
        offsets = x.cu_seqlens.long()
        sequence = torch.searchsorted(offsets, torch.arange(L, device=device), right=True).sub(1)[None]
        starts = torch.zeros(B, L + 1, dtype=torch.bool, device=device)
        starts[0, offsets] = True
        starts = starts[:, :L]
    continues = sequence < (0 if x.initial_state is None else _sequences(x))
    fresh = starts & ~continues
    return Marks(starts, sequence, fresh if x.reset is None else fresh | (x.reset != 0))


def _sequences(x: Any) -> int:
    return x.u.shape[0] if x.cu_seqlens is None else len(x.cu_seqlens) - 1


def _initial(x: Any) -> Tensor:
    if x.initial_state is not None:
        return x.initial_state.to(_WIDE)
    return torch.zeros(_sequences(x), *x.A.shape, dtype=_WIDE, device=x.u.device)


def _gates(x: Any, t: int) -> tuple[Tensor, Tensor]:
    """The natural logarithm of Ā, and the multiplier √(1 − Ā²), of a token: (B, D, N)."""
    delta = x.delta[:, :, t, None].to(_WIDE)
    log = torch.where(delta == 0, 0, delta * torch.log(x.A.to(_WIDE)).clamp(min=_LEAST_LOG))  # 0⁰ = 1
    return log, _Root.apply(-expm1(2 * log), x.max_sqrt_gradient)


def _states(x: Any) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The states before each token, after resets, and after each token, (B, D, N); and the last states."""
    marks, u = _marks(x), x.u.to(_WIDE)
    initial = torch.cat([_initial(x), torch.zeros(1, *x.A.shape, dtype=u.dtype, device=u.device)])
    state = initial[:-1] if x.cu_seqlens is None else initial[-1:]
    before, after, last = [], [], list(initial.unbind(0))
    for t in range(x.u.shape[2]):
        starts, fresh = marks.starts[:, t, None, None], marks.fresh[:, t, None, None]
        state = torch.where(fresh, 0, torch.where(starts, initial[marks.sequence[:, t]], state))
        before.append(state)
        log, root = _gates(x, t)
        multiplier = torch.where(fresh, 1, root) if x.first_multiplier else root
        decayed = torch.where(fresh, 0, torch.exp(log) * state)
        state = decayed + multiplier * u[:, :, t, None]
        after.append(state)
        for b, sequence in enumerate(marks.sequence[:, t].tolist()):
            last[sequence] = state[b]
    return before, after, torch.stack(last)[:-1]


def rglru_scan(x: Any) -> Any:
    """(y, last state), or y alone; differentiable."""
    _, after, last = _states(x)
    y = torch.stack([state.sum(-1) for state in after], 2) if after else torch.zeros_like(x.u)
    y = y.to(x.u.dtype)
    return (y, last.to(state_dtype(x.u))) if x.return_last_state else y


def rglru_forward(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Returns, as the operator, y in u's layout, the last state, and the states before each tile (B, tiles, N, D)."""
    _, after, last = _states(x)
    y = torch.stack([state.sum(-1) for state in after], 2) if after else torch.zeros_like(x.u)
    tile = tile_of(x.u, x.A)
    kept_as = state_dtype(x.u)
    first = _initial(x) if x.cu_seqlens is None else torch.zeros(1, *x.A.shape, dtype=_WIDE, device=last.device)
    kept = [first if t == 0 else after[t - 1] for t in range(0, x.u.shape[2], tile)]
    shape = (x.u.shape[0], len(kept), x.A.shape[1], x.A.shape[0])
    checkpoints = torch.stack(kept, 1).transpose(2, 3) if kept else last.new_empty(shape)
    return in_layout(y.to(x.u.dtype), x.u), last.clone().to(kept_as), checkpoints.contiguous().to(kept_as)


def rglru_backward(x: Any) -> tuple[Tensor, ...]:
    """Gradients of u, delta, log A and initial_state (empty if there is none)."""
    marks = _marks(x)
    before, _, _ = _states(x)
    u, grad, delta, A = (y.to(_WIDE) for y in (x.u, x.grad, x.delta, x.A))
    log_A = torch.log(A).clamp(min=_LEAST_LOG)
    du, ddelta, dlog_A = torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(A)
    initial = _initial(x)
    dinitial = torch.zeros_like(initial) if x.grad_last is None else x.grad_last.to(_WIDE)  # for sequences without tokens
    dinitial = torch.cat([dinitial, torch.zeros_like(A)[None]])
    flow = torch.zeros(u.shape[0], *x.A.shape, dtype=_WIDE, device=u.device)
    for t in range(u.shape[2] - 1, -1, -1):
        sequence = marks.sequence[:, t]
        ends = t + 1 == u.shape[2] or bool((x.cu_seqlens is not None) and marks.starts[0, t + 1])
        if ends:
            flow = dinitial[sequence]  # up to here, the gradient of the sequence's last state
        fresh = marks.fresh[:, t, None, None]
        log, root = _gates(x, t)
        decay = torch.exp(log)
        unit = fresh & x.first_multiplier
        adjoint = grad[:, :, t, None] + flow
        du[:, :, t] = (torch.where(unit, 1, root) * adjoint).sum(-1)
        by_root = torch.where(unit, 0, u[:, :, t, None] * decay * inverse_of_root(root, x.max_sqrt_gradient))
        dlog = decay * adjoint * (before[t] - by_root)
        ddelta[:, :, t] = (dlog * log_A).sum(-1)
        dlog_A += (dlog * delta[:, :, t, None]).sum(0)
        flow = torch.where(fresh, 0, decay * adjoint)
        for b, index in enumerate(sequence.tolist()):
            if marks.starts[b, t]:
                dinitial[index] = flow[b]
    dinitial = dinitial.new_empty(0) if x.initial_state is None else dinitial[:-1].clone()
    rows = (in_layout(y.to(x.u.dtype), x.u) for y in (du, ddelta))
    return (*rows, dlog_A.to(x.A.dtype), dinitial.to(x.A.dtype))
