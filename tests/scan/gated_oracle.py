"""RG-LRU's and S7's recurrences by their definitions, in fp64, token by token. Nothing here comes from the package."""

from __future__ import annotations

import torch
from torch import Tensor


def rglru(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reset: Tensor | None = None,
    first_multiplier: bool = False,
) -> tuple[Tensor, Tensor]:
    """(out, last state) on the CPU; differentiable."""
    u, delta, A = (x.to("cpu", torch.float64) for x in (u, delta, A))
    initial_state = None if initial_state is None else initial_state.to("cpu", torch.float64)
    reset = None if reset is None else reset.cpu()
    B, D, L = u.shape
    offsets = None if cu_seqlens is None else cu_seqlens.tolist()
    spans = [(b, b, 0, L) for b in range(B)]
    if offsets is not None:
        spans = [(s, 0, offsets[s], offsets[s + 1]) for s in range(len(offsets) - 1)]
    rows: list[list[Tensor]] = [[] for _ in range(B)]
    last = []
    for sequence, b, start, end in spans:
        x = torch.zeros(D, A.shape[1], dtype=torch.float64) if initial_state is None else initial_state[sequence]
        for t in range(start, end):
            resets = reset is not None and bool(reset[b, t])
            a = A ** delta[b, :, t, None]
            root = (-torch.expm1(2 * delta[b, :, t, None] * torch.log(A))).sqrt()
            first = resets or (t == start and initial_state is None)
            multiplier = torch.ones_like(root) if first and first_multiplier else root
            x = multiplier * u[b, :, t, None] + (0 if first else a * x)
            rows[b].append(x.sum(-1))
        last.append(x)
    out = torch.stack([torch.stack(row, -1) if row else u[b] for b, row in enumerate(rows)]) if B else u
    return out, torch.stack(last) if last else A.new_zeros(0, *A.shape)


def s7(u: Tensor, A: Tensor, B: Tensor, C: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(out, last state) on the CPU; differentiable."""
    u, A, B, C = (x.to("cpu", torch.float64) for x in (u, A, B, C))
    bias = torch.zeros_like(A) if bias is None else bias.to("cpu", torch.float64)
    x, out = torch.zeros(A.shape[:2], dtype=torch.float64), []
    for t in range(u.shape[2]):
        x = (1 - 1 / (A[:, :, t] ** 2 + 0.5)) * x + (B[:, :, :, t] * u[:, None, :, t]).sum(-1) + bias[:, :, t]
        out.append((C[:, :, :, t] * x[:, None]).sum(-1))
    return torch.stack(out, -1) if out else u, x
