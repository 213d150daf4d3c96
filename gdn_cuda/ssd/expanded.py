"""Mamba-2's scan by selective_scan, for what no kernel of its own takes: every channel of a head has the head's step and decay.
In fp32, with the gradients of selective_scan. After a reset 0 times infinity is NaN, as there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators.dtypes import state_dtype
from ..scan.selective import selective_scan
from .reference import Steps
from .spans import sequences_of

_RESET = 1e4  # e^-x is 0


def _wide(x: Any, name: str) -> Tensor | None:
    y = getattr(x, name)
    return None if y is None else y.to(state_dtype(x.x))


def _decays(x: Any, delta: Tensor) -> Tensor:
    """−δA, (B, T, H), so that A is −1 and a token where seq_idx changes can decay everything."""
    decays = -delta * _wide(x, "A")
    if x.seq_idx is None:
        return decays
    before = torch.nn.functional.pad(x.seq_idx[:, :-1], (1, 0))
    return torch.where((x.seq_idx != before)[..., None], _RESET, decays)


def _initial_state(x: Any) -> Tensor | None:
    if x.initial_state is None:
        return None
    initial = x.initial_state.to(state_dtype(x.x)).flatten(1, 2)
    return initial if x.has_initial_state is None else torch.where(x.has_initial_state[:, None, None], initial, 0)


def expanded_scan(x: Any) -> tuple[Tensor, Tensor]:
    """(out, last states) of a call of ssd_scan, the arguments as attributes of x."""
    batch, tokens, heads, channels = x.x.shape
    raw, bias, D, z = (_wide(x, name) for name in ("dt", "dt_bias", "D", "z"))
    assert raw is not None
    delta = Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest))(raw, bias)

    def to_channels(y: Tensor) -> Tensor:
        return y[..., None].expand(batch, tokens, heads, channels).flatten(2).mT

    def to_groups(y: Tensor) -> Tensor:
        return y.to(state_dtype(x.x)).permute(0, 2, 3, 1).contiguous()

    states = x.B.shape[-1]
    out, last = selective_scan(
        x.x.to(state_dtype(x.x)).flatten(2).mT,
        to_channels(delta),
        delta.new_full((heads * channels, states), -1),
        to_groups(x.B),
        to_groups(x.C),
        None if D is None else (D if D.dim() == 2 else D[:, None]).expand(heads, channels).flatten(),
        None if z is None else z.flatten(2).mT,
        delta_a=to_channels(_decays(x, delta)),
        return_last_state=True,
        initial_state=_initial_state(x),
        cu_seqlens=x.cu_seqlens,
    )
    return out.mT.unflatten(-1, (heads, channels)).to(x.x.dtype), last.reshape(sequences_of(x), heads, channels, states)
