"""Hyena's operators in plain torch, differentiable: the implementation for CPU tensors.

Arithmetic is fp32, or fp64 if an input is fp64; results have the dtype of v, states are fp32 (or fp64). Powers of poles are
always computed in fp64: a pole near 1 raised to the power of a million would lose five digits in fp32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 64  # tokens between two states of `long`


def arithmetic_dtype(*inputs: Tensor | None) -> torch.dtype:
    return torch.float64 if any(x is not None and x.dtype == torch.float64 for x in inputs) else torch.float32


def per_channel(x: Tensor, channels: int) -> Tensor:
    """Parameters (groups, …) as (channels, …): contiguous channels share a group."""
    return x if x.shape[0] == channels else x.repeat_interleave(channels // x.shape[0], 0)


def _fir(u: Tensor, taps: Tensor, initial_state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Σ_k taps[k] u_{t−K+1+k} with the state before u, and the last K − 1 inputs."""
    B, D, L = u.shape
    width = taps.shape[-1] - 1
    before = u.new_zeros(B, D, width) if initial_state is None else initial_state.to(u.dtype)
    whole = torch.cat([before, u], -1)
    if u.numel() == 0:
        return torch.zeros_like(u), whole[..., L:].clone()
    return F.conv1d(whole, per_channel(taps.to(u.dtype), D), groups=D), whole[..., L:].clone()


def _gated(x2: Tensor, z: Tensor, padding_mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    if padding_mask is not None:
        z = z * padding_mask[:, None].to(z.dtype)
    return (x2.to(z.dtype) * z).to(dtype)


def short(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gated_bias: bool,
    padding_mask: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(y, state) of hyena_short: a correlation: the last tap multiplies the current token."""
    dtype = arithmetic_dtype(x1, x2, v, weight, bias, initial_state)
    u = x1.to(dtype) * v.to(dtype)
    z, state = _fir(u, weight, initial_state)
    if bias is not None:
        z = z + bias[:, None].to(dtype) * (u if gated_bias else 1)
    return _gated(x2, z, padding_mask, v.dtype), state


def medium(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor,
    padding_mask: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(y, state) of hyena_medium: a convolution: the first tap multiplies the current token."""
    return short(x1, x2, v, weight.flip(-1), bias, True, padding_mask, initial_state)


def powers(log_poles: Tensor, exponents: Tensor) -> Tensor:
    """(rows, S, exponents) of p^t in fp64; 0⁰ = 1."""
    logs = log_poles.double().flatten(1)[..., None]
    return torch.exp(torch.where(exponents == 0, 0, logs * exponents))


def modal_filter(residues: Tensor, log_poles: Tensor, L: int) -> Tensor:
    """h_t = Σ_s R_s p_s^t, (rows, L) in fp64: a matrix product, with t = block · (tokens per block) + token."""
    width = max(1, round(L**0.5))
    inner = torch.arange(width, device=residues.device)
    outer = torch.arange(-(-L // width), device=residues.device) * width
    starts = residues.double()[..., None] * powers(log_poles, outer)
    return (starts.mT @ powers(log_poles, inner)).flatten(1)[:, :L]


def _modal_chunks(u: Tensor, width: int, residues: Tensor, log_poles: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """h * u for u (B, D, n · width) after the state (B, D, S), and the final state: a convolution within a chunk, and states
    carried between chunks."""
    B, D, L = u.shape
    chunks = u.unflatten(-1, (L // width, width))
    steps = torch.arange(width + 1, device=u.device)
    decay = powers(log_poles, steps)
    taps = (residues.double()[:, None] @ decay[..., :width]).flip(-1).to(u.dtype)
    rows = F.pad(chunks.transpose(1, 2).flatten(0, 1), (width - 1, 0))
    local = F.conv1d(rows, taps, groups=D).unflatten(0, (B, L // width)).transpose(1, 2)
    gains = torch.einsum("bdnc,dsc->bdns", chunks.double(), decay[..., :width].flip(-1))
    states = []
    for chunk in range(L // width):
        states.append(state)
        state = decay[..., width] * state + gains[:, :, chunk]
    to_outputs = residues.double()[..., None] * decay[..., 1:]
    carried = torch.einsum("bdns,dsc->bdnc", torch.stack(states, 2), to_outputs)
    return (local + carried.to(u.dtype)).flatten(2), state


def long(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    residues: Tensor,
    log_poles: Tensor,
    bias: Tensor,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(y, state) of hyena_long. Allocates states between chunks of tokens, and no filter of the sequence's length."""
    dtype = arithmetic_dtype(x1, x2, v, residues, log_poles, bias, initial_state)
    B, D, L = v.shape
    R, logs = per_channel(residues, D), per_channel(log_poles, D)
    u = x1.to(dtype) * v.to(dtype)
    state = u.new_zeros(B, D, R.shape[1]) if initial_state is None else initial_state
    state = state.double()
    whole = L - L % _CHUNK
    parts = []
    for part, width in ((u[..., :whole], _CHUNK), (u[..., whole:], L - whole)):
        if part.numel():
            y, state = _modal_chunks(part, width, R, logs, state)
            parts.append(y)
    z = torch.cat(parts, -1) if parts else torch.zeros_like(u)
    return _gated(x2, z + bias[:, None].to(dtype) * u, None, v.dtype), state.to(dtype)
