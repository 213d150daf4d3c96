"""Kimi Delta Attention in fp64, token by token, from the formulas alone; and draws of gates, keys and betas for it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

SMALLEST = 2.0**-126  # the smallest decay of a kernel that is not a reset
GATES = ("none", "edge", "init", "bounded", "heavy", "strong", "channel reset", "token reset", "NaN in a head")
KEYS = ("random", "repeated", "zero")
BETAS = (0.0, 1.0, 2.0)


def decays(
    gate: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    gate_is_linear: bool = False,
) -> Tensor:
    """exp of the gate in fp64; gate (…,H,dk), raw with A_log or a bound."""
    g = gate.double()
    if A_log is None and lower_bound is None:
        return _with_resets(g if gate_is_linear else g.exp())
    x = g if dt_bias is None else g + dt_bias.double().reshape(g.shape[-2:])
    rate = torch.ones(g.shape[-2], 1) if A_log is None else A_log.double().exp()[:, None]
    if lower_bound is None:
        return _with_resets((-rate * torch.logaddexp(x, torch.zeros_like(x))).exp())
    return _with_resets((lower_bound / (1 + (-rate * x).exp())).exp())


def _with_resets(decay: Tensor) -> Tensor:
    return torch.where(decay.abs() < SMALLEST, 0, decay)


def literal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    decay: Tensor,
    state: Tensor | None = None,
    *,
    scale: float | None = None,
    norm: bool = False,
) -> tuple[Tensor, Tensor]:
    """(output, the state after every token) of padded sequences, T ≥ 1.

    S ← S diag(α), S ← S + β (v − S k) kᵀ, o = scale · S q
    """
    q, k, v, beta = (x.double() for x in (query, key, value, beta))
    if norm:
        q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    heads = decay.shape[-2]
    q, k, v = (x.repeat_interleave(heads // x.shape[-2], -2) for x in (q, k, v))
    S = torch.zeros(v.shape[0], heads, v.shape[-1], k.shape[-1]).double() if state is None else state.double()
    outputs, states = [], []
    for t in range(v.shape[1]):
        alpha = decay[:, t, :, None, :]
        S = torch.where(alpha == 0, 0, S * alpha)
        correction = beta[:, t, :, None] * (v[:, t] - (S * k[:, t, :, None, :]).sum(-1))
        S = S + correction[..., None] * k[:, t, :, None, :]
        outputs.append((S * q[:, t, :, None, :]).sum(-1) * (k.shape[-1] ** -0.5 if scale is None else scale))
        states.append(S)
    return torch.stack(outputs, 1), torch.stack(states, 1)


def packed_literal(x: dict[str, Tensor], offsets: list[int], state: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    """(output (N, …), last states) of packed tensors (N, …); tokens after the last sequence have outputs of 0."""
    names = ("query", "key", "value", "beta", "decay")
    heads, dv = x["decay"].shape[-2], x["value"].shape[-1]
    output = torch.zeros(x["value"].shape[0], heads, dv).double()
    last = torch.zeros(len(offsets) - 1, heads, dv, x["key"].shape[-1]).double() if state is None else state.double().clone()
    for n, (first, end) in enumerate(pairwise(offsets)):
        if first < end:
            sequence = (x[name][None, first:end] for name in names)
            found = literal(*sequence, None if state is None else state[n : n + 1], **options)
            output[first:end], last[n] = found[0][0], found[1][0, -1]
    return output, last


def log_decays(kind: str, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Gates (…,T,H,dk) in fp32, of one of GATES."""
    x = torch.randn(*shape, generator=rng)
    middle, heads = slice(shape[-3] // 2, shape[-3] // 2 + 1), shape[-2]
    if kind == "none":
        return torch.zeros(shape)
    if kind == "edge":
        return torch.full(shape, -5.0)
    if kind in ("init", "channel reset", "token reset", "NaN in a head"):  # A_log = 0, steps of 0.001 to 0.1
        gate = -torch.empty(shape).uniform_(math.log(1e-3), math.log(0.1), generator=rng).exp()
        if kind == "channel reset":
            gate[..., middle, :, shape[-1] // 2] = -torch.inf
        elif kind == "token reset":
            gate[..., middle, :, :] = -torch.inf
        elif kind == "NaN in a head":
            gate[..., middle, heads - 1, 0] = torch.nan
        return gate
    if kind == "bounded":
        return -5 * torch.sigmoid(x)
    if kind == "heavy":  # as trained: most are small, some reach −2661
        return -(2.2 * x - 2).exp().clamp(max=2661.0)
    assert kind == "strong"
    gate = -torch.rand(shape, generator=rng)
    gate[..., middle, :, 0] = -1e8
    return gate


def drawn_keys(kind: str, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """(…,T,H,dk)"""
    x = torch.randn(*shape, generator=rng)
    if kind == "zero":
        return torch.zeros(shape)
    if kind == "repeated":
        four = torch.arange(shape[-3]) % min(4, max(shape[-3], 1))
        return x.index_select(-3, four)
    return x
