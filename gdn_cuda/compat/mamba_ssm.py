"""Replaces the scans of mamba_ssm: `ops.selective_scan_interface`, `ops.triton.selective_state_update` and
`ops.triton.ssd_combined`. `install` puts them where transformers looks for mamba_ssm's, so that its Mamba, FalconMamba, Jamba
and Mamba-2 models use them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conv import causal_conv1d
from ..hosts import verified
from ..operators.caller import in_words_of_caller
from ..scan import selective_scan
from ..scan import selective_state_update as _update
from .mamba_ssm_ssd import (
    mamba_chunk_scan,
    mamba_chunk_scan_combined,
    mamba_conv1d_scan_ref,
    mamba_split_conv1d_scan_combined,
    mamba_split_conv1d_scan_ref,
    ssd_selective_scan,
)
from .stand_in import StandIn

__all__ = [
    "install",
    "mamba_chunk_scan",
    "mamba_chunk_scan_combined",
    "mamba_conv1d_scan_ref",
    "mamba_inner_fn",
    "mamba_inner_ref",
    "mamba_split_conv1d_scan_combined",
    "mamba_split_conv1d_scan_ref",
    "selective_scan_fn",
    "selective_scan_ref",
    "selective_state_update",
    "selective_state_update_ref",
    "ssd_selective_scan",
    "uninstall",
]
_HALF = (torch.bfloat16, torch.float16)


@in_words_of_caller()
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
) -> Tensor | tuple[Tensor, Tensor]:
    """`selective_scan` with "mamba"; u, delta, z and varying B and C have one dtype, D and delta_bias are fp32.

    The last state has a gradient, and includes a constant B; in mamba_ssm it has no gradient, and lacks B. Gradients do not
    cancel where Ā is small, and are the same in every run. A transposed (B, L, D) is not copied, and CPU tensors work.
    """
    return selective_scan(u, delta, A, B, C, D, z, delta_bias, None, delta_softplus, return_last_state)


@in_words_of_caller()
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
    """`gdn_cuda.selective_state_update` with "mamba"; A may be bf16 or fp16 too. CPU tensors work."""
    if A.dtype in _HALF:  # expanded dimensions stay so: one Ā for all of them
        A = A[tuple(slice(None if stride else 1) for stride in A.stride())].float().expand_as(A)
    return _update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, None, state_batch_indices)


# The package has these names for functions that run without CUDA.
selective_scan_ref = selective_scan_fn
selective_state_update_ref = selective_state_update


# ---- The block


@in_words_of_caller(x="xz", u="xz", z="xz", weight="conv1d_weight", bias="conv1d_bias", delta="delta_proj_weight")
def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """A Mamba block from its first projection on: `causal_conv1d`, `selective_scan` and matrix products, with gradients.

    xz (B, 2d, L) may be contiguous or the transposed view of (B, L, 2d), which is not copied. `checkpoint_lvl`, by which
    mamba_ssm computes some tensors again in backward, changes nothing. As in mamba_ssm, the norm of dt follows its projection.
    """
    x, z = xz.chunk(2, 1)
    x = causal_conv1d(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
    projected = F.linear(x.mT, x_proj_weight)
    rank, states = delta_proj_weight.shape[1], A.shape[-1] * (2 if A.is_complex() else 1)
    delta = F.linear(projected[..., :rank], delta_proj_weight)
    if dt_rms_weight is not None:
        delta = _rms_norm(delta, dt_rms_weight, b_c_dt_rms_eps)

    def by_token(given: Tensor | None, columns: slice, bias: Tensor | None, norm: Tensor | None) -> Tensor:
        if given is not None:
            return given
        drawn = projected[..., columns]
        drawn = drawn if bias is None else drawn + bias.to(drawn.dtype)
        drawn = (drawn if norm is None else _rms_norm(drawn, norm, b_c_dt_rms_eps)).to(x.dtype)
        # The two parts of a complex value are contiguous along tokens in a scan, and along states here.
        return drawn.unflatten(2, (-1, 2)).transpose(1, 2).flatten(2) if A.is_complex() else drawn.mT

    B = by_token(B, slice(rank, rank + states), B_proj_bias, b_rms_weight)
    C = by_token(C, slice(projected.shape[-1] - states, None), C_proj_bias, c_rms_weight)
    y = selective_scan(x, delta.to(x.dtype).mT, A, B, C, D, z, delta_bias, None, delta_softplus)
    return F.linear(y.mT, out_proj_weight, None if out_proj_bias is None else out_proj_bias.to(out_proj_weight.dtype))


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


@in_words_of_caller()
def mamba_inner_ref(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
) -> Tensor:
    """`mamba_inner_fn` without norms."""
    return mamba_inner_fn(
        *(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias),
        *(A, B, C, D, delta_bias, B_proj_bias, C_proj_bias),
        delta_softplus=delta_softplus,
    )


# ---- transformers

VERSIONS: verified.Versions = {"2.3.2.post1": "compared"}
_TARGETS = {
    "mamba_ssm:selective_scan_fn": "u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, "
    "return_last_state=False",
    "mamba_ssm.ops.triton.selective_state_update:selective_state_update": "state, x, dt, A, B, C, D=None, z=None, "
    "dt_bias=None, dt_softplus=False, state_batch_indices=None",
    "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined": "x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, "
    "initial_states=None, seq_idx=None, cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, inf), return_final_states=False, "
    "return_varlen_states=False",
}
HOST = verified.Host("mamba-ssm", "mamba_ssm", VERSIONS, {"": _TARGETS}, optional=frozenset(_TARGETS))
_stand_in = StandIn(
    HOST,
    {
        "selective_scan_fn": "selective_scan",
        "selective_state_update": "selective_state_update",
        "mamba_chunk_scan_combined": "chunk_scan",
    },
    globals(),
)


@_stand_in.replaced.whole()
def install() -> contextlib.AbstractContextManager[Any]:
    """Makes transformers 5 use our three functions of this name until `uninstall`, or to the end of a `with`.

    transformers imports mamba_ssm and looks each function up by name. If mamba_ssm is installed, `selective_scan_fn`,
    `selective_state_update` and `mamba_chunk_scan_combined` are replaced in it; otherwise a module of that name with only these
    is put in its place. Models that are already imported look them up again. Raises `gdn_cuda.integrations.Refused`, with
    nothing replaced, if the functions of the installed package have other parameters than those that were verified.

    `mamba_inner_fn` and `mamba_split_conv1d_scan_combined` are not replaced: they take no mask, so padding before a sequence
    would change what a model computes; and FalconMamba normalizes dt before its projection.
    """
    return _stand_in.install()


def uninstall() -> None:
    """Undoes `install`; models that transformers has imported look up mamba_ssm's functions again."""
    _stand_in.uninstall()
