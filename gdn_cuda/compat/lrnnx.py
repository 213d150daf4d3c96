"""Replaces lrnnx's csrc.s4, the structured functions of lrnnx.ops.s4_utils, lrnnx.ops.s4_kernel_interface, and the scans and
steps of lrnnx.ops."""

from ..nn import S4DKernel, S4Kernel
from . import s4
from .lrnnx_scans import (
    rglru_scan_fn,
    rglru_scan_ref,
    s5_inner_fn,
    s5_inner_ref,
    s7_inner_fn,
    s7_inner_ref,
    s7_scan_fn,
    s7_scan_ref,
    selective_scan_fn,
    selective_scan_ref,
    selective_state_update,
    selective_state_update_ref,
    simplified_scan_fn,
    simplified_scan_ref,
    simplified_state_update,
    simplified_state_update_ref,
)
from .s4 import *  # noqa: F403

kernel_registry = {"s4": S4Kernel, "s4d": S4DKernel}

__all__ = [
    *s4.__all__,
    "S4DKernel",
    "S4Kernel",
    "kernel_registry",
    "rglru_scan_fn",
    "rglru_scan_ref",
    "s5_inner_fn",
    "s5_inner_ref",
    "s7_inner_fn",
    "s7_inner_ref",
    "s7_scan_fn",
    "s7_scan_ref",
    "selective_scan_fn",
    "selective_scan_ref",
    "selective_state_update",
    "selective_state_update_ref",
    "simplified_scan_fn",
    "simplified_scan_ref",
    "simplified_state_update",
    "simplified_state_update_ref",
]
