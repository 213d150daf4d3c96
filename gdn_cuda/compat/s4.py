"""Replaces state-spaces/s4's extensions/kernels (cauchy, vandermonde) and the fallbacks in models/s4/s4.py."""

from .structured_functions import (
    cauchy_keops,
    cauchy_mult,
    cauchy_mult_keops,
    cauchy_mult_torch,
    cauchy_naive,
    get_cauchy_kernel,
    get_vandermonde_kernel,
    get_vandermonde_transpose_kernel,
    log_vandermonde,
    log_vandermonde_cuda,
    log_vandermonde_fast,
    log_vandermonde_keops,
    log_vandermonde_naive,
    log_vandermonde_transpose,
    log_vandermonde_transpose_keops,
    log_vandermonde_transpose_naive,
)

__all__ = [
    "cauchy_keops",
    "cauchy_mult",
    "cauchy_mult_keops",
    "cauchy_mult_torch",
    "cauchy_naive",
    "get_cauchy_kernel",
    "get_vandermonde_kernel",
    "get_vandermonde_transpose_kernel",
    "log_vandermonde",
    "log_vandermonde_cuda",
    "log_vandermonde_fast",
    "log_vandermonde_keops",
    "log_vandermonde_naive",
    "log_vandermonde_transpose",
    "log_vandermonde_transpose_keops",
    "log_vandermonde_transpose_naive",
]
