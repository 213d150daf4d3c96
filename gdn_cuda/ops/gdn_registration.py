"""Shapes for tracing and CPU implementations of the Gated Delta Net operators."""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..reference import gdn_ops as reference
from ..reference.gdn import CHUNK
from .registration import cpu, fake

_ops = torch.ops.gdn_cuda


def _state(like: Tensor, query: Tensor, value: Tensor, *leading: Any, dtype: torch.dtype) -> Tensor:
    return like.new_empty((*leading, value.shape[-2], value.shape[-1], query.shape[-1]), dtype=dtype)


def _sequences(query: Tensor, cu_seqlens: Tensor | None) -> Any:
    return query.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _checkpoint_rows(query: Tensor, cu_seqlens: Tensor | None, every: int) -> Any:
    if every == 0:
        return 0
    return query.shape[0] // every if cu_seqlens is not None else query.shape[0] * (query.shape[1] // every)


# These only write into what they are given: nothing to say of shapes.
for _name in (
    "fused_decode",
    "chunk_local_cumsum_bf16",
    "bf16_gdn_compute_u_w",
    "bf16_chunked_seq_state_update",
    "bf16_gdn_chunked_compute_O",
):
    fake(_name)(lambda *args: None)


# ---- fused_gdn_gating


@fake("fused_gdn_gating")
def _(A_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return b.new_empty(b.shape), a.new_empty(a.shape, dtype=torch.float32)


@cpu("fused_gdn_gating")
def _(A_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    beta, gate = reference.fused_gdn_gating(A_log, dt_bias, a, b)
    return beta.contiguous(), gate.contiguous()


# ---- recurrent_forward


@fake("recurrent_forward")
def _(query, key, value, state, beta, gate, cu_seqlens, num_accepted, mode, is_qk_norm, scale, out):
    dtype = torch.float32 if state is None else state.dtype
    leading = tuple(query.shape[:-2]) if mode == reference.SPEC_VERIFY else (_sequences(query, cu_seqlens),)
    return _state(out, query, value, *leading, dtype=dtype)


@cpu("recurrent_forward")
def _(query, key, value, state, beta, gate, cu_seqlens, num_accepted, mode, is_qk_norm, scale, out):
    output, new_state = reference.recurrent_forward(
        query, key, value, state, beta, gate, cu_seqlens, num_accepted, mode, is_qk_norm, scale
    )
    out.copy_(output)
    return new_state.clone(memory_format=torch.contiguous_format)  # without tokens it is `state` itself


# ---- fused_decode


@cpu("fused_decode")
def _(*args: Any) -> None:
    *inputs, out = args
    out.copy_(reference.fused_decode(*inputs))


# ---- chunked_forward


@fake("chunked_forward")
def _(query, key, value, beta, gate, state, cu_seqlens, chunk_indices, cu_chunks, scale, norm, final, dtype, every, _, out):
    dtype = dtype or (torch.float32 if state is None else state.dtype)
    final_state = _state(out, query, value, _sequences(query, cu_seqlens) if final else 0, dtype=dtype)
    return final_state, _state(out, query, value, _checkpoint_rows(query, cu_seqlens, every), dtype=dtype)


@cpu("chunked_forward")
def _(query, key, value, beta, gate, state, cu_seqlens, chunk_indices, cu_chunks, scale, norm, final, dtype, every, _, out):
    output, final_state, checkpoints = reference.chunked_forward(
        query, key, value, beta, gate, state, cu_seqlens, scale, norm, dtype, None, every
    )
    out.copy_(output)
    rows = _checkpoint_rows(query, cu_seqlens, every)
    final_state = final_state.clone() if final else final_state.new_empty((0, *final_state.shape[1:]))
    return final_state, _padded(checkpoints, rows)


@fake("chunked_forward_pool")
def _(query, key, value, beta, gate, pool, indices, cu_seqlens, chunk_indices, cu_chunks, scale, norm, every, _, out):
    return _state(out, query, value, _checkpoint_rows(query, cu_seqlens, every), dtype=pool.dtype)


@cpu("chunked_forward_pool")
def _(query, key, value, beta, gate, pool, indices, cu_seqlens, chunk_indices, cu_chunks, scale, norm, every, _, out):
    output, _, checkpoints = reference.chunked_forward(
        query, key, value, beta, gate, pool, cu_seqlens, scale, norm, None, indices, every
    )
    out.copy_(output)
    return _padded(checkpoints, _checkpoint_rows(query, cu_seqlens, every))


def _padded(rows: Tensor, count: int) -> Tensor:
    """As many rows as a GPU, which cannot count them ahead, would return."""
    padded = rows.new_zeros((count, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded


# ---- layout and cumsum


@fake("transpose_to_mn_major")
def _(input: Tensor, alignment: int) -> Tensor:
    unit = alignment // input.element_size()
    rows = (input.shape[-2] + unit - 1) // unit * unit
    return input.new_empty((*input.shape[:-2], input.shape[-1], rows)).narrow(-1, 0, input.shape[-2]).transpose(-1, -2)


cpu("transpose_to_mn_major")(reference.transpose_to_mn_major)


@cpu("chunk_local_cumsum_bf16")
def _(input, output, batch_size, seq_len, num_heads, head_first, cu_seqlens, chunk_indices):
    output.copy_(reference.chunk_local_cumsum(input, head_first, cu_seqlens))


# ---- the pieces of the chunked form


def _chunk_counts(cu_seqlens: Tensor) -> Tensor:
    return (cu_seqlens.diff() + CHUNK - 1) // CHUNK


@cpu("bf16_gdn_compute_u_w")
def _(k, v, u, w, beta, gate, compiled_dims, cu_seqlens, chunk_indices):
    u_new, w_new = reference.compute_u_w(k, v, beta, gate, cu_seqlens)
    u.copy_(u_new)
    w.copy_(w_new)


@cpu("bf16_chunked_seq_state_update")
def _(k, u, w, state, final_state, gate, has_initial, with_final, compiled_dims, cu_seqlens, chunk_size):
    initial = None
    if has_initial and cu_seqlens is None:
        initial = state[:, 0] if state.shape[1] else state.new_zeros(final_state.shape)
    elif has_initial:
        counts = _chunk_counts(cu_seqlens)
        first = (counts.cumsum(0) - counts).clamp(max=max(state.shape[0] - 1, 0))
        initial = torch.where((counts > 0)[:, None, None, None], state[first], 0)
    before, last, v_new = reference.seq_state_update(k, u, w, gate, initial, cu_seqlens)
    (state if cu_seqlens is None else state[: before.shape[0]]).copy_(before)
    u.copy_(v_new)
    if with_final:
        final_state.copy_(last)


@cpu("bf16_gdn_chunked_compute_O")
def _(q, state, k, u, o, gate, compiled_dims, cu_seqlens, chunk_indices, cu_chunks, chunk_size):
    states = state if cu_seqlens is None else state[: int(_chunk_counts(cu_seqlens).sum())]
    o.copy_(reference.compute_o(q, states, k, u, gate, cu_seqlens))
