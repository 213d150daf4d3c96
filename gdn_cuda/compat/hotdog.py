"""Replaces chrisvoncsefalvay/hotdog of the Hugging Face Hub, `hotdog = get_kernel("chrisvoncsefalvay/hotdog")`.

It has the functions that the package's page lists, with the arguments given there; `cauchy_kernel_forward` is the only
lower-level operator that the page shows.
"""

from __future__ import annotations

from torch import Tensor

from ..operators.caller import in_words_of_caller
from ..operators.composed import as_one_call
from ..structured import (
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


@in_words_of_caller()
def cauchy_kernel_forward(out: Tensor, v: Tensor, omega: Tensor, lambd: Tensor) -> None:
    """`cauchy_kernel` into `out`, without gradients: backward through `out` raises."""

    def run() -> None:
        cauchy_kernel(v, omega, lambd, out=out)

    as_one_call("cauchy_kernel_forward", "cauchy_kernel", {"out": out}, {"v": v, "omega": omega, "lambd": lambd}, run)
