"""The Mamba block by its definition, in fp64, with the oracle's scan. Gradients are autograd's."""

from __future__ import annotations

import oracle
import torch
import torch.nn.functional as F
from torch import Tensor

from gdn_cuda.nn import S6, Mamba


def convolution(block: Mamba, x: Tensor, past: Tensor) -> Tensor:
    """silu of Σ_k w_k x_{t − (W − 1) + k}, with `past` (B, W − 1, d_inner) before the first token; x: (B, L, d_inner)."""
    seen, width = torch.cat([past, x], 1), block.d_conv
    rows = []
    for t in range(x.shape[1]):
        row = torch.zeros_like(x[:, 0]) if block.conv1d.bias is None else block.conv1d.bias.double().expand_as(x[:, 0])
        for k in range(width):
            row = row + block.conv1d.weight[:, 0, k].double() * seen[:, t + k]
        rows.append(F.silu(row))
    return torch.stack(rows, 1) if rows else torch.zeros_like(x)


def selective(layer: S6, u: Tensor, z: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """S6 for u (B, L, D)."""
    rank, n = layer.dt_rank, layer.d_state
    projected = u @ layer.x_proj.weight.double().T
    low, B, C = projected[..., :rank], projected[..., rank : rank + n], projected[..., rank + n :]
    delta = F.softplus(low @ layer.dt_proj.weight.double().T + layer.dt_proj.bias.double())
    A, options = -layer.A_log.double().exp(), {"discretization": layer.discretization, "initial_state": state}
    out, last = oracle.selective_scan(u.mT, delta.mT, A, B.mT, C.mT, layer.D, **options)
    return (out.mT if z is None else out.mT * F.silu(z)), last


def block(layer: Mamba, u: Tensor) -> tuple[Tensor, Tensor]:
    """(y, the last state of the scan) for u (B, L, d_model)."""
    bias = 0 if layer.in_proj.bias is None else layer.in_proj.bias.double()
    x, z = (u.double() @ layer.in_proj.weight.double().T + bias).chunk(2, -1)
    past = x.new_zeros(x.shape[0], layer.d_conv - 1, x.shape[2])
    y, last = selective(layer, convolution(layer, x, past), z, None)
    bias = 0 if layer.out_proj.bias is None else layer.out_proj.bias.double()
    return y @ layer.out_proj.weight.double().T + bias, last
