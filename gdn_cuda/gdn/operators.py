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
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ..operators import operator
from ..operators.schema import not_a_tensor
from . import reference_operators as reference


class InferenceMode(IntEnum):
    """What `recurrent_forward` is called for."""

    PREFILL = 0
    DECODE = 1
    SPEC_VERIFY = 2


# ---- Shapes of results, CPU implementations, and what is checked or returned around an operator


def _state(x: Any, *leading: Any, dtype: torch.dtype) -> Tensor:
    return x.out.new_empty((*leading, x.value.shape[-2], x.value.shape[-1], x.query.shape[-1]), dtype=dtype)


def _sequences(x: Any) -> Any:
    return x.query.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1


def _dtype_of(state: Tensor | None) -> torch.dtype:
    return torch.float32 if state is None else state.dtype


def _gate_shapes(x: Any) -> tuple[Tensor, Tensor]:
    return x.b.new_empty(x.b.shape), x.a.new_empty(x.a.shape, dtype=torch.float32)


def _check_gate_rank(a: Tensor, is_var_len: bool) -> None:
    if not isinstance(a, Tensor):
        raise ValueError(not_a_tensor("fused_gdn_gating", "a", a))
    rank = 2 if is_var_len else 3
    if a.dim() != rank:
        layout = "(N, Hv)" if is_var_len else "(B, T, Hv)"
        raise ValueError(
            f"fused_gdn_gating: a: expected rank {rank} {layout} with is_var_len={is_var_len}, got {tuple(a.shape)}"
        )


def _recurrent_shapes(x: Any) -> Tensor:
    leading = tuple(x.query.shape[:-2]) if x.inference_mode == InferenceMode.SPEC_VERIFY else (_sequences(x),)
    return _state(x, *leading, dtype=_dtype_of(x.state))


def _checkpoint_rows(x: Any) -> Any:
    if x.checkpoint_every == 0:
        return 0
    if x.cu_seqlens is not None:
        return x.query.shape[0] // x.checkpoint_every
    return x.query.shape[0] * (x.query.shape[1] // x.checkpoint_every)


def _chunked_shapes(x: Any) -> Any:
    """Shapes of final state and checkpoints; with a pool of the checkpoints alone."""
    dtype = x.state_dtype or _dtype_of(x.state)
    checkpoints = _state(x, _checkpoint_rows(x), dtype=dtype)
    if x.state_indices is not None:
        return checkpoints
    return _state(x, _sequences(x) if x.output_final_state else 0, dtype=dtype), checkpoints


def _chunked_on_cpu(x: Any) -> Any:
    output, final_state, found = reference.chunked_forward(x)
    x.out.copy_(output)
    # As many rows as on a GPU, which cannot count them in advance.
    checkpoints = found.new_zeros((_checkpoint_rows(x), *found.shape[1:]))
    checkpoints[: found.shape[0]] = found
    if x.state_indices is not None:
        return checkpoints
    return final_state.clone() if x.output_final_state else final_state.new_empty((0, *final_state.shape[1:])), checkpoints


def _check_pool(state: Tensor | None, state_indices: Tensor | None, state_dtype: torch.dtype | None) -> None:
    if state_indices is None:
        return
    if state is None:
        raise ValueError("chunked_forward: state: expected a pool (slots, Hv, dv, dk) with state_indices, got None")
    if state_dtype is not None and state_dtype != state.dtype:
        raise ValueError(
            f"chunked_forward: state_dtype: expected None or the pool's {state.dtype} with state_indices, got {state_dtype}"
        )


def _chunked_results(
    found: Any,
    out: Tensor,
    state: Tensor | None,
    state_indices: Tensor | None,
    output_final_state: bool,
    checkpoint_every: int,
) -> Any:
    final_state, checkpoints = found if state_indices is None else (state, found)
    if not output_final_state:
        final_state = None
    return (out, final_state, checkpoints) if checkpoint_every else (out, final_state)


# ---- The operators


@operator(reference=reference.fused_gdn_gating, shapes=_gate_shapes, before=_check_gate_rank)
def fused_gdn_gating(A_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor, is_var_len: bool = False) -> tuple[Tensor, Tensor]:
    """The gates of a layer: `(beta, gate)`.

    beta = sigmoid(b) in b's dtype; gate = −exp(A_log) · softplus(a + dt_bias) in fp32, with softplus(x) = x above 20; where one
    factor leaves fp32's range, the product's limit.

    A_log, dt_bias: (Hv,) fp32, bf16 or fp16. a, b: (B, T, Hv), or (N, Hv) with `is_var_len`; bf16, fp16 or fp32.
    """


@operator(reference=reference.recurrent_forward, shapes=_recurrent_shapes, out="value")
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


@operator(reference=reference.fused_decode, out="value")
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
@operator(
    reference=reference.chunked_forward,
    shapes=_chunked_shapes,
    cpu=_chunked_on_cpu,
    out="value",
    variant=("state_indices", "chunked_forward_pool"),
    before=_check_pool,
    results=_chunked_results,
)
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
