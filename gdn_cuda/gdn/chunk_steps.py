"""The steps of the chunked form of the Gated Delta Net as operators, for research and to check the fused path: layout,
cumulated gates, and three operators of which each writes what the next one reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import operator
from ..operators.schema import refuse
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


def _check_update(chunk_size: int) -> None:
    if chunk_size != CHUNK:
        refuse("bf16_chunked_seq_state_update", "chunk_size", CHUNK, chunk_size)


def _check_o(chunk_size: int) -> None:
    if chunk_size != CHUNK:
        refuse("bf16_gdn_chunked_compute_O", "chunk_size", CHUNK, chunk_size)


# ---- The operators


@operator(reference=reference.transpose_to_mn_major, cpu=reference.transpose_to_mn_major, shapes=_mn_major_shape)
def transpose_to_mn_major(input: Tensor, alignment: int = 16) -> Tensor:
    """The same values with M, the dimension before the last, contiguous in memory.

    Formula:
        result[…, m, n] = input[…, m, n],  with strides (…, 1, M rounded up)

    Shapes:
        input: (…, M, N), rank 2 to 6, fp32 or bf16
        result: (…, M, N), the same dtype

    Parameters:
        alignment: in bytes; the size of a column, M elements, is rounded up to a multiple of it

    Edge cases:
        The padding after each column is zero.

    Example:
        >>> gdn_cuda.transpose_to_mn_major(torch.zeros(3, 6, 4)).stride()  # 6 fp32 take 24 bytes, so a column takes 32
        (32, 1, 8)
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
    """Writes the cumulative sum of gates within each chunk of 64 tokens to `output`.

    Formula:
        output_t = Σ max(input_s, −128) over the tokens s ≤ t of t's chunk

    Shapes:
        input: (B, T, H), with `head_first` (B, H, T); packed (N, H) or (H, N) with `cu_seqlens`; bf16 or fp32, any strides
        output: as input, fp32
        cu_seqlens: (B + 1,), int32 or int64: where packed sequences begin, and where the last one ends
        chunk_indices: (sequence, chunk) pairs: accepted and not read, as the device computes them

    Parameters:
        batch_size, seq_len, num_heads: accepted and not read, as input and cu_seqlens have the sizes
        head_first: whether heads come before tokens

    Edge cases:
        An element below −128 counts as −128: exp(−128) is 0 in fp32, and the sum keeps its precision for later elements.
        Every packed sequence starts a new chunk.

    Example:
        >>> gate, output = torch.full((1, 66, 2), -0.5), torch.empty(1, 66, 2)
        >>> gdn_cuda.chunk_local_cumsum_bf16(gate, output, 1, 66, 2)
        >>> output[0, 62:, 0]
        tensor([-31.5000, -32.0000,  -0.5000,  -1.0000])
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
    """Writes u and w of every chunk of 64 tokens.

    Formula:
        u = T (β v)        w = T (β exp(G) k)
        T = (I + A)⁻¹,  A_ij = β_i (k_i·k_j) exp(G_i − G_j) below the diagonal and 0 elsewhere

    Shapes:
        k: (…, Hk, dk); v, u: (…, Hv, dv); w: (…, Hv, dk); all bf16
        beta: (…, Hv), MN-major (`transpose_to_mn_major`)
        gate: (…, Hv), fp32, MN-major: G, the cumulative sum within each chunk (`chunk_local_cumsum_bf16`); None for no decay
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences
        chunk_indices: as in `chunk_local_cumsum_bf16`

    Parameters:
        compiled_dims: accepted and not read: head dimensions are always compiled in, sequence lengths never

    Edge cases:
        G may be −∞: exp(G) is then 0, and between two tokens that both have G = −∞ there is no decay.

    Example:
        >>> k, v, u, w = torch.randn(4, 1, 64, 2, 16).bfloat16()
        >>> beta = gdn_cuda.transpose_to_mn_major(torch.rand(1, 64, 2))
        >>> gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta)
        >>> torch.allclose(u[0, 0].float(), (beta[0, 0, :, None] * v[0, 0]), rtol=1e-2)  # no token comes before the first
        True
    """


@operator(cpu=_update_state, before=_check_update)
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
    chunk_size: int = CHUNK,
) -> None:
    """Updates the state chunk by chunk: writes states before chunks to `state`, v' over u, and the last state to `final_state`.

    Formula:
        v' = u − w Sᵀ        S ← exp(G_C) S + Σ_t exp(G_C − G_t) v'_t k_tᵀ,  with G_C the sum over the whole chunk

    Shapes:
        k, u, w, gate, cu_seqlens: as in `bf16_gdn_compute_u_w`
        state: (B, chunks, Hv, dv, dk), packed (chunks, Hv, dv, dk); fp32 or bf16
        final_state: (B, Hv, dv, dk), fp32 or bf16

    Parameters:
        is_initial_state: whether sequences start from state[:, 0] (packed: from the row of their first chunk), or else from 0
        output_final_state: whether final_state is written
        compiled_dims: as in `bf16_gdn_compute_u_w`
        chunk_size: 64

    Edge cases:
        The last chunk of a sequence may have fewer than 64 tokens.

    Example:
        >>> k, u, w = torch.randn(3, 1, 64, 2, 16).bfloat16()
        >>> state, final_state = torch.empty(1, 1, 2, 16, 16), torch.empty(1, 2, 16, 16)
        >>> gdn_cuda.bf16_chunked_seq_state_update(k, u, w, state, final_state)
        >>> bool(state.any()), bool(final_state.any())
        (False, True)
    """


@operator(cpu=_write_o, before=_check_o)
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
    chunk_size: int = CHUNK,
) -> None:
    """Writes the outputs of every chunk, from the states before the chunks and u = v'.

    Formula:
        o_i = dk^-0.5 (exp(G_i) S q_i + Σ_{j ≤ i} (q_i·k_j) exp(G_i − G_j) v'_j)

    Shapes:
        q, k: (…, Hk, dk); o: (…, Hv, dv); bf16
        state, u: as `bf16_chunked_seq_state_update` left them
        gate, cu_seqlens, chunk_indices: as in `bf16_gdn_compute_u_w`
        cu_chunks: (sequences + 1,): accepted and not read, as the device computes it

    Parameters:
        compiled_dims: as in `bf16_gdn_compute_u_w`
        chunk_size: 64

    Edge cases:
        G may be −∞, as in `bf16_gdn_compute_u_w`.

    Example:
        >>> q, k, u, o = torch.randn(4, 1, 64, 2, 16).bfloat16()
        >>> gdn_cuda.bf16_gdn_chunked_compute_O(q, torch.zeros(1, 1, 2, 16, 16), k, u, o)
        >>> expected = (q[0, 0] * k[0, 0]).float().sum(-1, keepdim=True) / 4 * u[0, 0]
        >>> torch.allclose(o[0, 0].float(), expected, rtol=2e-2, atol=1e-2)
        True
    """
