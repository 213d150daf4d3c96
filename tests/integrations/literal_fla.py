"""FLA's gated delta rule, convolution and layer written out, token by token and without any kernel: what they are compared
with, and what stands in for FLA's Triton kernels, which need a GPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The recurrence of every token, in the arguments' widest dtype."""
    given = [x for x in (q, k, v, g, beta, initial_state, A_log) if x is not None]
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    kept, groups = v.dtype, v.shape[2] // q.shape[2]
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(groups, 2) for x in (q, k))
    g = torch.zeros_like(v[..., 0]) if g is None else g.to(dtype)
    if use_gate_in_kernel:
        g = -A_log.to(dtype).exp() * F.softplus(g + (0 if dt_bias is None else dt_bias.to(dtype)))
    beta = torch.ones_like(g) if beta is None else beta.to(dtype)
    if use_beta_sigmoid_in_kernel:
        beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale

    spans = [(0, q.shape[1])] if cu_seqlens is None else list(pairwise(cu_seqlens.tolist()))
    outputs, states = [], []
    for n, (first, end) in enumerate(spans):
        if initial_state is None:
            state = v.new_zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3])
        else:
            state = initial_state.to(dtype) if cu_seqlens is None else initial_state[n : n + 1].to(dtype)
            state = state.mT if state_v_first else state
        for t in range(first, end):
            state = state * g[:, t, :, None, None].exp()
            error = v[:, t] - (state * k[:, t, ..., None]).sum(-2)
            state = state + k[:, t, ..., None] * (beta[:, t, :, None] * error)[..., None, :]
            outputs.append(scale * (state * q[:, t, ..., None]).sum(-2))
        states.append(state)
    output = torch.stack(outputs, 1) if outputs else torch.zeros_like(v)
    if cu_seqlens is not None and output.shape[1] < v.shape[1]:
        output = F.pad(output, (0, 0, 0, 0, 0, v.shape[1] - output.shape[1]))
    last = torch.cat(states)
    return output.to(kept), (last.mT if state_v_first else last) if output_final_state else None


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    activation: str | None = None,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """x (B, T, D), weight (D, W), states (N, D, W): the last W inputs."""
    taps = weight.shape[1]
    spans = [(0, x.shape[1])] if cu_seqlens is None else list(pairwise(cu_seqlens.tolist()))
    outputs, states = [], []
    for n, (first, end) in enumerate(spans):
        before = x.new_zeros(x.shape[0], x.shape[2], taps)
        if initial_state is not None:
            before = initial_state if cu_seqlens is None else initial_state[n : n + 1]
        inputs = torch.cat([before.to(x.dtype), x[:, first:end].mT], -1)
        y = F.conv1d(inputs[..., 1:].to(weight.dtype), weight[:, None], bias, groups=x.shape[2])
        outputs.append((F.silu(y) if activation in ("silu", "swish") else y).mT)
        states.append(inputs[..., -taps:])
    return torch.cat(outputs, 1).to(x.dtype), torch.cat(states) if output_final_state else None


def rms_norm_gated(x: Tensor, g: Tensor | None, weight: Tensor, eps: float, activation: str = "swish") -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    if g is not None:
        y = y * (g.sigmoid() if activation == "sigmoid" else F.silu(g.to(wide.dtype)))
    return y.to(x.dtype)


def layer(module: Any, x: Tensor, lengths: list[int] | None = None) -> Tensor:
    """The output of FLA's or our GatedDeltaNet for x (B, T, D), or for packed sequences of these lengths."""
    cu_seqlens = None if lengths is None else torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])  # read by the host
    q, k, v = (getattr(module, f"{name}_proj")(x) for name in "qkv")
    if module.use_short_conv:
        convs = (module.q_conv1d, module.k_conv1d, module.v_conv1d)
        q, k, v = (
            causal_conv1d(y, conv.weight[:, 0], conv.bias, activation="silu", cu_seqlens=cu_seqlens)[0]
            for y, conv in zip((q, k, v), convs, strict=True)
        )
    else:
        q, k, v = (F.silu(y) for y in (q, k, v))
    q, k, v = (
        y.unflatten(-1, (-1, size)) for y, size in ((q, module.head_k_dim), (k, module.head_k_dim), (v, module.head_v_dim))
    )
    out, _ = gated_delta_rule(
        *(q, k, v, module.a_proj(x), module.b_proj(x)),
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        A_log=module.A_log,
        dt_bias=module.dt_bias,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=module.allow_neg_eigval,
        cu_seqlens=cu_seqlens,
    )
    gate = module.g_proj(x).unflatten(-1, (-1, module.head_v_dim)) if module.use_gate else None
    activation = getattr(module, "output_gate_activation", "swish")
    return module.o_proj(rms_norm_gated(out, gate, module.o_norm.weight, module.o_norm.eps, activation).flatten(-2))
