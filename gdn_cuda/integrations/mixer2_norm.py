"""The norm of Mamba-2's layers in vLLM and SGLang, whose classes have the same attributes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..runtime import package as gdn_cuda
from .counted import Declined


def mixer2_norm(norm: Any, x: Tensor, gate: Tensor) -> Tensor:
    """The norm of x · silu(gate) by groups, of which this GPU has whole ones."""
    if not norm.use_rms_norm:
        raise Declined("a gate without a norm")
    if norm.n_groups % norm.tp_size != 0:
        raise Declined("groups that several GPUs share")
    if norm.weight.dtype != x.dtype:
        raise Declined("a weight of another dtype")
    options = {"norm_before_gate": False, "group_size": norm.group_size}
    return gdn_cuda.rms_norm_gated(x, gate, norm.weight, norm.variance_epsilon, **options)
