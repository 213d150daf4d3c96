"""Modules of the structured operators: Cauchy and Toeplitz matrices, matrices given by their displacement, S4 and S4D; and of
the scans: LRU and S5."""

from .cauchy import CauchyKernel
from .lru import LRU
from .s4 import S4Kernel
from .s4d import S4DKernel
from .s5 import S5
from .toeplitz import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve

__all__ = [
    "CauchyKernel",
    "DisplacementMV",
    "LRU",
    "S4DKernel",
    "S4Kernel",
    "S5",
    "ToeplitzInverse",
    "ToeplitzMV",
    "ToeplitzSolve",
]
