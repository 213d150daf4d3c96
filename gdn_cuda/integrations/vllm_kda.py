"""vLLM's layers of Kimi Delta Attention (Kimi K3, Kimi-Linear, GLM-5-Next): prompts, tokens and drafts.

Gates are raw, and betas are logits, except where a function says otherwise. Callers gather the initial states of prompts and
scatter the last ones. Slots of 0 and below are padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..compat.fla_arguments import channel_gates
from ..runtime import package as gdn_cuda
from .counted import Declined
from .kda_layer import layer_step
from .packed import split_qkv
from .vllm_conv import FUNCTIONS as CONVOLUTIONS
from .vllm_conv import NULL_BLOCK

# ---- Prompts


def chunk_from_logits(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw_g: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    g_bias: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    lower_bound: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    out: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Kimi's prompts; last states are fp32."""
    options: dict[str, Any] = channel_gates(A_log, g_bias, lower_bound)
    options |= {"scale": scale, "use_qk_l2norm": use_qk_l2norm_in_kernel, "state_dtype": torch.float32}
    options |= {"output_final_state": output_final_state, "out": out}
    return gdn_cuda.chunked_forward(q, k, v, raw_beta, raw_g, initial_state, cu_seqlens, beta_is_logit=True, **options)


def chunk_from_betas(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw_g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    g_bias: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float = -5.0,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """GLM's prompts, whose betas are no logits; last states are fp32."""
    options: dict[str, Any] = channel_gates(A_log, g_bias, lower_bound if safe_gate else None)
    options |= {"scale": scale, "use_qk_l2norm": use_qk_l2norm_in_kernel, "state_dtype": torch.float32}
    options["output_final_state"] = output_final_state
    return gdn_cuda.chunked_forward(q, k, v, beta, raw_g, initial_state, cu_seqlens, **options)


def _prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    gates: dict[str, Any],
    initial_state: Tensor,
    cu_seqlens: Tensor,
    out: Tensor,
    final_state: Tensor,
    checkpoint_state: Tensor | None,
    checkpoint_offsets: Tensor | None,
) -> None:
    """Prompts, whose output and last states are written, and the state of sequence i after its first checkpoint_offsets[i]
    tokens, if checkpoints are requested."""
    options: dict[str, Any] = gates | {"use_qk_l2norm": True, "beta_is_logit": True, "out": out, "final_state": final_state}
    if checkpoint_state is not None and checkpoint_offsets is not None:
        options |= {"checkpoint_offsets": checkpoint_offsets, "checkpoints": checkpoint_state}
    gdn_cuda.chunked_forward(q, k, v, beta, g, initial_state, cu_seqlens, **options)


def flashkda_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    out: Tensor,
    final_state: Tensor,
    workspace: Tensor,
    checkpoint_state: Tensor | None = None,
    checkpoint_offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Kimi K3's prompts where vLLM has chosen FlashKDA."""
    gates = channel_gates(A_log, dt_bias, lower_bound)
    states = (initial_state, cu_seqlens, out, final_state, checkpoint_state, checkpoint_offsets)
    _prefill(q, k, v, g, beta, gates, *states)
    return out, final_state


def flashkda_prefill_of_layer(
    layer: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    out: Tensor | None,
    checkpoint: Any = None,
    raw_qkv: Tensor | None = None,
    conv_state: Tensor | None = None,
    recurrent_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GLM's method. The layer's exporter stores the checkpoints."""
    out = torch.empty_like(v) if out is None else out
    final_state = torch.empty_like(initial_state)
    checkpoints = None if checkpoint is None else torch.empty_like(initial_state)
    offsets = None if checkpoint is None else checkpoint.checkpoint_offsets
    gates = channel_gates(layer.A_log, layer.dt_bias, layer.kda_lower_bound)
    _prefill(q, k, v, g, beta, gates, initial_state, cu_seqlens, out, final_state, checkpoints, offsets)
    if checkpoint is not None:
        pools = {"recurrent_checkpoint": checkpoints, "recurrent_state": recurrent_state}
        layer._checkpoint_exporter.export(checkpoint, raw_qkv=raw_qkv, conv_state=conv_state, cu_seqlens=cu_seqlens, **pools)
    return out, final_state


# ---- Tokens and drafts. Tables of slots and counts may have more rows than there are requests.


def _step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    gates: dict[str, Any],
    pool: Tensor,
    cu_seqlens: Tensor,
    slots: Tensor,
    num_accepted_tokens: Tensor | None,
    out: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Packed tokens (1, N, …): one of each request, or drafts, which have slots (requests, S)."""
    sequences = cu_seqlens.shape[0] - 1
    q, k, v, g, beta = (x.squeeze(0) for x in (q, k, v, g, beta))
    given: dict[str, Any] = gates | options | {"cu_seqlens": cu_seqlens, "null_slot": NULL_BLOCK}
    given["num_accepted_tokens"] = None if num_accepted_tokens is None else num_accepted_tokens[:sequences]
    given["out"] = None if out is None else out.squeeze(0)
    A_log, dt_bias = given.pop("A_log"), given.pop("dt_bias")
    output = gdn_cuda.fused_decode(q, k, v, g, beta, A_log, dt_bias, pool, slots[:sequences], **given)
    return output.unsqueeze(0) if out is None else out, pool


def recurrent_from_logits(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw_g: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    ssm_state_indices: Tensor,
    num_accepted_tokens: Tensor | None = None,
    out: Tensor | None = None,
    fuse_gate: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Kimi's drafts and tokens."""
    gates = channel_gates(A_log, dt_bias, lower_bound)
    states = (initial_state, cu_seqlens, ssm_state_indices, num_accepted_tokens, out)
    return _step(q, k, v, raw_g, raw_beta, gates, *states)


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    use_qk_l2norm_in_kernel: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    out: Tensor | None = None,
    sigmoid_beta: bool = False,
    a_log: Tensor | None = None,
    g_bias: Tensor | None = None,
    compute_gate: bool = False,
    lower_bound: float | None = -5.0,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """GLM's drafts and tokens. With compute_gate the gate is raw and has a bound."""
    if not sigmoid_beta or beta is None:
        raise Declined("beta is no logit")
    if not inplace_final_state or initial_state is None or cu_seqlens is None or ssm_state_indices is None:
        raise Declined("no packed tokens of slots of a pool")
    gates = channel_gates(a_log, g_bias, lower_bound) if compute_gate else channel_gates(None, None, None)
    states = (initial_state, cu_seqlens, ssm_state_indices, num_accepted_tokens, out)
    return _step(q, k, v, g, beta, gates, *states, scale=scale, use_qk_l2norm=use_qk_l2norm_in_kernel)


def packed_decode(
    mixed_qkv: Tensor,
    raw_g: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float | None,
    initial_state: Tensor,
    state_indices: Tensor,
    scale: float | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A token of each request, (B, 2·H·K + H·V), with gates (1, B, H, K) and outputs (1, B, H, V)."""
    q, k, v = split_qkv(mixed_qkv, initial_state)
    options: dict[str, Any] = {"null_slot": NULL_BLOCK, "scale": scale, "lower_bound": lower_bound}
    options["out"] = None if out is None else out.transpose(0, 1)
    gates = channel_gates(A_log, dt_bias, lower_bound)
    given = (raw_g.transpose(0, 1), raw_beta.transpose(0, 1), gates["A_log"], gates["dt_bias"])
    output = gdn_cuda.fused_decode(q, k, v, *given, initial_state, state_indices, **options)
    return output.transpose(0, 1) if out is None else out, initial_state


def decode_layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    raw_g: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state_indices: Tensor,
    state: Tensor,
    out: Tensor | None = None,
    lower_bound: float | None = None,
    output_gate: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-5,
) -> Tensor:
    """A token of each request from the convolution to the gated norm."""
    pools = (conv_state, raw_g, raw_beta, A_log, dt_bias, state_indices, state)
    return layer_step(x, weight, bias, *pools, out, lower_bound, output_gate, norm_weight, norm_eps)


# ---- What was verified: by module, and the name that is counted

Target = tuple[str, Callable[..., Any]]
KIMI = "vllm.models.kimi_k3.nvidia.ops.third_party.kda"  # layers import the names from here at every forward
K3 = "vllm.models.kimi_k3.nvidia.kda"
GLM = "vllm.models.glm5next.common.kda"
LINEAR = "vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn"  # Kimi-Linear's layer
OPS = "vllm._custom_ops"
PARTS = {KIMI: "kda", K3: "kda_k3", GLM: "kda_glm", LINEAR: "kda_linear"}
FUNCTIONS: dict[str, dict[str, Target]] = {
    KIMI: {
        "chunk_kda_with_fused_gate": (
            "q, k, v, raw_g, raw_beta, A_log, g_bias, scale=None, initial_state=None, output_final_state=False, "
            "lower_bound=None, use_qk_l2norm_in_kernel=False, cu_seqlens=None, out=None, **kwargs",
            chunk_from_logits,
        ),
        "fused_recurrent_kda": (
            "q, k, v, raw_g, raw_beta, A_log, dt_bias, lower_bound, initial_state, cu_seqlens, ssm_state_indices, "
            "num_accepted_tokens=None, out=None, fuse_gate=None",
            recurrent_from_logits,
        ),
        "fused_recurrent_kda_packed_decode": (
            "mixed_qkv, raw_g, raw_beta, A_log, dt_bias, lower_bound, initial_state, state_indices, scale=None, out=None",
            packed_decode,
        ),
    },
    K3: {
        "_flashkda_prefill": (
            "q, k, v, g, beta, A_log, dt_bias, lower_bound, initial_state, cu_seqlens, out, final_state, workspace, "
            "checkpoint_state=None, checkpoint_offsets=None",
            flashkda_prefill,
        ),
        **CONVOLUTIONS,
    },
    GLM: {
        "chunk_kda_with_fused_gate": (
            "q, k, v, raw_g, beta, A_log, g_bias, scale=None, initial_state=None, output_final_state=False, "
            "use_qk_l2norm_in_kernel=False, cu_seqlens=None, safe_gate=False, lower_bound=-5.0, **kwargs",
            chunk_from_betas,
        ),
        "fused_recurrent_kda": (
            "q, k, v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True, use_qk_l2norm_in_kernel=True, "
            "cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, out=None, sigmoid_beta=False, a_log=None, "
            "g_bias=None, compute_gate=False, lower_bound=-5.0, **kwargs",
            recurrent,
        ),
        **CONVOLUTIONS,
    },
    LINEAR: CONVOLUTIONS,
}
DECODE = f"{OPS}:fused_kda_decode"  # K3's layer calls it
GLM_PREFILL = f"{GLM}:Glm5NextLinearAttention._flashkda_prefill"
TARGETS = {
    PARTS[module]: {f"{module}:{name}": expected for name, (expected, _) in functions.items()}
    for module, functions in FUNCTIONS.items()
}
TARGETS[PARTS[GLM]][GLM_PREFILL] = (
    "self, q, k, v, g, beta, initial_state, cu_seqlens, out, checkpoint=None, raw_qkv=None, conv_state=None, "
    "recurrent_state=None"
)
TARGETS[PARTS[K3]][DECODE] = (
    "x, weight, bias, conv_state, raw_g, raw_beta, A_log, dt_bias, state_indices, state, out=None, lower_bound=None, "
    "output_gate=None, norm_weight=None, norm_eps=1e-05"
)
OPTIONAL = frozenset([DECODE])  # not in every build
