"""FLA's functions of Kimi Delta Attention, as in fla-core 0.6.0; `compat.fla` has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..gdn import recurrent_forward
from ..gdn.reference import recurrent
from ..gdn.reference_operators import channel_log_decay
from ..layers import fused_kda_gating
from ..operators.autograd import needs_gradients
from ..operators.caller import in_words_of_caller
from ..operators.dtypes import state_dtype
from ..operators.schema import refuse
from .fla_arguments import betas, layout, states

_in_words_of_fla = in_words_of_caller(query="q", key="k", value="v", gate="g", state="initial_state", a="g")


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
    if g.dim() != v.dim():
        refuse(function, "g", "(B, T, HV, K)", tuple(g.shape))
    state = states(initial_state, v_first)
    gates: dict[str, Any] = betas(function, v, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if use_gate_in_kernel:
        if A_log is None and lower_bound is None:
            refuse(function, "A_log", "a tensor with use_gate_in_kernel and without lower_bound", None)
        gates |= _parameters(g, A_log, dt_bias) | {"lower_bound": lower_bound}
    output, after = recurrent_forward(
        q,
        k,
        v,
        None if state is None else state.to(state_dtype(v)),
        gate=g,
        cu_seqlens=cu_seqlens,
        scale=scale,
        is_qk_norm=use_qk_l2norm_in_kernel,
        **gates,
    )
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
    given = _parameters(g, A_log, dt_bias)
    if needs_gradients(g, A_log, dt_bias):
        if A_log is None and lower_bound is None:
            refuse("fused_kda_gate", "A_log", "a tensor without lower_bound", None)
        return channel_log_decay(given["A_log"], given["dt_bias"], g, lower_bound).to(output_dtype)
    rows = g.reshape(-1, *g.shape[-2:])
    return fused_kda_gating(given["A_log"], given["dt_bias"], rows, lower_bound).view(g.shape).to(output_dtype)


def _parameters(g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None) -> dict[str, Tensor | None]:
    """A_log and dt_bias of any shape, as FLA takes them."""
    return {
        "A_log": None if A_log is None else A_log.reshape(-1),
        "dt_bias": dt_bias if dt_bias is None or dt_bias.shape == g.shape[-2:] else dt_bias.reshape(-1),
    }


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
