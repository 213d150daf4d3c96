"""Structured matrices: Cauchy sums over poles, sums of powers, Toeplitz matrices, and matrices of low displacement rank.

Leading dimensions broadcast. Gradients flow to every input; second derivatives are right or refused. Forward mode, torch.func
and torch.vmap work. Inputs are promoted to one dtype as torch does it; bfloat16 and float16 are computed in fp32. CUDA tensors
run kernels compiled at first use, CPU tensors sums in fp64. Wrong input raises ValueError, which names function, argument,
expected and got, before anything is launched or written.

Toeplitz matrices have the first column c and the first row r; the corner is c[0], and r[0] is not read. A right-hand side with
more dimensions than c and r is (…, n, k): k of them; any other is (…, n). Only ranks decide: for a batch of vectors under one
matrix give c[None].

`stream`: where the work is queued, behind what the current stream holds at the call; None: the current one. The result is ready
there, so `torch.cuda.current_stream().wait_stream(stream)` before it is used elsewhere. `out`: where the result goes,
contiguous, of its shape and dtype, sharing no memory with the inputs (`log_vandermonde_transpose` copies it there); no
gradients then.
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
