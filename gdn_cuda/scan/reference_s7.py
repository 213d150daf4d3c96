"""S7's scan in plain torch, and its gradients, in fp64. CPU tensors run these."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators.dtypes import state_dtype


def s7_forward(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(out, last state, states); differentiable."""
    wide, kept = torch.float64, state_dtype(x.u)
    A = x.A.to(wide)
    added = torch.einsum("bnhl,bhl->bnl", x.B.to(wide), x.u.to(wide))
    if x.bias is not None:
        added = added + x.bias.to(wide)
    decay = 1 - 1 / (A * A + 0.5)
    state, states = torch.zeros(A.shape[:2], dtype=wide, device=A.device), []
    for t in range(A.shape[2]):
        state = decay[:, :, t] * state + added[:, :, t]
        states.append(state)
    all_states = torch.stack(states, 2) if states else torch.zeros_like(A)
    out = torch.einsum("bhnl,bnl->bhl", x.C.to(wide), all_states)
    return out.to(x.u.dtype), state.to(kept), all_states.to(kept)


def s7_backward(x: Any) -> tuple[Tensor, ...]:
    """Gradients of u, A, B, C, and of B u + bias, which is added to the states."""
    wide = torch.float64
    A, grad, u, states = (y.to(wide) for y in (x.A, x.grad, x.u, x.states))
    denominator = A * A + 0.5
    decay = 1 - 1 / denominator
    dstates = torch.einsum("bhnl,bhl->bnl", x.C.to(wide), grad)
    flow = torch.zeros(A.shape[:2], dtype=wide, device=A.device) if x.grad_last is None else x.grad_last.to(wide)
    adjoint = torch.empty_like(dstates, memory_format=torch.contiguous_format)
    for t in range(A.shape[2] - 1, -1, -1):
        adjoint[:, :, t] = dstates[:, :, t] + flow
        flow = decay[:, :, t] * adjoint[:, :, t]
    before = torch.nn.functional.pad(states, (1, 0))[:, :, : A.shape[2]]
    found = (
        torch.einsum("bnhl,bnl->bhl", x.B.to(wide), adjoint),
        adjoint * before * 2 * A / denominator**2,
        torch.einsum("bnl,bhl->bnhl", adjoint, u),
        torch.einsum("bhl,bnl->bhnl", grad, states),
    )
    return (*(y.to(x.u.dtype).contiguous() for y in found), adjoint.to(state_dtype(x.u)))
