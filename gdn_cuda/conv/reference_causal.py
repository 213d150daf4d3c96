"""Causal depthwise convolutions and their gradients in plain torch, in fp64: the implementation for CPU tensors.

The inputs of a sequence are its state, of W − 1 columns or more, and then its tokens. A token sees those of the last W inputs
that have its own index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operators.dtypes import state_dtype
from ..operators.layout import in_layout
from ..operators.state_slots import check_slots, gather_states, is_slot

_WIDE = torch.float64


@dataclass
class _Part:
    """Sequences of one length: all rows of a batch, or one packed sequence."""

    rows: slice  # of the states
    tokens: slice
    inputs: Tensor  # (rows, D, state and tokens)
    ids: Tensor | None  # (rows, state and tokens); negative: in no sequence


def _parts(x: Any, states: Tensor) -> Iterator[_Part]:
    """`states`: (sequences, D, W − 1 or more)."""
    width, L = states.shape[2], x.x.shape[2]
    offsets = None if x.cu_seqlens is None else x.cu_seqlens.tolist()
    spans = [(slice(None), slice(0, L))]
    if offsets is not None:
        spans = [(slice(i, i + 1), slice(*offsets[i : i + 2])) for i in range(len(offsets) - 1)]
    for rows, tokens in spans:
        ids = None
        if x.seq_idx is not None and L > 0:
            own = x.seq_idx.to(torch.int64)
            ids = torch.cat([own[:, :1].expand(-1, width), own], 1)
        yield _Part(rows, tokens, torch.cat([states[rows], x.x[..., tokens].to(_WIDE)], 2), ids)


def states_of(x: Any) -> Tensor:
    if x.initial_states is not None:
        return x.initial_states.to(_WIDE)
    sequences = x.x.shape[0] if x.cu_seqlens is None else len(x.cu_seqlens) - 1
    return x.x.new_zeros((sequences, x.x.shape[1], x.weight.shape[1] - 1), dtype=_WIDE)


def _seen(part: _Part, k: int, W: int) -> Tensor:
    """The inputs that tap k multiplies: (rows, D, tokens)."""
    count = part.tokens.stop - part.tokens.start
    first = part.inputs.shape[2] - count - (W - 1) + k
    seen = part.inputs[..., first : first + count]
    same = _same_sequence(part, k, W)
    return seen if same is None else torch.where(same[:, None], seen, 0)


def _same_sequence(part: _Part, k: int, W: int) -> Tensor | None:
    if part.ids is None:
        return None
    count = part.tokens.stop - part.tokens.start
    own = part.ids[:, part.ids.shape[1] - count :]
    first = part.ids.shape[1] - count - (W - 1) + k
    return (part.ids[:, first : first + count] == own) & (own >= 0)


def _sums(part: _Part, x: Any) -> Tensor:
    """The outputs before the activation."""
    W = x.weight.shape[1]
    weight = x.weight.to(_WIDE)
    z = part.inputs[..., :0].sum(-1, keepdim=True).expand(-1, -1, part.tokens.stop - part.tokens.start)
    if x.bias is not None:
        z = z + x.bias.to(_WIDE)[:, None]
    for k in range(W):
        z = z + weight[:, k, None] * _seen(part, k, W)
    return z


def _zero_outside(part: _Part, y: Tensor) -> Tensor:
    """y, with zeros for tokens in no sequence."""
    if part.ids is None:
        return y
    return torch.where(part.ids[:, None, part.ids.shape[1] - y.shape[2] :] >= 0, y, 0)


def _final_states(part: _Part, width: int) -> Tensor:
    """The last `width` inputs, as far as they belong to the last token's sequence."""
    states = part.inputs[..., part.inputs.shape[2] - width :]
    kept = _kept(part, width)
    return states if kept is None else torch.where(kept[:, None], states, 0)


def _kept(part: _Part, width: int) -> Tensor | None:
    if part.ids is None:
        return None
    last = part.ids[:, -1:]
    return (part.ids[:, part.ids.shape[1] - width :] == last) & (last >= 0)


def forward(x: Any, states: Tensor) -> tuple[Tensor, Tensor]:
    """(out, final states) in fp64, differentiable."""
    rows, final_states = [], []
    for part in _parts(x, states):
        z = _sums(part, x)
        rows.append(_zero_outside(part, F.silu(z) if x.silu else z))
        final_states.append(_final_states(part, states.shape[2]))
    left = x.x.shape[2] - (0 if x.cu_seqlens is None else int(x.cu_seqlens[-1]))
    if x.cu_seqlens is not None:  # tokens after the last sequence
        rows.append(x.x.new_zeros((*x.x.shape[:2], left), dtype=_WIDE))
    return torch.cat(rows, 2), torch.cat(final_states) if final_states else states


def causal_conv1d(x: Any) -> tuple[Tensor, Tensor]:
    out, final_states = forward(x, states_of(x))
    final_states = final_states if x.return_final_states else final_states.new_zeros(0)
    return in_layout(out.to(x.x.dtype), x.x), final_states.to(state_dtype(x.x), copy=True)


def causal_conv1d_backward(x: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, weight, bias and initial_states; empty for an argument that was not passed."""
    W, states = x.weight.shape[1], states_of(x)
    weight = x.weight.to(_WIDE)
    dx = x.x.new_zeros(x.x.shape, dtype=_WIDE)
    dweight, dbias, dstates = torch.zeros_like(weight), weight.new_zeros(weight.shape[0]), torch.zeros_like(states)
    for part in _parts(x, states):
        count = part.tokens.stop - part.tokens.start
        dz = _zero_outside(part, x.grad[..., part.tokens].to(_WIDE))
        if x.silu:
            z = _sums(part, x)
            gate = torch.sigmoid(z)
            dz = dz * gate * (1 + z * (1 - gate))
        dinputs = torch.zeros_like(part.inputs)
        for k in range(W):
            dweight[:, k] += (dz * _seen(part, k, W)).sum((0, 2))
            same = _same_sequence(part, k, W)
            dseen = weight[:, k, None] * dz
            dinputs[..., k : k + count] += dseen if same is None else torch.where(same[:, None], dseen, 0)
        dbias += dz.sum((0, 2))
        if x.grad_states is not None:
            kept = _kept(part, W - 1)
            grad = x.grad_states[part.rows].to(_WIDE)
            dinputs[..., count:] += grad if kept is None else torch.where(kept[:, None], grad, 0)
        dstates[part.rows] = dinputs[..., : W - 1]
        dx[..., part.tokens] = dinputs[..., W - 1 :]
    given = (x.bias is not None, x.initial_states is not None)
    return (
        in_layout(dx.to(x.x.dtype), x.x),
        dweight.to(x.weight.dtype),
        dbias.to(x.bias.dtype) if given[0] else x.weight.new_zeros(0),
        dstates.to(state_dtype(x.x)) if given[1] else x.x.new_zeros(0, dtype=state_dtype(x.x)),
    )


@torch.no_grad()
def causal_conv1d_prefill(x: Any) -> Tensor:
    """Writes the pool and returns the output."""
    sequences = x.x.shape[0] if x.cu_seqlens is None else len(x.cu_seqlens) - 1
    slots = torch.arange(sequences) if x.state_indices is None else x.state_indices.to(torch.int64)
    check_slots("causal_conv1d", "state_indices", slots, x.conv_state.shape[0])
    active = is_slot(slots)
    states = gather_states(x.conv_state, slots, active).to(_WIDE)
    if x.has_initial_state is not None:
        states[x.has_initial_state == 0] = 0
    out, final_states = forward(x, states)
    x.conv_state[slots[active]] = final_states[active].to(x.conv_state.dtype)
    if x.cu_seqlens is None:
        out[~active] = 0
    else:
        offsets = x.cu_seqlens.tolist()
        for i in (~active).nonzero()[:, 0].tolist():
            out[..., offsets[i] : offsets[i + 1]] = 0
    return in_layout(out.to(x.x.dtype), x.x)
