"""Modules of the structured operators and of scans: Cauchy and Toeplitz matrices, matrices given by their displacement, S4 and
S4D, RG-LRU and S7."""

from .cauchy import CauchyKernel
from .rglru import RGLRU
from .s4 import S4Kernel
from .s4d import S4DKernel
from .s7 import S7
from .toeplitz import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve

__all__ = [
    "CauchyKernel",
    "DisplacementMV",
    "RGLRU",
    "S4DKernel",
    "S4Kernel",
    "S7",
    "ToeplitzInverse",
    "ToeplitzMV",
    "ToeplitzSolve",
]
