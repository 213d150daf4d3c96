"""The functions that FLA's layers call besides the recurrence: the short convolution of (B, T, D), its step, and the gated
norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..compat.fla_layer import conv_by_token
from ..operators.autograd import needs_gradients
from ..runtime import package as gdn_cuda
from .counted import Declined, decline_gradients

Function = tuple[str, Any]  # parameters, and ours


def _conv(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    activation: str | None = None,
    backend: str | None = "triton",
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The convolution; states are (N, D, W), the last W inputs."""
    if residual is not None or cp_context is not None or others.get("seq_idx") is not None:
        raise Declined("residual, cp_context or seq_idx is given")
    if x.dim() != 3 or weight is None:
        raise Declined("x has another rank than 3, or there is no weight")
    states = initial_state is not None or output_final_state
    if not states or needs_gradients(x, weight, bias, initial_state):
        return conv_by_token(x, weight, bias, initial_state, bool(output_final_state), activation, cu_seqlens)
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = x.new_zeros(sequences, *weight.shape) if initial_state is None else initial_state.clone()
    has_state = torch.ones(sequences, dtype=torch.int32, device=x.device)
    output = gdn_cuda.causal_conv1d(
        x.mT, weight, bias, activation=activation, cu_seqlens=cu_seqlens, conv_state=state, has_initial_state=has_state
    )
    return output.mT, state if output_final_state else None


def _conv_step(
    x: Tensor,
    cache: Tensor,
    residual: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """A step: one token of every sequence, (N, D), (1, N, D) or (N, 1, D)."""
    if residual is not None or weight is None:
        raise Declined("residual is given, or no weight")
    decline_gradients(x, cache, weight, bias)
    tokens = x.reshape(-1, weight.shape[0])
    return gdn_cuda.causal_conv1d_update(tokens, cache, weight, bias, activation).view(x.shape), cache


def _norm(
    x: Tensor,
    g: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str = "swish",
    residual: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Tensor:
    if bias is not None or residual is not None or prenorm:
        raise Declined("bias, residual or prenorm is given")
    return gdn_cuda.rms_norm_gated(x, g, weight, eps, activation)


FUNCTIONS: dict[str, Function] = {
    "fla.modules.causal_conv1d.ops:causal_conv1d": (
        "x, weight=None, bias=None, residual=None, initial_state=None, output_final_state=False, activation=None, "
        "backend='triton', cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, **kwargs",
        _conv,
    ),
    "fla.modules.causal_conv1d.ops:causal_conv1d_update": (
        "x, cache, residual=None, weight=None, bias=None, activation=None",
        _conv_step,
    ),
    "fla.modules.norm.fused_norm_gate:rms_norm_gated": (
        "x, g, weight, bias, activation='swish', residual=None, prenorm=False, residual_in_fp32=False, eps=1e-06",
        _norm,
    ),
}
