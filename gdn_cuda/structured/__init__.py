"""Structured matrices: Cauchy sums over poles, sums of powers, Toeplitz matrices, and those of low displacement rank.

Leading dimensions broadcast. Gradients flow to every input; those of gradients are right or refused. Forward mode, torch.func
and torch.vmap work. Dtypes meet as torch's promotion says; bfloat16 and float16 are computed in fp32. CUDA tensors run kernels
compiled at first use, CPU tensors sums in fp64. Wrong input raises ValueError naming function, argument, expected and got,
before anything is launched or written.

`stream`: where the work is queued, behind what the current stream holds at the call; the current one by default. The result is
ready there, so `torch.cuda.current_stream().wait_stream(stream)` before it is used elsewhere. `out`: where the result goes,
contiguous, of its shape and dtype, apart from the inputs (`log_vandermonde_transpose` copies it there); no gradients then.
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
