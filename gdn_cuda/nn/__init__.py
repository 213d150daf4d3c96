"""Modules over the structured operators: a Cauchy matrix, and the kernels of S4 and S4D."""

from .cauchy import CauchyKernel
from .s4 import S4Kernel
from .s4d import S4DKernel

__all__ = ["CauchyKernel", "S4DKernel", "S4Kernel"]
