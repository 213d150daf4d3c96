"""Modules of the structured operators: Cauchy and Toeplitz matrices, matrices given by their displacement, S4 and S4D."""

from .cauchy import CauchyKernel
from .s4 import S4Kernel
from .s4d import S4DKernel
from .toeplitz import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve

__all__ = ["CauchyKernel", "DisplacementMV", "S4DKernel", "S4Kernel", "ToeplitzInverse", "ToeplitzMV", "ToeplitzSolve"]
