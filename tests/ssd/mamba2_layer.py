"""Mamba-2's layer by its definition in fp64: token by token, with gradients by autograd."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gdn_cuda.nn import Mamba2


def convolution(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """silu of Σ_k w_k x_{t − (W − 1) + k} for x (L, C), weight (C, W)."""
    seen = F.pad(x, (0, 0, weight.shape[1] - 1, 0))
    rows = [(weight.T * seen[t : t + weight.shape[1]]).sum(0) for t in range(x.shape[0])]
    found = torch.stack(rows) if rows else x
    return F.silu(found if bias is None else found + bias)


def normed(x: Tensor, weight: Tensor, eps: float, groups: int) -> Tensor:
    parts = x.unflatten(-1, (groups, -1))
    return (parts / torch.sqrt(parts.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight


def sequence(layer: Mamba2, u: Tensor) -> tuple[Tensor, Tensor]:
    """(y, last state) of u (L, d_model)."""
    p = {name: x.double() for name, x in layer.named_parameters()}
    H, P, G, N = layer.nheads, layer.headdim, layer.ngroups, layer.d_state
    mlp = layer.d_inner - layer.d_ssm
    projected = u.double() @ p["in_proj.weight"].T + p.get("in_proj.bias", 0)
    z0, x0, z, xBC, dt = projected.split([mlp, mlp, H * P, H * P + 2 * G * N, H], -1)
    xBC = convolution(p["conv1d.weight"][:, 0], p.get("conv1d.bias"), xBC)
    x, B, C = xBC.split([H * P, G * N, G * N], -1)
    x, B, C = x.unflatten(-1, (H, P)), *(y.unflatten(-1, (G, N)).repeat_interleave(H // G, -2) for y in (B, C))
    delta = F.softplus(dt + p["dt_bias"]).clamp(*layer.dt_limit)
    state, rows = x.new_zeros(H, P, N), []
    D = p["D"].view(H, P) if layer.D_has_hdim else p["D"][:, None]
    for t in range(u.shape[0]):
        decay = torch.exp(-delta[t] * p["A_log"].exp())
        state = decay[:, None, None] * state + (delta[t, :, None] * x[t])[..., None] * B[t][:, None]
        rows.append(((state * C[t][:, None]).sum(-1) + D * x[t]).flatten())
    y, gate = torch.stack(rows), F.silu(z)
    if not layer.rmsnorm:
        y = y * gate
    elif layer.norm_before_gate:
        y = normed(y, p["norm.weight"], 1e-5, G) * gate
    else:
        y = normed(y * gate, p["norm.weight"], 1e-5, G)
    y = torch.cat([F.silu(z0) * x0, y], -1)
    return y @ p["out_proj.weight"].T + p.get("out_proj.bias", 0), state


def layer(layer: Mamba2, u: Tensor) -> tuple[Tensor, Tensor]:
    """(y, last states) of u (B, L, d_model)."""
    found = [sequence(layer, row) for row in u]
    return torch.stack([y for y, _ in found]), torch.stack([state for _, state in found])
