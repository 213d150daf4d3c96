"""Replaces Mamba-2's functions of mamba_ssm, `ops.triton.ssd_combined`, by `ssd_scan`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conv import causal_conv1d
from ..layers import rms_norm_gated
from ..layers.conv_scan import Heads, Options, conv_scan
from ..operators.caller import in_words_of_caller
from ..operators.dtypes import state_dtype as widest_of
from ..operators.schema import refuse
from ..scan import selective_scan
from ..ssd import ssd_scan, ssd_summary

__all__ = [
    "mamba_chunk_scan",
    "mamba_chunk_scan_combined",
    "mamba_conv1d_scan_ref",
    "mamba_split_conv1d_scan_combined",
    "mamba_split_conv1d_scan_ref",
    "ssd_selective_scan",
]


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _numbers(seq_idx: Tensor | None) -> Tensor | None:
    return None if seq_idx is None else _rows(seq_idx.to(torch.int32))


# ---- The scan


@in_words_of_caller(initial_state="initial_states")
def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: torch.dtype | None = None,
) -> Any:
    """`ssd_scan` of x (B, L, H, P). Returns out, then the final states in fp32 and the states after the sequences of
    cu_seqlens, if asked for.

    As in mamba_ssm, seq_idx divides rows into sequences and cu_seqlens does not: it only says where states are returned, which
    have the dtype of C, or `state_dtype`, and no gradient. A sequence's state is that of the sequence alone, and initial states
    are those of the first. `chunk_size` changes nothing, nor does `state_dtype` otherwise: states between chunks are fp32.
    """
    x, B, C, z = _rows(x), _rows(B), _rows(C), None if z is None else _rows(z)
    seq_idx, initial = _numbers(seq_idx), None if initial_states is None else initial_states.contiguous()
    options: dict[str, Any] = {"dt_softplus": dt_softplus, "dt_limit": dt_limit}
    scanned = ssd_scan(x, dt, A, B, C, D, z, dt_bias, initial, seq_idx=seq_idx, return_last_state=True, **options)
    results = scanned if return_final_states else scanned[:1]
    if return_varlen_states:
        if cu_seqlens is None:
            refuse("mamba_chunk_scan_combined", "cu_seqlens", "a tensor with return_varlen_states", "None")
        if initial is not None:
            first = initial if seq_idx is None else torch.where(seq_idx[:, :1, None, None] == 0, initial, 0)
            initial = initial.new_zeros(max(cu_seqlens.shape[0] - 1, 0), *initial.shape[1:])
            initial[:1] = first
        states, _ = ssd_summary(x, dt, A, B, dt_bias, initial, cu_seqlens, **options)
        results = (*results, states.to(state_dtype or C.dtype))
    return results if len(results) > 1 else results[0]


@in_words_of_caller()
def mamba_chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
) -> Tensor:
    """`mamba_chunk_scan_combined` without its other arguments."""
    out: Tensor = mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D, z, dt_bias, dt_softplus=dt_softplus)
    return out


@in_words_of_caller(u="x", delta="dt", delta_bias="dt_bias")
def ssd_selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> Tensor:
    """`mamba_chunk_scan` whose dt (B, L, H, P), dt_bias (H, P) or A (H·P, N) may be by channel: then by `selective_scan`, in
    fp32. dt is not rounded to x's dtype."""
    if dt.dim() == 3 and A.dim() == 1 and (dt_bias is None or dt_bias.dim() == 1):
        out: Tensor = mamba_chunk_scan_combined(x, dt, A, B, C, 1, D, z, dt_bias, dt_softplus=dt_softplus, dt_limit=dt_limit)
        return out
    (heads, channels), states, wide = x.shape[2:], B.shape[-1], widest_of(x)

    def by_channel(y: Tensor, rank: int) -> Tensor:
        """(…, H) or (…, H, P) as (…, H·P), for a tensor (…, H) of this rank."""
        y = y[..., None].expand(*y.shape, channels) if y.dim() == rank else y
        return y.to(wide).flatten(-2)

    delta = by_channel(dt, 3) if dt_bias is None else by_channel(dt, 3) + by_channel(dt_bias, 1)
    delta = (F.softplus(delta) if dt_softplus else delta).clamp(*dt_limit)
    scanned = selective_scan(
        x.to(wide).flatten(2).mT,
        delta.mT,
        (A if A.dim() == 2 else by_channel(A, 1)[:, None].expand(heads * channels, states)).to(wide),
        B.to(wide).permute(0, 2, 3, 1),
        C.to(wide).permute(0, 2, 3, 1),
        None if D is None else by_channel(D, 1),
        None if z is None else z.to(wide).flatten(2).mT,
    )
    return scanned.mT.unflatten(-1, (heads, channels)).to(x.dtype)


# ---- With the convolution, the norm and the output projection


def _heads(function: str, heads: int, D: Tensor | None, headdim: int | None, ngroups: int, channels: int) -> Heads:
    """`channels`: those of the convolution."""
    if D is not None and D.dim() == 2:
        headdim = D.shape[1]
    if headdim is None:
        refuse(function, "headdim", "the channels of a head with D (H,)", "None")
    group_columns = channels - heads * headdim
    if ngroups < 1 or heads % ngroups:
        refuse(function, "ngroups", f"a divisor of the {heads} heads", ngroups)
    if group_columns < 2 * ngroups or group_columns % (2 * ngroups):
        expected = f"{heads * headdim} channels of {heads} heads and 2·N for each of the {ngroups} groups"
        refuse(function, "conv1d_weight", expected, channels)
    return Heads(heads, headdim, ngroups, group_columns // (2 * ngroups))


def _split_conv_scan(
    function: str,
    heads: Heads,
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    system: dict[str, Any],
    options: dict[str, Any],
    rmsnorm_weight: Tensor | None,
    rmsnorm: dict[str, Any],
    outproj_weight: Tensor | None,
    outproj_bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    dim, group_columns = heads.heads * heads.channels, 2 * heads.groups * heads.states
    least = 2 * dim + group_columns + heads.heads
    mlp = zxbcdt.shape[-1] - least
    if zxbcdt.dim() != 3 or mlp < 0 or mlp % 2:
        refuse(function, "zxbcdt", f"(B, L, {least}), or more by an even number", tuple(zxbcdt.shape))
    if outproj_weight is None and outproj_bias is not None:
        refuse(function, "outproj_bias", "None without outproj_weight", "a tensor")
    z0, x0, z, xBC, dt = _rows(zxbcdt).split([mlp // 2, mlp // 2, dim, dim + group_columns, heads.heads], -1)
    gate = z.unflatten(-1, (heads.heads, heads.channels)) if rmsnorm_weight is None else None
    y, last = conv_scan(Options(heads, **options), xBC, conv1d_weight, conv1d_bias, dt, z=gate, **system)
    y = y.flatten(-2)
    if rmsnorm_weight is not None:
        y = rms_norm_gated(y, z, rmsnorm_weight, **rmsnorm)
    if mlp:
        y = torch.cat([F.silu(z0) * x0, y], -1)
    return (y if outproj_weight is None else F.linear(y, outproj_weight, outproj_bias)), last


_OF_PROJECTION = dict.fromkeys(("x", "dt", "B", "C", "z", "gate", "causal_conv1d.x", "rms_norm_gated.x"), "zxbcdt")
_OF_PARTS = {"weight": "conv1d_weight", "bias": "conv1d_bias", "rms_norm_gated.weight": "rmsnorm_weight"}
_NAMES = _OF_PROJECTION | _OF_PARTS | {"initial_state": "initial_states"}


@in_words_of_caller(**_NAMES)
def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    activation: str | None = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    state_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """A Mamba-2 layer after its first projection: `causal_conv1d`, `ssd_scan`, `rms_norm_gated` and a matrix product, with
    gradients. Returns out, or (out, final states in fp32).

    zxbcdt (B, L, …) has z₀ and x₀ of a gated MLP, if it is wide enough, then z, x, B, C and dt, which are read in place. The
    norm is over the channels of a group. Backward computes the convolution again. `chunk_size` and `state_dtype` change
    nothing: states between chunks are fp32.
    """
    name = "mamba_split_conv1d_scan_combined"
    heads = _heads(name, D.shape[0], D, headdim, ngroups, conv1d_weight.shape[0])
    initial = None if initial_states is None else initial_states.contiguous()
    out, last = _split_conv_scan(
        *(name, heads, zxbcdt, conv1d_weight, conv1d_bias),
        {"A": A, "D": D, "dt_bias": dt_bias, "initial_state": initial},
        {"activation": activation, "dt_limit": dt_limit, "seq_idx": _numbers(seq_idx)},
        rmsnorm_weight,
        {"eps": rmsnorm_eps, "norm_before_gate": norm_before_gate, "group_size": heads.heads * heads.channels // ngroups},
        outproj_weight,
        outproj_bias,
    )
    return (out, last) if return_final_states else out


@in_words_of_caller(**_NAMES)
def mamba_split_conv1d_scan_ref(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    activation: str | None = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Tensor:
    """`mamba_split_conv1d_scan_combined` without states, whose norm is over all channels, as in mamba_ssm."""
    name = "mamba_split_conv1d_scan_ref"
    heads = _heads(name, D.shape[0], D, headdim, ngroups, conv1d_weight.shape[0])
    out, _ = _split_conv_scan(
        *(name, heads, zxbcdt, conv1d_weight, conv1d_bias),
        {"A": A, "D": D, "dt_bias": dt_bias},
        {"activation": activation, "dt_limit": dt_limit},
        rmsnorm_weight,
        {"eps": rmsnorm_eps, "norm_before_gate": norm_before_gate},
        outproj_weight,
        outproj_bias,
    )
    return out


@in_words_of_caller(x="xBC", B="xBC", C="xBC", weight="conv1d_weight", bias="conv1d_bias")
def mamba_conv1d_scan_ref(
    xBC: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt: Tensor,
    A: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    activation: str | None = "silu",
    headdim: int | None = None,
    ngroups: int = 1,
) -> Tensor:
    """`causal_conv1d` of xBC (B, L, …), and `ssd_selective_scan` of what it returns; z and out are (B, L, H·P)."""
    count = dt.shape[2]
    headdim = headdim if z is None else z.shape[-1] // count
    heads = _heads("mamba_conv1d_scan_ref", count, D if z is None else None, headdim, ngroups, conv1d_weight.shape[0])
    x, B, C = heads.split(_rows(causal_conv1d(xBC.mT, conv1d_weight, conv1d_bias, activation=activation).mT))
    gate = None if z is None else z.unflatten(-1, (heads.heads, heads.channels))
    return ssd_selective_scan(x, dt, A, B, C, D, gate, dt_bias, dt_softplus, dt_limit).flatten(-2)
