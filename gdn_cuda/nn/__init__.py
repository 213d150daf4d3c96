"""Modules of the structured operators: Cauchy and Toeplitz matrices, matrices given by their displacement, S4 and S4D; and of
the scans: LRU, RG-LRU, S5, S6, S7 and Mamba."""

from .cauchy import CauchyKernel
from .lru import LRU
from .mamba import S6, Mamba
from .rglru import RGLRU
from .s4 import S4Kernel
from .s4d import S4DKernel
from .s5 import S5
from .s7 import S7
from .toeplitz import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve

__all__ = [
    "CauchyKernel",
    "DisplacementMV",
    "LRU",
    "Mamba",
    "RGLRU",
    "S4DKernel",
    "S4Kernel",
    "S5",
    "S6",
    "S7",
    "ToeplitzInverse",
    "ToeplitzMV",
    "ToeplitzSolve",
]
