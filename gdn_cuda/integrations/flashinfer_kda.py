"""FlashInfer's `recurrent_kda`: prefill, decode and drafts of Kimi Delta Attention, from states that are updated in place; and
its `fused_kda_decode`, the step of a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..compat.fla_arguments import channel_gates
from ..runtime import package as gdn_cuda
from .counted import Declined
from .kda_layer import layer_step

PARAMETERS = (
    "q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False, "
    "use_qk_l2norm_in_kernel=True, use_gate_in_kernel=False, lower_bound=None, cu_seqlens=None, ssm_state_indices=None, "
    "num_spec_tokens=None, num_accepted_tokens=None, output=None, initial_state_source=None, initial_state_indices=None, "
    "beta_is_logit=False, seq_order=None, prefill_workspace=None, state_checkpoints=None, checkpoint_cu_starts=None, "
    "checkpoint_every_n_tokens=0, checkpoint_state_indices=None, *, disable_state_update=False, correction_cache=None, "
    "kg_cache=None, backend='auto'"
)
DECODE_PARAMETERS = (
    f"{PARAMETERS.partition(', seq_order')[0]}, *, disable_state_update=False, correction_cache=None, kg_cache=None, "
    "backend=None"
)
LAYER_PARAMETERS = (
    "x, weight, conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state, output_gate, norm_weight, "
    "lower_bound=-5.0, norm_eps=1e-05, output=None, *, backend='cute-dsl', state_indices_mode=None"
)


def fused_kda_decode(
    x: Tensor,
    weight: Tensor,
    conv_state: Tensor,
    raw_gate: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state_indices: Tensor,
    state: Tensor,
    output_gate: Tensor,
    norm_weight: Tensor,
    lower_bound: float | None = -5.0,
    norm_eps: float = 1e-5,
    output: Tensor | None = None,
    *,
    backend: str = "cute-dsl",
    state_indices_mode: str | None = None,
) -> Tensor:
    """A token of each row from the convolution to the gated norm, by one launch. What state_indices_mode says of the slots
    changes nothing."""
    if backend == "cake":
        raise Declined(f"backend {backend}")
    pools = (conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state)
    return layer_step(x, weight, None, *pools, output, lower_bound, output_gate, norm_weight, norm_eps)


def recurrent_kda(
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
    use_qk_l2norm_in_kernel: bool = True,
    use_gate_in_kernel: bool = False,
    lower_bound: float | None = None,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_spec_tokens: int | None = None,
    num_accepted_tokens: Tensor | None = None,
    output: Tensor | None = None,
    initial_state_source: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    beta_is_logit: bool = False,
    seq_order: Tensor | None = None,
    prefill_workspace: Any = None,
    state_checkpoints: Tensor | None = None,
    checkpoint_cu_starts: Tensor | None = None,
    checkpoint_every_n_tokens: int = 0,
    checkpoint_state_indices: Tensor | None = None,
    *,
    disable_state_update: bool = False,
    correction_cache: Tensor | None = None,
    kg_cache: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    """Tokens (B, T, …), or packed ones, from states (N, HV, V, K) or slots of a pool, where a negative slot is padding: output
    and, with output_final_state, the states. With num_spec_tokens drafts, which have a slot for the state after each token;
    with disable_state_update states are only read. Final states of slots are a copy, those of drafts the pool.
    `state_checkpoints` gets the states before every n tokens, a multiple of 64, and is returned third. seq_order and
    prefill_workspace change nothing."""
    if backend != "auto":
        raise Declined(f"backend {backend}")
    if correction_cache is not None or kg_cache is not None:
        raise Declined("caches of a verify are given")
    gates = _gates(q, v, A_log, dt_bias, lower_bound) if use_gate_in_kernel else {}
    options: dict[str, Any] = gates | {"scale": scale, "use_qk_l2norm": use_qk_l2norm_in_kernel, "out": output}
    if disable_state_update or num_spec_tokens is not None:
        frozen = disable_state_update and initial_state_source is not None
        pool, slots = (initial_state_source, initial_state_indices) if frozen else (initial_state, ssm_state_indices)
        if pool is None or checkpoint_every_n_tokens or (output_final_state and cu_seqlens is not None):
            raise Declined("drafts without a pool, or with checkpoints, or packed ones with a final state")
        if initial_state_source is not None and not disable_state_update:
            raise Declined("initial_state_source is given")
        if slots is None and not disable_state_update:
            slots = torch.arange(q.shape[0] * q.shape[1], device=q.device).view(q.shape[:2])
        options |= {
            "state_indices": slots,
            "num_accepted_tokens": num_accepted_tokens,
            "update_state": not disable_state_update,
        }
        return _steps(q, k, v, g, beta, beta_is_logit, pool, cu_seqlens, options), pool if output_final_state else None
    if initial_state_source is not None or num_accepted_tokens is not None:
        raise Declined("initial_state_source or num_accepted_tokens is given")
    if output_final_state and initial_state is None:
        raise Declined("a final state without an initial state")
    if initial_state is None and ssm_state_indices is not None:
        raise Declined("slots without a pool")
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if initial_state is not None:
        rows = torch.arange(sequences, device=q.device) if ssm_state_indices is None else ssm_state_indices
        options["state_indices"] = rows
        is_step = q.shape[1] == (1 if cu_seqlens is None else sequences)
        if is_step and not checkpoint_every_n_tokens:
            found = _steps(q, k, v, g, beta, beta_is_logit, initial_state, cu_seqlens, options)
            return found, _last(output_final_state, initial_state, ssm_state_indices)
    options |= {"beta_is_logit": beta_is_logit, "output_final_state": False}
    call = (q, k, v, beta, g, initial_state, cu_seqlens)
    if not checkpoint_every_n_tokens:
        found = gdn_cuda.chunked_forward(*call, **options)[0]
        return found, _last(output_final_state, initial_state, ssm_state_indices)
    if state_checkpoints is None or checkpoint_state_indices is not None:
        raise Declined("checkpoints without a tensor for them, or with rows of their own")
    options |= {"checkpoint_every": checkpoint_every_n_tokens, "states_before": state_checkpoints}
    options["checkpoints"] = state_checkpoints.new_empty(0, *state_checkpoints.shape[1:])
    found = gdn_cuda.chunked_forward(*call, **options)[0]
    return found, _last(output_final_state, initial_state, ssm_state_indices), state_checkpoints


def _last(wanted: bool, states: Tensor | None, slots: Tensor | None) -> Tensor | None:
    """The final states, of slots a copy."""
    if not wanted or states is None or slots is None:
        return states if wanted else None
    return states[slots.clamp(min=0).long()]


def _gates(q: Tensor, v: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None) -> dict[str, Any]:
    """FlashInfer's parameters of gates are those of query heads, which several value heads may read."""
    if A_log is None:
        raise Declined("use_gate_in_kernel is given without A_log")
    heads, groups = q.shape[2], v.shape[2] // max(q.shape[2], 1)
    if groups > 1:
        A_log = A_log.reshape(heads).repeat_interleave(groups)
        dt_bias = None if dt_bias is None else dt_bias.reshape(heads, -1).repeat_interleave(groups, 0)
    return channel_gates(A_log, dt_bias, lower_bound)


def _steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    beta: Tensor,
    beta_is_logit: bool,
    pool: Tensor,
    cu_seqlens: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Tokens or drafts by fused_decode, whose betas are logits: a beta is twice the sigmoid of the logit of its half."""
    if not beta_is_logit:
        beta, options = torch.logit(beta.float() / 2), options | {"allow_negative_eigenvalues": True}
    rows, out = (q, k, v, a, beta), options.pop("out")
    gates = {name: options.pop(name, None) for name in ("A_log", "dt_bias")}
    if cu_seqlens is None:
        return gdn_cuda.fused_decode(*rows, *gates.values(), pool, **options, out=out)
    packed, out_rows = (x.squeeze(0) for x in rows), None if out is None else out.squeeze(0)
    found = gdn_cuda.fused_decode(*packed, *gates.values(), pool, **options, cu_seqlens=cu_seqlens, out=out_rows)
    return found.unsqueeze(0) if out is None else out


def recurrent_kda_of_decode(*given: Any, backend: str | None = None, **options: Any) -> Any:
    """FlashInfer's older function of this name, for tokens and drafts."""
    return recurrent_kda(*given, backend=backend or "auto", **options)
