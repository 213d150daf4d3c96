"""Replaces lrnnx's csrc.s4, the structured functions of lrnnx.ops.s4_utils, and lrnnx.ops.s4_kernel_interface."""

from ..nn import S4DKernel, S4Kernel
from . import s4
from .s4 import *  # noqa: F403

kernel_registry = {"s4": S4Kernel, "s4d": S4DKernel}

__all__ = [*s4.__all__, "S4DKernel", "S4Kernel", "kernel_registry"]
