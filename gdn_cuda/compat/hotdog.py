"""chrisvoncsefalvay/hotdog of the Hugging Face Hub: in place of `hotdog = get_kernel("chrisvoncsefalvay/hotdog")`.

The functions that its page lists, with the arguments it gives them, are ours of the same names; `cauchy_kernel_forward` is
the one operator under them that the page shows.
"""

from __future__ import annotations

from torch import Tensor

from .. import (
    cauchy_kernel,
    cauchy_pin_l2,
    displacement_matvec,
    gs_compute_generators,
    toeplitz_inverse_apply,
    toeplitz_matvec,
    toeplitz_matvec_transpose,
    toeplitz_solve,
    toeplitz_solve_symmetric,
    toeplitz_to_cauchy,
)

__all__ = [
    "cauchy_kernel",
    "cauchy_kernel_forward",
    "cauchy_pin_l2",
    "displacement_matvec",
    "gs_compute_generators",
    "toeplitz_inverse_apply",
    "toeplitz_matvec",
    "toeplitz_matvec_transpose",
    "toeplitz_solve",
    "toeplitz_solve_symmetric",
    "toeplitz_to_cauchy",
]


def cauchy_kernel_forward(out: Tensor, v: Tensor, omega: Tensor, lambd: Tensor) -> None:
    """`cauchy_kernel` into `out`, without gradients."""
    cauchy_kernel(v.detach(), omega.detach(), lambd.detach(), out=out)
