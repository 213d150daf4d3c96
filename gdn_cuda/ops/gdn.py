"""Gated Delta Net: decode, verify, prefill, and the pieces of the chunked form.

The recurrence, for each token and value head h (which reads key head h // (Hv / Hk)):

    S ← exp(g)·S        v' = β·(v − S k)        S ← S + v' kᵀ        o = scale · S q

Padded tensors are rank 4, (B, T, H, d); packed ones rank 3, (N, H, d), with `cu_seqlens` (B+1, int32 or int64). Any strided
view whose last dimension is contiguous will do; nothing is copied. Head dimensions are multiples of 8 up to 256. CUDA tensors
run kernels compiled at first use, CPU tensors run `gdn_cuda.reference`. Wrong input raises ValueError naming function,
argument, expected and got, before anything is launched or written; `cu_seqlens` and slot indices on a GPU cannot be read
without waiting for it, so what they say out of range reads and writes nothing there (each function says what it does instead).

What a call writes (`out`, a pool, the results of the pieces) shares no memory with its other arguments and does not overlap
itself. Slices that interleave share nothing: slots of a pool between other caches, `out` beside the inputs in one buffer.

Inference only; `gdn_cuda.reference` is differentiable. In grad mode, with an input that requires a gradient, a call computes
the same, and backward through what it returns or writes raises an error that names it. What autograd does not let a call write
then (a leaf that requires a gradient, an inference tensor, a view that it does not follow) is refused; under `torch.no_grad()`
anything may be written. Compiled code leaves pools without that history. Forward mode and torch.func's gradients are refused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, overload

import torch
from torch import Tensor

from . import gdn_registration  # noqa: F401  (fake and CPU implementations)
from .autograd import inference_only
from .signature import not_a_tensor

_fused_gdn_gating = inference_only("fused_gdn_gating")
_recurrent_forward = inference_only("recurrent_forward")
_fused_decode = inference_only("fused_decode")
_chunked_forward = inference_only("chunked_forward")
_chunked_forward_pool = inference_only("chunked_forward_pool")
_transpose_to_mn_major = inference_only("transpose_to_mn_major")
_chunk_local_cumsum_bf16 = inference_only("chunk_local_cumsum_bf16")
_bf16_gdn_compute_u_w = inference_only("bf16_gdn_compute_u_w")
_bf16_chunked_seq_state_update = inference_only("bf16_chunked_seq_state_update")
_bf16_gdn_chunked_compute_O = inference_only("bf16_gdn_chunked_compute_O")


class InferenceMode(IntEnum):
    """What `recurrent_forward` is called for."""

    PREFILL = 0
    DECODE = 1
    SPEC_VERIFY = 2


def _output_like(function: str, value: Tensor) -> Tensor:
    try:
        return torch.empty_like(value, memory_format=torch.contiguous_format)
    except TypeError:
        raise ValueError(not_a_tensor(function, "value", value)) from None


def fused_gdn_gating(A_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor, is_var_len: bool = False) -> tuple[Tensor, Tensor]:
    """The gates of a layer: `(beta, gate)`.

    beta = sigmoid(b) in b's dtype; gate = −exp(A_log) · softplus(a + dt_bias) in fp32, with softplus(x) = x above 20; where one
    factor leaves fp32's range, the product's limit.

    A_log, dt_bias: (Hv,) fp32, bf16 or fp16. a, b: (B, T, Hv), or (N, Hv) with `is_var_len`; bf16, fp16 or fp32.
    """
    if not isinstance(a, Tensor):
        raise ValueError(not_a_tensor("fused_gdn_gating", "a", a))
    rank = 2 if is_var_len else 3
    if a.dim() != rank:
        layout = "(N, Hv)" if is_var_len else "(B, T, Hv)"
        raise ValueError(
            f"fused_gdn_gating: a: expected rank {rank} {layout} with is_var_len={is_var_len}, got {tuple(a.shape)}"
        )
    return _fused_gdn_gating(A_log, dt_bias, a, b)


def recurrent_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor | None,
    beta: Tensor,
    gate: Tensor,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    inference_mode: int = InferenceMode.PREFILL,
    is_qk_norm: bool = False,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence token by token, the state in registers from the first token to the last: `(output, new_state)`.

    query, key (B, T, Hk, dk) or (N, Hk, dk), value (…, Hv, dv): bf16 or fp16. beta (…, Hv) bf16, fp16 or fp32; gate (…, Hv)
    fp32 or bf16, the log decay of each token, down to −inf, which is an exact reset (docs/numerics.md). state (B, Hv, dv, dk)
    fp32 or bf16, or None for zeros; it is not changed. new_state has its dtype (fp32 without one).

    PREFILL and DECODE return the state after the last token. SPEC_VERIFY returns the state after every token, (B, T, Hv, dv,
    dk) or packed (N, Hv, dv, dk); its `state` may be what an earlier verify returned, (B, S, Hv, dv, dk), and
    `num_accepted_tokens` (B,) then picks where sequence b starts: step max(num_accepted_tokens[b], 1) − 1, at most S − 1. With
    one state a sequence there is nothing to pick.
    """
    if out is None:
        out = _output_like("recurrent_forward", value)
    new_state = _recurrent_forward(
        query, key, value, state, beta, gate, cu_seqlens, num_accepted_tokens, inference_mode, is_qk_norm, scale, out
    )
    return out, new_state


def fused_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state_pool: Tensor,
    state_indices: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    null_slot: int | None = None,
    step_states: Tensor | None = None,
    step_slots: Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """The serving step in one launch: l2 norm, gates, recurrence, states of a pool updated in place. Returns the output.

    query, key, value as in `recurrent_forward`; a, b (…, Hv), A_log, dt_bias (Hv,) as in `fused_gdn_gating`. state_pool
    (slots, Hv, dv, dk) fp32 or bf16: each slot contiguous, any stride between slots.

    Sequence n reads slot `state_indices[n]` (n without indices) and writes it back. For speculative verify, give
    `state_indices` (B, T) and `num_accepted_tokens` (B,): it reads slot state_indices[n, max(accepted, 1) − 1] and writes the
    state after token t to slot state_indices[n, t]. Or give `step_states` (rows, S, Hv, dv, dk) and `step_slots` (B,): the
    state after token t goes to step_states[step_slots[n], t] and the pool stays as it was.

    A slot to read that is negative or equal to `null_slot` skips its sequence: zero output, no slot touched; a slot to write
    that is so is not written. A slot past the pool touches nothing either: on CPU tensors it raises IndexError; on a GPU the
    index cannot be read without waiting for it, so the sequence's output is NaN. Two sequences on one slot race.

    Safe under CUDA-graph capture once its kernel is loaded (`gdn_cuda.warmup`); a replay sees the indices' current values.
    """
    if out is None:
        out = _output_like("fused_decode", value)
    _fused_decode(
        query,
        key,
        value,
        a,
        b,
        A_log,
        dt_bias,
        state_pool,
        state_indices,
        cu_seqlens,
        num_accepted_tokens,
        null_slot,
        step_states,
        step_slots,
        scale,
        use_qk_l2norm,
        out,
    )
    return out


@overload
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    chunk_indices: Tensor | None = ...,
    cu_chunks: Tensor | None = ...,
    *,
    scale: float | None = ...,
    use_qk_l2norm: bool = ...,
    output_final_state: Literal[True] = ...,
    state_dtype: torch.dtype | None = ...,
    state_indices: Tensor | None = ...,
    checkpoint_every: Literal[0] = ...,
    deterministic: bool = ...,
    out: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    chunk_indices: Tensor | None = ...,
    cu_chunks: Tensor | None = ...,
    *,
    scale: float | None = ...,
    use_qk_l2norm: bool = ...,
    output_final_state: bool = ...,
    state_dtype: torch.dtype | None = ...,
    state_indices: Tensor | None = ...,
    checkpoint_every: Literal[0] = ...,
    deterministic: bool = ...,
    out: Tensor | None = ...,
) -> tuple[Tensor, Tensor | None]: ...
@overload
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    chunk_indices: Tensor | None = ...,
    cu_chunks: Tensor | None = ...,
    *,
    scale: float | None = ...,
    use_qk_l2norm: bool = ...,
    output_final_state: bool = ...,
    state_dtype: torch.dtype | None = ...,
    state_indices: Tensor | None = ...,
    checkpoint_every: int,
    deterministic: bool = ...,
    out: Tensor | None = ...,
) -> tuple[Tensor, Tensor | None, Tensor]: ...
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cu_chunks: Tensor | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm: bool = False,
    output_final_state: bool = True,
    state_dtype: torch.dtype | None = None,
    state_indices: Tensor | None = None,
    checkpoint_every: int = 0,
    deterministic: bool = False,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    """Prefill: `(output, final_state)`, and with `checkpoint_every` a third, the checkpoints.

    Chunks of 64 tokens run on the tensor cores, from sm_80 on, where rows start on 16 bytes; anything else runs token by token.
    Where heads leave multiprocessors idle, sequences are split into segments. How many depends on the batch, and whether at all
    on its gates: where states reach across segments the result depends on both within its rounding. `deterministic=True`
    splits none: a sequence has the same bits whatever it is batched or packed with, and long sequences of few heads take
    longer (docs/numerics.md).

    Inputs as in `recurrent_forward`. final_state (B, Hv, dv, dk) has `state_dtype`, else the state's dtype, else fp32; None
    with `output_final_state=False`. chunk_indices (sequence, chunk pairs) and cu_chunks (B+1) are hints that need not be given:
    the device derives them.

    With `state_indices` (B,), `state` is a pool (slots, Hv, dv, dk), read and written in place as in `fused_decode`, and
    returned as final_state. `checkpoint_every=n` (a multiple of 64) returns the states after every n tokens in sequence order,
    (rows, Hv, dv, dk): T // n rows a padded sequence; N // n rows packed, of which sequence i fills the next length_i // n and
    the rest are zero.
    """
    if out is None:
        out = _output_like("chunked_forward", value)
    tokens = query, key, value, beta, gate
    common = cu_seqlens, chunk_indices, cu_chunks, scale, use_qk_l2norm
    final_state: Tensor | None
    if state_indices is None:
        final_state, checkpoints = _chunked_forward(
            *tokens, state, *common, output_final_state, state_dtype, checkpoint_every, deterministic, out
        )
        if not output_final_state:
            final_state = None
    else:
        if state is None:
            raise ValueError("chunked_forward: state: expected a pool (slots, Hv, dv, dk) with state_indices, got None")
        if state_dtype is not None and state_dtype != state.dtype:
            raise ValueError(
                f"chunked_forward: state_dtype: expected None or the pool's {state.dtype} with state_indices, got {state_dtype}"
            )
        checkpoints = _chunked_forward_pool(*tokens, state, state_indices, *common, checkpoint_every, deterministic, out)
        final_state = state if output_final_state else None
    return (out, final_state, checkpoints) if checkpoint_every else (out, final_state)


def transpose_to_mn_major(input: Tensor, alignment: int = 16) -> Tensor:
    """The same values (…, M, N), rank 2 to 6, fp32 or bf16, with M contiguous in memory.

    A column takes M elements rounded up to a multiple of `alignment` bytes; the padding behind each column is zero.
    """
    return _transpose_to_mn_major(input, alignment)


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
    _chunk_local_cumsum_bf16(input, output, batch_size, seq_len, num_heads, head_first, cu_seqlens, chunk_indices)


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
    _bf16_gdn_compute_u_w(k, v, u, w, beta, gate, compiled_dims, cu_seqlens, chunk_indices)


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
    _bf16_chunked_seq_state_update(
        k, u, w, state, final_state, gate, is_initial_state, output_final_state, compiled_dims, cu_seqlens, chunk_size
    )


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
    _bf16_gdn_chunked_compute_O(q, state, k, u, o, gate, compiled_dims, cu_seqlens, chunk_indices, cu_chunks, chunk_size)
