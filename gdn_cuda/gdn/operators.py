"""The declarations of Gated Delta Net's public functions; `gdn_cuda.gdn` describes what they have in common."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch
from torch import Tensor

from ..operators import operator
from ..operators.declare import output_like
from ..operators.dtypes import state_dtype
from ..operators.schema import not_a_tensor, refuse, require_tensors
from . import reference_operators as reference
from .replay import ReplayBuffers, decode_by_replay, reference_by_replay
from .ring import RingBuffers, ring_decode
from .training import with_gradients

if TYPE_CHECKING:
    from typing_extensions import Unpack


class InferenceMode(IntEnum):
    """Which states `recurrent_forward` returns: the last one (PREFILL, DECODE) or those after every token (SPEC_VERIFY)."""

    PREFILL = 0
    DECODE = 1
    SPEC_VERIFY = 2


# ---- Shapes of results, CPU implementations, checks before an operator and results after it


def _output(function: str, query: Tensor, value: Tensor) -> Tensor:
    """Shaped like value, but with query's head count if query has more heads. The operator checks everything else."""
    try:
        heads = query.shape[-2]  # nested tensors have none
        if heads <= value.shape[-2]:
            return torch.empty_like(value, memory_format=torch.contiguous_format)
        return value.new_empty((*value.shape[:-2], heads, value.shape[-1]))
    except (AttributeError, IndexError, TypeError, RuntimeError):
        require_tensors(function, query=query, value=value)
    return output_like(function, "value", value)


def _state(x: Any, *leading: Any, dtype: torch.dtype) -> Tensor:
    return x.out.new_empty((*leading, *x.out.shape[-2:], x.query.shape[-1]), dtype=dtype)


def _sequences(x: Any) -> Any:
    return x.query.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1


def _tokens(x: Any) -> tuple[Any, ...]:
    """The dimensions of tokens: (B, T), or (N,) for packed tensors, (1, N, H, d) among them."""
    return tuple(x.query.shape[:2] if x.cu_seqlens is None else x.query.shape[-3:-2])


def _dtype_of_states(x: Any) -> torch.dtype:
    """That of new states: with an int8 pool as without one."""
    return state_dtype(x.query) if x.state is None or x.state.dtype == torch.int8 else x.state.dtype


def _recurrent_shapes(x: Any) -> Tensor:
    if x.inference_mode == InferenceMode.SPEC_VERIFY:
        return _state(x, *_tokens(x), dtype=_dtype_of_states(x))
    return _state(x, _sequences(x) if x.final_state is None else 0, dtype=_dtype_of_states(x))


def _recurrent_results(found: Tensor, out: Tensor, final_state: Tensor | None) -> tuple[Tensor, Tensor]:
    return out, found if final_state is None else final_state


def _recurrent_on_cpu(x: Any) -> Tensor:
    output, new_state = reference.recurrent_forward(x)
    x.out.copy_(output)
    is_new = x.final_state is None
    return new_state.clone() if is_new else new_state.new_empty((0, *new_state.shape[1:]), dtype=_dtype_of_states(x))


def _checkpoint_rows(x: Any) -> Any:
    if x.checkpoint_offsets is not None:
        return _sequences(x) if x.checkpoints is None else 0
    if x.checkpoint_every == 0:
        return 0
    *batch, tokens = _tokens(x)
    return (batch[0] if batch else 1) * (tokens // x.checkpoint_every)


def _chunked_shapes(x: Any) -> Any:
    """Shapes of final state and checkpoints; with a pool, of the checkpoints alone."""
    dtype = x.state_dtype or _dtype_of_states(x)
    checkpoints = _state(x, _checkpoint_rows(x), dtype=dtype)
    if x.state_indices is not None:
        return checkpoints
    is_new = x.output_final_state and x.final_state is None
    return _state(x, _sequences(x) if is_new else 0, dtype=dtype), checkpoints


def _chunked_on_cpu(x: Any) -> Any:
    output, final_state, found = reference.chunked_forward(x)
    x.out.copy_(output)
    # As many rows as on a GPU, where the host cannot know how many are used.
    checkpoints = found.new_zeros((_checkpoint_rows(x), *found.shape[1:]), dtype=x.state_dtype or _dtype_of_states(x))
    if x.checkpoints is None:
        checkpoints[: found.shape[0]] = found
    if x.state_indices is not None:
        return checkpoints
    is_new = x.output_final_state and x.final_state is None
    return final_state.clone() if is_new else checkpoints.new_empty((0, *final_state.shape[1:])), checkpoints


def _check_chunked(
    state: Tensor | None,
    state_dtype: torch.dtype | None,
    state_indices: Tensor | None,
    write_indices: Tensor | None,
    update_state: bool,
    final_state: Tensor | None,
    state_scales: Tensor | None,
    workspace: int | None,
) -> None:
    if workspace is not None and not (isinstance(workspace, int) and workspace >= 0):
        refuse("chunked_forward", "workspace", "bytes, not negative, or None", repr(workspace))
    if state_indices is not None:
        _check_pool(state, state_dtype, state_indices)
        if isinstance(final_state, Tensor):
            refuse("chunked_forward", "final_state", "None with state_indices, as the pool is written", "a tensor")
        if final_state is not None:
            raise ValueError(not_a_tensor("chunked_forward", "final_state", final_state, optional=True))
    elif isinstance(state_scales, Tensor):
        refuse("chunked_forward", "state_scales", "None without state_indices", "a tensor")
    elif state_scales is not None:
        raise ValueError(not_a_tensor("chunked_forward", "state_scales", state_scales, optional=True))
    elif isinstance(write_indices, Tensor):
        refuse("chunked_forward", "write_indices", "None without state_indices", "a tensor")
    elif write_indices is not None:
        raise ValueError(not_a_tensor("chunked_forward", "write_indices", write_indices, optional=True))
    elif not update_state:
        refuse("chunked_forward", "update_state", "True without state_indices", update_state)


def _check_pool(state: Tensor | None, state_dtype: torch.dtype | None, state_indices: Tensor) -> None:
    if not isinstance(state_indices, Tensor):
        raise ValueError(not_a_tensor("chunked_forward", "state_indices", state_indices, optional=True))
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
    checkpoint_offsets: Tensor | None,
    final_state: Tensor | None,
    checkpoints: Tensor | None,
) -> Any:
    new_state, new_checkpoints = found if state_indices is None else (state, found)
    last = (new_state if final_state is None else final_state) if output_final_state else None
    if not checkpoint_every and checkpoint_offsets is None:
        return out, last
    return out, last, new_checkpoints if checkpoints is None else checkpoints


# ---- The operators


@operator(
    reference=reference.recurrent_forward,
    shapes=_recurrent_shapes,
    cpu=_recurrent_on_cpu,
    out=_output,
    results=_recurrent_results,
)
def recurrent_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor | None,
    beta: Tensor | None,
    gate: Tensor | None,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    inference_mode: int = InferenceMode.PREFILL,
    is_qk_norm: bool = False,
    *,
    scale: float | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    allow_negative_eigenvalues: bool = False,
    gate_is_linear: bool = False,
    lower_bound: float | None = None,
    has_initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    state_scales: Tensor | None = None,
    final_scales: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence token by token, the state in registers from the first token to the last. Returns `(output, new_state)`.

    Formula:
        S ← exp(gate)·S        v' = beta·(v − S k)        S ← S + v' kᵀ        output = scale · S q
        with a gate for every channel of the key (Kimi Delta Attention): S ← S·diag(exp(gate)) first

    Shapes:
        query, key: (B, T, Hk, dk), or packed (N, Hk, dk) or (1, N, Hk, dk) with `cu_seqlens`; bf16, fp16 or fp32; normalised
          first with `is_qk_norm`
        value, output: (…, Hv, dv), the dtype of query; Hv is a multiple of Hk. If query has more heads than value, a multiple
          of Hv, key has Hv heads, and Hv in the shapes of output, gates and states means query's head count
        beta, gate: (…, Hv), bf16, fp16 or fp32: the gate is the logarithm of each token's decay; None for 1 and for 0. A gate
          (…, Hv, dk) has a value for every channel of the key
        state: (B, Hv, dv, dk), fp32, bf16, fp16 or int8, not changed; None for zeros; a [K, V] state is given as its transposed
          view
        state_scales: (B, Hv, dv, dk / 32), fp32, of an int8 state, as in `fused_decode`; final_scales: those of an int8
          final_state, written with it
        new_state: (B, Hv, dv, dk); with SPEC_VERIFY (B, T, Hv, dv, dk) or packed (N, Hv, dv, dk); the state's dtype, or fp32
          without a state or with one of int8; or the argument `final_state`, of any of these dtypes and any strides
        has_initial_state: (B,), bool: a sequence with False starts from zeros, and its state is not read
        cu_seqlens: (B + 1,), int32 or int64: where packed sequences begin, and where the last one ends
        num_accepted_tokens: (B,), int32 or int64: with SPEC_VERIFY, the step of `state` that a sequence starts from

    Parameters:
        inference_mode: an `InferenceMode`, which states are returned
        is_qk_norm: whether each row of q and k is divided by √(Σ x² + 1e-6)
        scale: dk^-0.5 if None
        A_log, dt_bias: (Hv,), fp32, bf16 or fp16: with A_log the gate is raw, `a` of `fused_gdn_gating`; dt_bias None is 0, and
          with a gate of channels it is (Hv, dk) or flat
        lower_bound: below 0: a gate of channels is raw, the logarithm of its decay lower_bound·σ(exp(A_log)·(gate + dt_bias));
          without A_log its exponential is 1; None: no bound
        gate_is_linear: whether the gate is the decay itself, where 0 is a reset, and not its logarithm
        beta_is_logit: whether beta is a logit, whose sigmoid is used
        allow_negative_eigenvalues: whether twice the logit's sigmoid is used
        final_state: where the last state is written; None allocates it. Not with SPEC_VERIFY
        out: where the output is written; None allocates it

    PREFILL and DECODE return the state after the last token, SPEC_VERIFY the state after every token. With SPEC_VERIFY, `state`
    may be what an earlier verify returned, (B, S, Hv, dv, dk); sequence b then starts from step
    max(num_accepted_tokens[b], 1) − 1, at most S − 1. With one state per sequence, the counts have no effect.

    Where both `state` and `final_state` are int8, they are read and written as they are; otherwise int8 states pass through an
    fp32 workspace of a state for each sequence.

    Edge cases:
        A gate of −∞ is an exact reset (docs/numerics.md); of a channel, for its column of the state.
        A sequence of no tokens returns the state it starts from.

    Example:
        >>> query, key, value = torch.randn(3, 1, 5, 2, 16).bfloat16()  # one sequence, 5 tokens, 2 heads
        >>> beta, gate = torch.rand(1, 5, 2), -torch.rand(1, 5, 2)
        >>> output, state = gdn_cuda.recurrent_forward(query, key, value, None, beta, gate)
        >>> output.shape, state.shape
        (torch.Size([1, 5, 2, 16]), torch.Size([1, 2, 16, 16]))
    """


def _decode_reference(x: Any) -> Tensor:
    return reference.fused_decode(x) if x.replay is None else reference_by_replay(x)


@operator(reference=_decode_reference, out=_output, instead=("replay", decode_by_replay, ring_decode))
def fused_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    state_pool: Tensor,
    state_indices: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    null_slot: int | None = None,
    step_states: Tensor | None = None,
    step_slots: Tensor | None = None,
    parents: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    write_indices: Tensor | None = None,
    update_state: bool = True,
    scale: float | None = None,
    use_qk_l2norm: bool = True,
    allow_negative_eigenvalues: bool = False,
    lower_bound: float | None = None,
    state_scales: Tensor | None = None,
    step_scales: Tensor | None = None,
    replay: ReplayBuffers | RingBuffers | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The serving step in one launch: l2 norm, gates, recurrence, states of a pool updated in place. Returns the output.

    Formula:
        beta, gate = fused_gdn_gating(A_log, dt_bias, a, b);  q, k = query, key, each divided by √(Σ x² + 1e-6)
        S ← exp(gate)·S        v' = beta·(v − S k)        S ← S + v' kᵀ        output = scale · S q
        with a gate for every channel of the key (Kimi Delta Attention): S ← S·diag(exp(gate)) first

    Shapes:
        query, key, value: as in `recurrent_forward`
        a, b: (…, Hv); A_log, dt_bias: (Hv,); as in `fused_gdn_gating`; dt_bias None is 0. With (…, Hv, dk), a has a value for
          every channel of the key; then dt_bias is (Hv, dk), flat, or None, and without A_log and lower_bound a is the
          logarithm of the decay
        state_pool: (slots, Hv, dv, dk), fp32, bf16 or fp16, of any strides: fastest where each slot is contiguous; or int8,
          each slot contiguous, dk a multiple of 32
        state_scales: (slots, Hv, dv, dk / 32), fp32, each slot contiguous, if the pool is int8 (`convert_states`); written too
        state_indices: (B,), or (B, T) for speculative verify; int32 or int64; None: sequence n has slot n
        num_accepted_tokens, step_slots: (B,), int32 or int64
        step_states: (rows, S, Hv, dv, dk), the pool's dtype; step_scales: (rows, S, Hv, dv, dk / 32), fp32, if that is int8
        cu_seqlens, has_initial_state: as in `recurrent_forward`
        write_indices: (B,), int32 or int64
        parents: (B, T), int32 or int64, T up to 64

    Parameters:
        null_slot: a slot that means padding, as negative ones do; None: only negative ones do
        update_state: False: the pool is only read
        scale: dk^-0.5 if None
        use_qk_l2norm: False: q and k are used as they are
        allow_negative_eigenvalues: whether beta is twice the sigmoid
        lower_bound: below 0, for a gate of every channel: gate = lower_bound·σ(exp(A_log)·(a + dt_bias)), in which A_log
          None makes the exponential 1
        replay: buffers from `replay_buffers`, for speculative verify that writes one state per call, or from `ring_buffers`,
          for a ring of tokens whose states are written when it is full
        out: where the output is written; None allocates it

    Sequence n reads slot `state_indices[n]` and writes it back, or slot `write_indices[n]` instead.
    For speculative verify, give `state_indices` (B, T) and `num_accepted_tokens`: the call reads slot
    state_indices[n, max(accepted, 1) − 1] and writes the state after token t to slot state_indices[n, t].
    Or give `step_states` and `step_slots`: the state after token t goes to step_states[step_slots[n], t], and the pool is
    written only with `write_indices`, the last state. With `parents` too, the tokens are a tree: token t continues from the
    state after token parents[n, t], an earlier token, or from the slot if that is −1. Or give `replay`, buffers from
    `replay_buffers`: the call stores its tokens there, and the next call applies the accepted ones, so that one state is
    written per call (`replay_decode`). With buffers from `ring_buffers` states are read in every call and written when the
    ring is full (`ring_decode`).

    An int8 state is scale · code, with a scale for every 32 columns of a row (`convert_states`). The call computes in fp32, and
    rounds states where it writes them, with new scales; docs/numerics.md says what that loses.

    Safe under CUDA-graph capture once its kernel is loaded (`gdn_cuda.warmup`); a replay reads the indices' current values.

    Edge cases:
        A gate of −∞ is an exact reset, of a channel for its column of the state.
        An int8 state saturates where it is infinite, is 0 where its scale is 0, and a NaN of it spreads to its 32 columns
          (`convert_states`).
        A slot to read that is negative or equal to `null_slot` skips the sequence: its output is zero, and no slot is read or
        written. A slot to write that is negative or equal to `null_slot` is not written.
        A slot past the pool raises IndexError on CPU tensors. On a GPU, where the host cannot check it without waiting, nothing
        is read or written for it, and the output of the sequence is NaN.
        Two sequences on one slot race, also if one only reads it and the other writes it.
        A sequence of no tokens writes the state it starts from, as in `chunked_forward`.
        A token has an output of NaN, and no state is stored for it, if its parent is itself, a later token, below −1, or a
        token without a state. The state after a parent that is not the token computed before is read from step_states, where it
        was rounded, so a sequence with a negative row in step_slots cannot branch.

    Example:
        >>> query, key, value = torch.randn(3, 2, 1, 4, 16).bfloat16()  # two sequences, one token, 4 heads
        >>> a, b = torch.randn(2, 2, 1, 4).bfloat16()
        >>> pool, slots = torch.zeros(8, 4, 16, 16), torch.tensor([5, -1])  # the second is a padding row
        >>> output = gdn_cuda.fused_decode(query, key, value, a, b, torch.zeros(4), torch.zeros(4), pool, slots)
        >>> output.shape, bool(output[1].any()), bool(pool[5].any()), bool(pool[0].any())
        (torch.Size([2, 1, 4, 16]), False, True, False)
    """


class _ChunkedOptions(TypedDict, total=False):
    """The keyword arguments of chunked_forward that do not change what it returns."""

    scale: float | None
    use_qk_l2norm: bool
    state_dtype: torch.dtype | None
    state_indices: Tensor | None
    deterministic: bool
    A_log: Tensor | None
    dt_bias: Tensor | None
    beta_is_logit: bool
    allow_negative_eigenvalues: bool
    gate_is_linear: bool
    lower_bound: float | None
    has_initial_state: Tensor | None
    write_indices: Tensor | None
    update_state: bool
    final_state: Tensor | None
    checkpoints: Tensor | None
    states_before: Tensor | None
    state_scales: Tensor | None
    workspace: int | None
    forward: Literal["chunked", "recurrent"]
    out: Tensor | None


@overload
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    chunk_indices: Tensor | None = ...,
    cu_chunks: Tensor | None = ...,
    *,
    output_final_state: Literal[True] = ...,
    checkpoint_every: Literal[0] = ...,
    **options: Unpack[_ChunkedOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    chunk_indices: Tensor | None = ...,
    cu_chunks: Tensor | None = ...,
    *,
    output_final_state: bool = ...,
    checkpoint_every: Literal[0] = ...,
    **options: Unpack[_ChunkedOptions],
) -> tuple[Tensor, Tensor | None]: ...
@overload
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    chunk_indices: Tensor | None = ...,
    cu_chunks: Tensor | None = ...,
    *,
    output_final_state: bool = ...,
    checkpoint_every: int,
    **options: Unpack[_ChunkedOptions],
) -> tuple[Tensor, Tensor | None, Tensor]: ...
@overload
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    chunk_indices: Tensor | None = ...,
    cu_chunks: Tensor | None = ...,
    *,
    output_final_state: bool = ...,
    checkpoint_offsets: Tensor,
    **options: Unpack[_ChunkedOptions],
) -> tuple[Tensor, Tensor | None, Tensor]: ...
@operator(
    reference=reference.chunked_forward,
    shapes=_chunked_shapes,
    cpu=_chunked_on_cpu,
    out=_output,
    variant=("state_indices", "chunked_forward_pool"),
    before=_check_chunked,
    results=_chunked_results,
    instead=("forward", with_gradients, with_gradients),
    with_gradients=with_gradients,
)
def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
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
    checkpoint_offsets: Tensor | None = None,
    deterministic: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    allow_negative_eigenvalues: bool = False,
    gate_is_linear: bool = False,
    lower_bound: float | None = None,
    has_initial_state: Tensor | None = None,
    write_indices: Tensor | None = None,
    update_state: bool = True,
    final_state: Tensor | None = None,
    checkpoints: Tensor | None = None,
    states_before: Tensor | None = None,
    state_scales: Tensor | None = None,
    workspace: int | None = None,
    forward: str = "chunked",
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    """Prefill: returns `(output, final_state)`, and with `checkpoint_every` or `checkpoint_offsets` a third, the checkpoints.

    Formula:
        S ← exp(gate)·S        v' = beta·(v − S k)        S ← S + v' kᵀ        output = scale · S q
        64 tokens at once, with T = (I + A)⁻¹, A_ij = beta_i (k_i·k_j) exp(G_i − G_j) below the diagonal, G the sum of gates
        with a gate for every channel of the key (Kimi Delta Attention): S ← S·diag(exp(gate)) first

    Shapes:
        query, key, value, beta, gate, state, cu_seqlens, has_initial_state: as in `recurrent_forward`
        final_state: (B, Hv, dv, dk), of `state_dtype`, or without that the state's dtype, or without a state fp32; None with
          `output_final_state=False`. As an argument, of any float dtype and strides: it is written and returned
        state_indices: (B,), of any stride: `state` is a pool (slots, Hv, dv, dk), read and written in place as in
          `fused_decode`, and returned as final_state
        state_scales: (slots, Hv, dv, dk / 32), fp32, if the pool is int8, as in `fused_decode`; states pass through fp32
          memory then, 4 Hv dv dk bytes a sequence, and checkpoints that are allocated are fp32
        write_indices: (B,), int32 or int64: the slots to write, if they differ from state_indices
        states_before: (rows, Hv, dv, dk): the call writes the states before each block of `checkpoint_every` tokens to it,
          ceil(length / n) rows per sequence in sequence order, and 0 to the other rows
        checkpoint_offsets: (B,), int32 or int64, instead of checkpoint_every: row i of the checkpoints is the state after so
          many tokens of sequence i; 0: none, and the row is 0
        checkpoints: (rows, Hv, dv, dk): the states after every `checkpoint_every` tokens (a multiple of 64), in sequence order.
          T // n rows per padded sequence; N // n rows packed, of which sequence i fills the next length_i // n, and the rest
          are 0. As an argument, of any float dtype and strides: it is written, as many rows as it has, and returned; with
          checkpoint_offsets it has B
        chunk_indices, cu_chunks: (sequence, chunk) pairs and (B + 1,): accepted and not read, as the device computes them

    Parameters:
        scale, A_log, dt_bias, lower_bound, gate_is_linear, beta_is_logit, allow_negative_eigenvalues, out: as in
          `recurrent_forward`
        use_qk_l2norm: whether each row of q and k is divided by √(Σ x² + 1e-6)
        output_final_state: False: None is returned as final_state; a pool is written nevertheless
        state_dtype: fp32, bf16 or fp16, for final_state and checkpoints that are allocated; with a pool None, or its dtype
        checkpoint_every: a multiple of 64, the number of tokens between checkpoints; 0: no checkpoints
        update_state: False, with state_indices: the pool is only read
        workspace: bytes that the backward may use at a time; None: a GiB, or 4 with a gate for every channel on a Hopper
          with 64 GiB of memory, or what one key head needs if that is more
        forward: "recurrent" computes token by token, in the bits of `recurrent_forward`, and so on a GPU of `fused_decode` with
          an fp32 pool; the backward is the same. For training on numbers that decode has sampled
        deterministic: whether a sequence has the same bits whatever it is batched or packed with

    Chunks run on the tensor cores, from sm_80 on, if rows start on 16 bytes; other calls run token by token. Sequences are
    split into segments if unsplit heads would leave multiprocessors idle. The split depends on the batch and on its gates, so
    the result does too, within its rounding, if decay is so slow that states carry over between segments. With
    `deterministic=True` the split of a sequence depends on its length alone, and its bits do not depend on what it is batched
    or packed with; what that costs depends on the batch (docs/numerics.md). With a gate for every channel it splits none.

    Edge cases:
        A gate of −∞ is an exact reset (docs/numerics.md); of a channel, for its column of the state.
        A sequence of no tokens returns the state it starts from. Its slot in a pool becomes 0 if has_initial_state is False;
        its slot in write_indices becomes a copy of that state; no other slot is read or written.
        With checkpoint_offsets a chunk ends at the offset, and the next one begins there, so results are not those of a call
          without it to the last bit. An offset past its sequence is refused on CPU tensors; on a GPU its row is NaN. The row of
          a sequence that is skipped is 0, and NaN if its slot is past the pool.
        Query, key, value, beta, gate, state, A_log and dt_bias have gradients, of their own dtype. All are summed in a fixed
          order, so two runs have the same bits. Those that no input requires are not computed.
        With an input that requires a gradient, all results are new: `out`, `final_state`, `state_indices`, `write_indices`,
          `checkpoint_every`, `checkpoint_offsets` and their buffers are refused, as with forward="recurrent". Gradients of
          gradients, forward mode and torch.vmap are refused.
        A gate of −∞ has a gradient of 0, and none passes it. Where beta is 0, its own gradient is not, but value's is. Tokens
          of no sequence have gradients of 0; a sequence of no tokens hands the final state's gradient on to its state.
        NaN or infinities change gradients of their own sequence and key head alone, and those of A_log and dt_bias.
        float32 rows, rows with gaps and head dimensions that are no multiples of 8 have a backward in plain torch.
        A workspace too small for one key head raises in the backward, and says what it needs.

    Example:
        >>> query, key, value = torch.randn(3, 1, 130, 2, 16).bfloat16()  # one sequence, 130 tokens, 2 heads
        >>> beta, gate = torch.rand(1, 130, 2), -torch.rand(1, 130, 2)
        >>> inputs = query, key, value, beta, gate
        >>> output, state, checkpoints = gdn_cuda.chunked_forward(*inputs, use_qk_l2norm=True, checkpoint_every=64)
        >>> output.shape, state.shape, checkpoints.shape
        (torch.Size([1, 130, 2, 16]), torch.Size([1, 2, 16, 16]), torch.Size([2, 2, 16, 16]))
    """
