"""The step of a layer of Kimi Delta Attention in one launch, in the arguments that vLLM's and FlashInfer's `fused_kda_decode`
have in common."""

from __future__ import annotations

from torch import Tensor

from ..compat.fla_arguments import channel_gates
from ..runtime import package as gdn_cuda
from .counted import Declined


def layer_step(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    raw_gate: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state_indices: Tensor,
    state: Tensor,
    out: Tensor | None,
    lower_bound: float | None,
    output_gate: Tensor | None,
    norm_weight: Tensor | None,
    norm_eps: float,
) -> Tensor:
    """A token of each row of x, (B, 3·H·K), with weights (3, W, H·K), gates (1, B, H, K) and an output of that shape. Slots of
    0 and below are padding."""
    rows = x.shape[0]
    if raw_gate.dim() != 4 or raw_beta.dim() != 3:
        raise Declined("gates that are not (1, B, H, K), or betas that are not (1, B, H)")
    if out is not None and not out.is_contiguous():
        raise Declined("an output with gaps")
    result = gdn_cuda.kda_decode_layer(
        x,
        raw_gate.squeeze(0),
        raw_beta.squeeze(0),
        conv_weight=weight,
        conv_bias=bias,
        **channel_gates(A_log, dt_bias, lower_bound),
        z=None if output_gate is None else output_gate.reshape(rows, -1),
        norm_weight=norm_weight,
        norm_eps=norm_eps,
        conv_pool=conv_state,
        state_pool=state,
        state_indices=state_indices,
        null_slot=0,
        out=None if out is None else out.view(rows, -1),
    )
    return result.view(1, rows, *state.shape[1:3]) if out is None else out
