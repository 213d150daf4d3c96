"""Modules over the structured operators: Toeplitz matrices, and those given by their displacement."""

from .toeplitz import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve

__all__ = ["DisplacementMV", "ToeplitzInverse", "ToeplitzMV", "ToeplitzSolve"]
