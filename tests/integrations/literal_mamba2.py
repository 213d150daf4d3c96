"""Mamba-2's recurrence token by token in fp64, and what the engines' functions return of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def steps(x: dict[str, Any]) -> Tensor:
    """δ, (tokens, heads)."""
    raw = x["dt"].double()
    if x.get("dt_bias") is not None:
        raw = raw + x["dt_bias"].double()
    if x.get("dt_softplus"):
        raw = torch.where(raw > 20, raw, F.softplus(raw))
    return raw.clamp(*x.get("dt_limit", (0.0, float("inf"))))


def prompt(x: dict[str, Any], start: int, end: int, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs (tokens, H, P) of tokens start … end − 1, and the states before the first and after each, (tokens + 1, H, P,
    N)."""
    rows, heads, delta, A = x["x"].double(), x["x"].shape[1], steps(x), x["A"].double()
    B, C = (x[name].double().repeat_interleave(heads // x[name].shape[1], 1) for name in ("B", "C"))
    S = state.double()
    outputs, states = [rows[:0]], [S[None]]
    for t in range(start, end):
        S = (delta[t] * A).exp()[:, None, None] * S + torch.einsum("h,hp,hn->hpn", delta[t], rows[t], B[t])
        y = torch.einsum("hpn,hn->hp", S, C[t])
        if x.get("D") is not None:
            y = y + x["D"].double().reshape(heads, -1) * rows[t]
        outputs.append((y if x.get("z") is None else y * F.silu(x["z"][t].double()))[None])
        states.append(S[None])
    return torch.cat(outputs), torch.cat(states)


def prompts(x: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """The same of all prompts of a packed call; the outputs of one after another."""
    sizes = (*x["x"].shape[1:], x["B"].shape[2])
    initial, offsets = x.get("initial_states"), x["cu_seqlens"].tolist()
    zeros = torch.zeros(sizes, dtype=torch.float64, device=x["x"].device)
    found = [
        prompt(x, start, end, zeros if initial is None else initial[n]) for n, (start, end) in enumerate(pairwise(offsets))
    ]
    return torch.cat([outputs for outputs, _ in found]), [states for _, states in found]


def after(offsets: list[int], states: list[Tensor], token: int) -> Tensor:
    """The state after the first `token` tokens of all prompts, in the prompt that has the last of them."""
    n = next(n for n, (start, end) in enumerate(pairwise(offsets)) if start < token <= end)
    return states[n][token - offsets[n]]
