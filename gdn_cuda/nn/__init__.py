"""Modules of the structured operators (Cauchy and Toeplitz matrices, matrices given by their displacement, S4 and S4D) and of
the scans (S6 and Mamba)."""

from .cauchy import CauchyKernel
from .mamba import S6, Mamba
from .s4 import S4Kernel
from .s4d import S4DKernel
from .toeplitz import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve

__all__ = [
    "CauchyKernel",
    "DisplacementMV",
    "Mamba",
    "S4DKernel",
    "S4Kernel",
    "S6",
    "ToeplitzInverse",
    "ToeplitzMV",
    "ToeplitzSolve",
]
