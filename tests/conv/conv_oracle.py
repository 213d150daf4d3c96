"""Causal depthwise convolutions in fp64 by their definition, token by token and tap by tap, without the package."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    silu: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, final states) on the CPU; differentiable. States may be wider than W − 1."""
    x, weight = x.to("cpu", torch.float64), weight.to("cpu", torch.float64)
    B, D, L = x.shape
    W = weight.shape[1]
    bias = torch.zeros(D, dtype=torch.float64) if bias is None else bias.to("cpu", torch.float64)
    offsets = None if cu_seqlens is None else cu_seqlens.tolist()
    spans = [(b, 0, L) for b in range(B)] if offsets is None else [(0, *pair) for pair in itertools.pairwise(offsets)]
    states = torch.zeros(len(spans), D, W - 1) if initial_states is None else initial_states
    states = states.to("cpu", torch.float64)
    rows = [[torch.zeros(D, dtype=torch.float64) for _ in range(L)] for _ in range(B)]
    final = []
    for sequence, (b, start, end) in enumerate(spans):
        width = states.shape[2]
        ids = [0] * (end - start) if seq_idx is None else seq_idx[b, start:end].tolist()
        seen = [states[sequence, :, i] for i in range(width)] + [x[b, :, t] for t in range(start, end)]
        seen_ids = ids[:1] * width + ids  # the state belongs to the sequence of the first token
        for t, own in enumerate(ids):
            if own < 0:
                continue
            z = bias
            for k in range(W):
                at = width + t - (W - 1) + k
                if seen_ids[at] == own:
                    z = z + weight[:, k] * seen[at]
            rows[b][start + t] = z * torch.sigmoid(z) if silu else z
        last = (
            [
                y if not ids or seen_ids[i] == ids[-1] >= 0 else torch.zeros_like(y)
                for i, y in list(enumerate(seen))[len(seen) - width :]
            ]
            if ids
            else seen
        )
        final.append(torch.stack(last, -1) if width else torch.zeros(D, 0, dtype=torch.float64))
    out = torch.stack([torch.stack(row, -1) if row else x[b] for b, row in enumerate(rows)]) if B else x
    return out, torch.stack(final) if final else states


def into_pool(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    state_indices: Tensor | None,
    has_initial_state: Tensor | None,
    silu: bool = False,
    cu_seqlens: Tensor | None = None,
    seq_idx: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, the pool after the call) on the CPU."""
    pool = pool.to("cpu", torch.float64).clone()
    sequences = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    slots = list(range(sequences)) if state_indices is None else state_indices.tolist()
    kept = [True] * sequences if has_initial_state is None else [bool(y) for y in has_initial_state.tolist()]
    before = (
        torch.stack([pool[s] if s >= 0 and keep else torch.zeros_like(pool[0]) for s, keep in zip(slots, kept, strict=True)])
        if sequences
        else pool[:0]
    )
    out, after = causal_conv1d(x, weight, bias, seq_idx, before, silu, cu_seqlens)
    for sequence, slot in enumerate(slots):
        if slot >= 0:
            pool[slot] = after[sequence]
        elif cu_seqlens is None:
            out[sequence] = 0
        else:
            out[0, :, int(cu_seqlens[sequence]) : int(cu_seqlens[sequence + 1])] = 0
    return out, pool
