"""The chunked form of the Gated Delta Net in pieces, for research and as a check of the fused path: layout, cumulated gates,
and three operators of which each writes what the next one reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import operator
from . import reference_operators as reference
from .reference import CHUNK

# ---- Shapes of results, and CPU implementations


def _mn_major_shape(x: Any) -> Tensor:
    unit = x.alignment // x.input.element_size()
    rows = (x.input.shape[-2] + unit - 1) // unit * unit
    memory = x.input.new_empty((*x.input.shape[:-2], x.input.shape[-1], rows))
    return memory.narrow(-1, 0, x.input.shape[-2]).transpose(-1, -2)


def _sum_in_chunks(x: Any) -> None:
    x.output.copy_(reference.chunk_local_cumsum(x.input, x.head_first, x.cu_seqlens))


def _write_u_w(x: Any) -> None:
    u, w = reference.compute_u_w(x.k, x.v, x.beta, x.gate, x.cu_seqlens)
    x.u.copy_(u)
    x.w.copy_(w)


def _chunk_counts(cu_seqlens: Tensor) -> Tensor:
    return (cu_seqlens.diff() + CHUNK - 1) // CHUNK


def _update_state(x: Any) -> None:
    initial = None
    if x.is_initial_state and x.cu_seqlens is None:
        initial = x.state[:, 0] if x.state.shape[1] else x.state.new_zeros(x.final_state.shape)
    elif x.is_initial_state:
        counts = _chunk_counts(x.cu_seqlens)
        first = (counts.cumsum(0) - counts).clamp(max=max(x.state.shape[0] - 1, 0))
        initial = torch.where((counts > 0)[:, None, None, None], x.state[first], 0)
    before, last, v_new = reference.seq_state_update(x.k, x.u, x.w, x.gate, initial, x.cu_seqlens)
    (x.state if x.cu_seqlens is None else x.state[: before.shape[0]]).copy_(before)
    x.u.copy_(v_new)
    if x.output_final_state:
        x.final_state.copy_(last)


def _write_o(x: Any) -> None:
    states = x.state if x.cu_seqlens is None else x.state[: int(_chunk_counts(x.cu_seqlens).sum())]
    x.o.copy_(reference.compute_o(x.q, states, x.k, x.u, x.gate, x.cu_seqlens))


# ---- The operators


@operator(reference=reference.transpose_to_mn_major, cpu=reference.transpose_to_mn_major, shapes=_mn_major_shape)
def transpose_to_mn_major(input: Tensor, alignment: int = 16) -> Tensor:
    """The same values (…, M, N), rank 2 to 6, fp32 or bf16, with M contiguous in memory.

    A column takes M elements rounded up to a multiple of `alignment` bytes; the padding behind each column is zero.
    """


@operator(cpu=_sum_in_chunks)
def chunk_local_cumsum_bf16(
    input: Tensor,
    output: Tensor,
    batch_size: int,
    seq_len: int,
    num_heads: int,
    head_first: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
) -> None:
    """Writes the inclusive sum of `input` (bf16 or fp32) along the tokens of each chunk of 64 to `output` (fp32).

    An element below −128 counts as −128, so that the sum keeps the digits of those behind a reset: exp(−128) is 0 in fp32.

    (batch_size, seq_len, num_heads), with `head_first` (batch_size, num_heads, seq_len); packed (N, num_heads) or
    (num_heads, N) with cu_seqlens, chunks starting anew with every sequence. Any strides.
    """


@operator(cpu=_write_u_w)
def bf16_gdn_compute_u_w(
    k: Tensor,
    v: Tensor,
    u: Tensor,
    w: Tensor,
    beta: Tensor,
    gate: Tensor | None = None,
    compiled_dims: str = "t",
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
) -> None:
    """Writes u = T (β v) and w = T (β exp(G) k) of every chunk of 64.

    T = (I + A)⁻¹, with A_ij = β_i (k_i·k_j) exp(G_i − G_j) below the diagonal and 0 elsewhere.

    k (…, Hk, dk), v and u (…, Hv, dv), w (…, Hv, dk): bf16. gate (…, Hv) fp32 is G, the sum inside each chunk
    (`chunk_local_cumsum_bf16`), None for no decay; beta and gate MN-major (`transpose_to_mn_major`). For research, and as a
    check of the fused path. G may be −inf: exp(G) is 0 then, and tokens that both have it do not decay from one to the other.
    `compiled_dims` (letters among bthkvd) is accepted and changes nothing: head dimensions are always compiled in, sequence
    lengths never.
    """


@operator(cpu=_update_state)
def bf16_chunked_seq_state_update(
    k: Tensor,
    u: Tensor,
    w: Tensor,
    state: Tensor,
    final_state: Tensor,
    gate: Tensor | None = None,
    is_initial_state: bool = False,
    output_final_state: bool = True,
    compiled_dims: str = "t",
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
) -> None:
    """Runs the state over the chunks: the state before each goes to `state`, v' = u − w Sᵀ over u, the last to `final_state`.

    state (B, chunks, Hv, dv, dk), packed (chunks, Hv, dv, dk); final_state (B, Hv, dv, dk); each fp32 or bf16. With
    `is_initial_state`, state[:, 0] (packed: a sequence's first chunk) holds the state to start from. The rest as in
    `bf16_gdn_compute_u_w`.
    """


@operator(cpu=_write_o)
def bf16_gdn_chunked_compute_O(
    q: Tensor,
    state: Tensor,
    k: Tensor,
    u: Tensor,
    o: Tensor,
    gate: Tensor | None = None,
    compiled_dims: str = "t",
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cu_chunks: Tensor | None = None,
    chunk_size: int = 64,
) -> None:
    """Writes o = dk^-0.5 (exp(G) q Sᵀ + [(q_i·k_j) exp(G_i − G_j)] v') from the states before each chunk and u = v'.

    q (…, Hk, dk), o (…, Hv, dv): bf16. `state` and `u` as `bf16_chunked_seq_state_update` left them.
    """
