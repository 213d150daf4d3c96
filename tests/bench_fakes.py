"""Fakes of the peers: their documented signatures, layouts and requirements, computed by our reference."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes imports of the peers return the fakes."""
    operators = {
        "fla.ops.gated_delta_rule": (fused_recurrent_gated_delta_rule, chunk_gated_delta_rule),
        "flash_qla": (chunk_gated_delta_rule,),
        "flashinfer.gdn_prefill": (flashinfer_chunk_gated_delta_rule,),
        "flashinfer.gdn_decode": (gated_delta_rule_decode_pretranspose,),
        "mamba_ssm.ops.selective_scan_interface": (selective_scan_fn,),
        "mamba_ssm.ops.triton.selective_state_update": (selective_state_update,),
    }
    for name, functions in operators.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        for function in functions:
            setattr(sys.modules[name], function.__name__.removeprefix("flashinfer_"), function)


def hide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes imports of the peers fail."""
    for name in ("fla", "flash_qla", "flashinfer", "mamba_ssm", "scipy.linalg"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith(("fla.", "flash_qla.", "flashinfer.", "mamba_ssm."))]:
        monkeypatch.delitem(sys.modules, name)


def require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


# ---- FLA and FlashQLA: (B, T, H, d), packed as a batch of one, states (N, HV, K, V), g the logarithm of the decay


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    require(initial_state is not None and output_final_state, "a prefill with states is measured")
    state = initial_state.transpose(-1, -2).contiguous()
    norms = {"use_qk_l2norm": use_qk_l2norm_in_kernel}
    if cu_seqlens is None:
        out, final_state = gdn_cuda.chunked_forward(q, k, v, beta, g, state, **norms)
    else:
        require(q.shape[0] == 1 and cu_seqlens.dtype == torch.int64, "packed: a batch of one, cu_seqlens a LongTensor")
        one, final_state = gdn_cuda.chunked_forward(q[0], k[0], v[0], beta[0], g[0], state, cu_seqlens, **norms)
        out = one.unsqueeze(0)
    return out, final_state.transpose(-1, -2)


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    require(initial_state is not None and output_final_state, "a step with states is measured")
    if use_gate_in_kernel:
        g = -A_log.exp() * torch.nn.functional.softplus(g.float() + dt_bias)
    if use_beta_sigmoid_in_kernel:
        beta = beta.float().sigmoid()
    state = initial_state.transpose(-1, -2).contiguous()
    out, final_state = gdn_cuda.recurrent_forward(q, k, v, state, beta, g, is_qk_norm=use_qk_l2norm_in_kernel)
    return out, final_state.transpose(-1, -2)


# ---- FlashInfer: packed, states (N, HV, V, K), g the decay itself; results go where the caller wants them


def flashinfer_chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    output: Tensor | None = None,
    output_state: Tensor | None = None,
    max_seqlen: int | None = None,
) -> tuple[Tensor, Tensor]:
    require(output_final_state, "a prefill with states is measured")
    for tensor in (q, k, v, g, beta, output, output_state):
        require(tensor.is_contiguous(), "contiguous tensors")
    require(q.dim() == 3 and cu_seqlens is not None, "packed sequences")
    require(g.dtype == beta.dtype == torch.float32, "fp32 gates")
    require(bool((g > 0).all()), "g is the decay, not its logarithm")
    require(type(max_seqlen) is int and max_seqlen == int(cu_seqlens.diff().max()), "the longest sequence")
    norms = {"use_qk_l2norm": use_qk_l2norm_in_kernel}
    out, final_state = gdn_cuda.chunked_forward(q, k, v, beta, g.log(), initial_state, cu_seqlens, **norms)
    return output.copy_(out), output_state.copy_(final_state)


def gated_delta_rule_decode_pretranspose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
) -> tuple[Tensor, Any]:
    require(state is None and initial_state_indices.dtype == torch.int32, "a pool and int32 slots")
    require(A_log.dtype == dt_bias.dtype == torch.float32 and a.dtype == b.dtype == torch.bfloat16, "dtypes")
    gdn_cuda.fused_decode(
        q, k, v, a, b, A_log, dt_bias, initial_state, initial_state_indices, use_qk_l2norm=use_qk_l2norm, out=output
    )
    return output, initial_state


# ---- mamba-ssm: (B, D, L), tokens contiguous


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Tensor:
    require(all(x is not None and x.stride(-1) == 1 for x in (u, delta, B, C, z)), "contiguous tokens")
    require(not return_last_state, "outputs alone are measured")
    return gdn_cuda.selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus=delta_softplus)


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    require(x.dim() == state.dim() - 1, "one token")
    return gdn_cuda.selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
