"""Structured matrices: Cauchy sums over poles, sums of powers, Toeplitz matrices, and matrices of low displacement rank.

Leading dimensions broadcast. Every input has gradients; second derivatives are correct or raise. Forward mode, torch.func
and torch.vmap work. Inputs are promoted to one dtype as torch does it; bfloat16 and float16 are computed in fp32. CUDA tensors
run kernels compiled at first use, CPU tensors sums in fp64. Wrong input raises ValueError, which names function, argument,
expected and got, before anything is launched or written.

Toeplitz matrices have the first column c and the first row r; the corner is c[0], and r[0] is not read. A right-hand side with
more dimensions than c and r is (…, n, k), k columns; any other is (…, n). Ranks alone decide: for a batch of vectors with one
matrix pass c[None].

`stream`: the stream of the work, which waits for the current stream's work at the call; None: the current one. The result is
ready there, so `torch.cuda.current_stream().wait_stream(stream)` before it is used elsewhere. `out`: tensor for the
result, contiguous, of its shape and dtype, without memory in common with the inputs (`log_vandermonde_transpose` copies the
result there); then there are no gradients.
"""

from .cauchy import cauchy_conj, cauchy_kernel
from .displacement import DisplacementType, displacement_matvec
from .l2 import cauchy_pin_l2
from .toeplitz import (
    gs_compute_generators,
    toeplitz_inverse_apply,
    toeplitz_matvec,
    toeplitz_matvec_transpose,
    toeplitz_solve,
    toeplitz_solve_ex,
    toeplitz_solve_symmetric,
    toeplitz_solve_symmetric_ex,
    toeplitz_to_cauchy,
)
from .vandermonde import log_vandermonde, log_vandermonde_transpose

__all__ = [
    "cauchy_kernel",
    "cauchy_conj",
    "cauchy_pin_l2",
    "log_vandermonde",
    "log_vandermonde_transpose",
    "toeplitz_matvec",
    "toeplitz_matvec_transpose",
    "toeplitz_solve",
    "toeplitz_solve_ex",
    "toeplitz_solve_symmetric",
    "toeplitz_solve_symmetric_ex",
    "gs_compute_generators",
    "toeplitz_inverse_apply",
    "toeplitz_to_cauchy",
    "displacement_matvec",
    "DisplacementType",
]
