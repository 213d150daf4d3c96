"""Views of tensors that engines pack into rows."""

from __future__ import annotations

from torch import Tensor


def split_qkv(mixed_qkv: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views (B, 1, heads, columns) of rows (B, 2·H·K + HV·V), for states (slots, HV, V, K)."""
    heads, dv, dk = states.shape[1:]
    keys = (mixed_qkv.shape[1] - heads * dv) // 2
    q, k, v = mixed_qkv.unsqueeze(1).split((keys, keys, heads * dv), dim=-1)
    return q.unflatten(-1, (-1, dk)), k.unflatten(-1, (-1, dk)), v.unflatten(-1, (heads, dv))
