"""lrnnx: in place of csrc.s4, of the structured functions in lrnnx.ops.s4_utils, and of lrnnx.ops.s4_kernel_interface."""

from ..nn import S4DKernel, S4Kernel
from .structured_functions import (
    cauchy_keops,
    cauchy_mult,
    cauchy_mult_torch,
    cauchy_naive,
    get_cauchy_kernel,
    get_vandermonde_kernel,
    get_vandermonde_transpose_kernel,
    log_vandermonde_cuda,
    log_vandermonde_fast,
    log_vandermonde_keops,
    log_vandermonde_naive,
    log_vandermonde_transpose_keops,
    log_vandermonde_transpose_naive,
)

kernel_registry = {"s4": S4Kernel, "s4d": S4DKernel}

__all__ = [
    "S4DKernel",
    "S4Kernel",
    "cauchy_keops",
    "cauchy_mult",
    "cauchy_mult_torch",
    "cauchy_naive",
    "get_cauchy_kernel",
    "get_vandermonde_kernel",
    "get_vandermonde_transpose_kernel",
    "kernel_registry",
    "log_vandermonde_cuda",
    "log_vandermonde_fast",
    "log_vandermonde_keops",
    "log_vandermonde_naive",
    "log_vandermonde_transpose_keops",
    "log_vandermonde_transpose_naive",
]
