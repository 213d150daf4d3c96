"""The parts of a Gated Delta Net layer's projections; gdn_decode_layer and gdn_prefill_layer document the layouts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..operators.schema import not_a_tensor, refuse

LAYOUTS = ("qwen3_next", "qwen3_5", "split")
# Operators that compute a layer with gradients.
DIFFERENTIABLE = "gdn_prefill_layer without pools"


class LayerParts(NamedTuple):
    mixed: Tensor  # (…, 2 Hk dk + Hv dv): query, key and value, the convolution's channels
    z: Tensor  # (…, Hv, dv)
    b: Tensor  # (…, Hv)
    a: Tensor  # (…, Hv), or (…, Hv, dk)


def check_parts(
    function: str,
    qkvz: Tensor,
    ba: Tensor,
    z: Tensor | None,
    a: Tensor | None,
    heads: tuple[int, int],
    dk: int,
    dv: int,
    layout: str,
) -> None:
    """Checks that operators could otherwise only report for parts of these tensors."""
    if layout not in LAYOUTS:
        refuse(function, "layout", f"one of {', '.join(map(repr, LAYOUTS))}", repr(layout))
    if heads[0] < 1 or heads[1] % heads[0]:
        refuse(function, "heads", "(Hk, Hv) with Hv a multiple of Hk", repr(heads))
    split = layout == "split"
    for name, given, needed in (("qkvz", qkvz, True), ("ba", ba, True), ("z", z, split), ("a", a, split)):
        if not isinstance(given, Tensor if needed else (Tensor, type(None))):
            raise ValueError(not_a_tensor(function, name, given))
        if isinstance(given, Tensor) and not needed:
            refuse(function, name, f"None with layout {layout!r}", "a tensor")
        if isinstance(given, Tensor) and given.dim() != 3:
            refuse(function, name, "(B, T, …)", str(tuple(given.shape)))
    rows, keys = heads[1] * dv, 2 * heads[0] * dk
    widths = [("qkvz", qkvz, keys + rows * (1 if split else 2)), ("ba", ba, heads[1] * (1 if split else 2))]
    if z is not None and a is not None:
        widths += [("z", z, rows), ("a", a, heads[1])]
    for name, given, expected in widths:
        if given.shape[-1] != expected:
            refuse(function, name, f"(B, T, {expected})", str(tuple(given.shape)))
        if given.shape[:2] != qkvz.shape[:2]:
            refuse(function, name, f"(B, T) of qkvz, {tuple(qkvz.shape[:2])}, first", str(tuple(given.shape)))


def layer_parts(
    qkvz: Tensor, ba: Tensor, z: Tensor | None, a: Tensor | None, heads: tuple[int, int], dk: int, dv: int, layout: str
) -> LayerParts:
    """All parts are views, except `mixed` of "qwen3_next", whose parts are not contiguous: it is a copy."""
    heads_k, heads_v = heads
    per_key = heads_v // heads_k
    if layout == "qwen3_next":
        query, key, value, z = qkvz.unflatten(-1, (heads_k, -1)).split([dk, dk, per_key * dv, per_key * dv], -1)
        b, a = ba.unflatten(-1, (heads_k, 2, per_key)).unbind(-2)
        mixed = torch.cat([part.flatten(-2) for part in (query, key, value)], -1)
        return LayerParts(mixed, z.reshape(*z.shape[:-2], heads_v, dv), b.flatten(-2), a.flatten(-2))
    channels = 2 * heads_k * dk + heads_v * dv
    if layout == "qwen3_5":
        b, a = ba.split([heads_v, heads_v], -1)
        return LayerParts(qkvz[..., :channels], qkvz[..., channels:].unflatten(-1, (heads_v, dv)), b, a)
    assert z is not None and a is not None
    return LayerParts(qkvz, z.unflatten(-1, (heads_v, dv)), ba, a)


def split_heads(mixed: Tensor, heads: tuple[int, int], dk: int, dv: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key (…, Hk, dk) and value (…, Hv, dv) of the convolution's result."""
    heads_k, heads_v = heads
    query, key, value = mixed.split([heads_k * dk, heads_k * dk, heads_v * dv], -1)
    return query.unflatten(-1, (heads_k, dk)), key.unflatten(-1, (heads_k, dk)), value.unflatten(-1, (heads_v, dv))


def check_heads(function: str, heads: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(heads, (tuple, list)) or len(heads) != 2 or not all(isinstance(n, int) for n in heads):
        refuse(function, "heads", "numbers of key and value heads (Hk, Hv)", repr(heads))
    return heads[0], heads[1]


def is_silu(function: str, activation: str | None) -> bool:
    """Whether the convolution's activation is silu; otherwise there is none."""
    if activation not in (None, "silu", "swish"):
        refuse(function, "activation", "None, 'silu' or 'swish'", repr(activation))
    return activation is not None
