<<<<<<< HEAD
"""Modules of the structured operators (Cauchy and Toeplitz matrices, matrices given by their displacement, S4 and S4D) and of
the scans (S6 and Mamba)."""

from .cauchy import CauchyKernel
from .mamba import S6, Mamba
=======
"""Modules of the structured operators: Cauchy and Toeplitz matrices, matrices given by their displacement, S4 and S4D; and of
the scans: LRU and S5."""

from .cauchy import CauchyKernel
from .lru import LRU
>>>>>>> simplified
from .s4 import S4Kernel
from .s4d import S4DKernel
from .s5 import S5
from .toeplitz import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve

__all__ = [
    "CauchyKernel",
    "DisplacementMV",
<<<<<<< HEAD
    "Mamba",
    "S4DKernel",
    "S4Kernel",
    "S6",
=======
    "LRU",
    "S4DKernel",
    "S4Kernel",
    "S5",
>>>>>>> simplified
    "ToeplitzInverse",
    "ToeplitzMV",
    "ToeplitzSolve",
]
