"""FLA's functions of Kimi Delta Attention, as in fla-core 0.6.0; `compat.fla` has them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..gdn import chunked_forward, recurrent_forward
from ..gdn.reference import recurrent
from ..gdn.reference_operators import channel_log_decay
from ..layers import fused_kda_gating
from ..operators.autograd import needs_gradients
from ..operators.caller import in_words_of_caller
from ..operators.dtypes import state_dtype
from ..operators.schema import refuse
from .fla_arguments import betas, channel_gates, layout, states, widened
from .fla_chunked import chunked

_in_words_of_fla = in_words_of_caller(
    query="q",
    key="k",
    value="v",
    gate="g",
    state="initial_state",
    a="g",
    use_qk_l2norm="use_qk_l2norm_in_kernel",
    checkpoint_every="return_intermediate_states",
)
_CHUNK = 64


def _arguments(
    function: str,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    is_logit: bool,
    twice: bool,
    is_raw: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
) -> dict[str, Any]:
    """The gates and betas of a call of ours. Without `is_raw` the parameters of gates are ignored, as in FLA."""
    if g.dim() != v.dim():
        refuse(function, "g", "(B, T, HV, K)", tuple(g.shape))
    given = betas(function, v, beta, is_logit, twice) | {"gate": g}
    if not is_raw:
        return given
    if A_log is None and lower_bound is None:
        refuse(function, "A_log", "a tensor with use_gate_in_kernel and without lower_bound", None)
    return given | channel_gates(A_log, dt_bias, lower_bound)


@_in_words_of_fla
def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = _CHUNK,
    **others: Any,
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    """`gdn_cuda.chunked_forward` with a gate for every channel: returns the output and, with `output_final_state`, the final
    state, which is fp32 at least; with `return_intermediate_states` also the states before every 64 tokens of each sequence,
    (B, ⌈T / 64⌉, HV, K, V) or packed (1, rows, HV, K, V), in k's dtype.

    g, A_log, dt_bias, lower_bound and states are as in `fused_recurrent_kda`. The gate is exact whatever `safe_gate` says;
    `chunk_size` (32 or 64), `disable_recompute`, `cu_seqlens_cpu`, `use_graph` and `max_num_seqs` change nothing either, but
    states in between are those of chunks of 64, and want a count on the host: of `cu_seqlens_cpu`, or `cu_seqlens` is read.
    States in between are refused where an input requires a gradient. q, k, v, g, beta, initial_state, A_log and dt_bias have
    gradients.

    `cp_context` is as in `chunk_gated_delta_rule`, initial and final states too; A_log and dt_bias then have the gradients of
    this rank's tokens, whose sum over ranks is the gradient, as in FLA. `use_graph` and states in between are refused with it.
    """
    function = "chunk_kda"
    v_first = layout(function, state_v_first, others)
    if chunk_size not in (32, _CHUNK):
        refuse(function, "chunk_size", f"32 or {_CHUNK}", chunk_size)
    if cp_context is not None:
        if return_intermediate_states:
            refuse(function, "return_intermediate_states", "False with cp_context", True)
        if use_graph:  # FLA's may change between replays
            refuse(function, "use_graph", "False with cp_context, whose integers are on the host", True)
    gates = (use_beta_sigmoid_in_kernel, allow_neg_eigval, use_gate_in_kernel, A_log, dt_bias, lower_bound)
    call = _arguments(function, v, g, beta, *gates) | {"cu_seqlens": cu_seqlens, "scale": scale}
    call |= {"state": states(initial_state, v_first), "use_qk_l2norm": use_qk_l2norm_in_kernel}
    call["output_final_state"] = bool(output_final_state)
    if not return_intermediate_states:
        output, after = chunked(function, q, k, v, call, cp_context)
        return output, states(after, v_first)
    if chunk_size != _CHUNK or use_graph:
        reason = "False with chunk_size 32" if chunk_size != _CHUNK else "False with use_graph, as their count is one of values"
        refuse(function, "return_intermediate_states", reason, True)
    if needs_gradients(q, k, v, *(x for x in call.values() if isinstance(x, Tensor))):
        refuse(function, "return_intermediate_states", "False where an input requires a gradient", True)
    rows = _chunks(q, cu_seqlens, cu_seqlens_cpu)
    before = k.new_empty(math.prod(rows), v.shape[2], v.shape[3], k.shape[3])
    unused = before[:0]  # the states after every 64 tokens
    options: dict[str, Any] = {"checkpoint_every": _CHUNK, "checkpoints": unused, "states_before": before}
    options["state_dtype"] = state_dtype(v)
    output, after, _ = chunked_forward(q, k, v, **call, **options)
    between = before.view(*rows, *before.shape[1:])
    return output, states(after, v_first), between if v_first else between.mT


def _chunks(q: Tensor, cu_seqlens: Tensor | None, cu_seqlens_cpu: Tensor | None) -> tuple[int, int]:
    """(B, chunks of a sequence), or (1, those of all packed ones)."""
    if cu_seqlens is None:
        return q.shape[0], -(-q.shape[1] // _CHUNK)
    offsets = cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu
    return 1, int(((offsets.diff() + _CHUNK - 1) // _CHUNK).sum())


@_in_words_of_fla
def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """`gdn_cuda.recurrent_forward` with a gate for every channel: returns the output and, with `output_final_state`, the final
    state, which is fp32 at least. As in FLA, the recurrence has no backward.

    g is (B, T, HV, K), the logarithms of decays, or raw with `use_gate_in_kernel`: then A_log (HV values) or `lower_bound` is
    needed; dt_bias, HV · K values, None is 0. Without it A_log, dt_bias and lower_bound are ignored, as in FLA. States are
    (N, HV, K, V) views of memory with K contiguous, or (N, HV, V, K) with `state_v_first`. `transpose_state_layout` is
    `state_v_first` with a DeprecationWarning; `head_first` is refused; other keywords are ignored, as in FLA.
    """
    function = "fused_recurrent_kda"
    v_first = layout(function, state_v_first, others)
    gates = (use_beta_sigmoid_in_kernel, allow_neg_eigval, use_gate_in_kernel, A_log, dt_bias, lower_bound)
    call = _arguments(function, v, g, beta, *gates) | {"cu_seqlens": cu_seqlens, "scale": scale}
    state = states(initial_state, v_first)
    call |= {"state": widened(function, state, v), "is_qk_norm": use_qk_l2norm_in_kernel}
    output, after = recurrent_forward(q, k, v, **call)
    return output, states(after, v_first) if output_final_state else None


@_in_words_of_fla
def fused_kda_gate(
    g: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """`gdn_cuda.fused_kda_gating` for g (..., H, K), in `output_dtype`. A_log has H values, dt_bias H · K, or they are None.

    Where an input requires a gradient, it is computed in plain torch, and has gradients of g, A_log and dt_bias.
    """
    given = channel_gates(A_log, dt_bias, lower_bound)
    if needs_gradients(g, A_log, dt_bias):
        if A_log is None and lower_bound is None:
            refuse("fused_kda_gate", "A_log", "a tensor without lower_bound", None)
        return channel_log_decay(given["A_log"], given["dt_bias"], g, lower_bound).to(output_dtype)
    rows = g.reshape(-1, *g.shape[-2:])
    return fused_kda_gating(given["A_log"], given["dt_bias"], rows, lower_bound).view(g.shape).to(output_dtype)


@_in_words_of_fla
def naive_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The recurrence in plain torch, with gradients: the output in v's dtype, a state (B, HV, K, V) in fp32 at least."""
    output, state, _ = recurrent(q, k, v, beta, g, states(initial_state, False), scale=scale)
    return output.to(v.dtype), states(state, False) if output_final_state else None
