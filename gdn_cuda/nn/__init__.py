"""Modules: layers of Gated Delta Net and Kimi Delta Attention; LRU, RG-LRU, S5, S6, S7, Mamba and Mamba-2 on the scans; Hyena
and LFM2's short convolution; S4, S4D, Cauchy and Toeplitz matrices, and matrices given by their displacement. docs/scan.md has
the rule for dtypes and autocast that all modules follow."""

from ..operators.caller import name_errors_of
from .cauchy import CauchyKernel
from .gated_delta_net import GatedDeltaNet
from .hyena import HyenaCascade
from .kimi_delta_attention import KimiDeltaAttention
from .lru import LRU
from .mamba import S6, Mamba
from .mamba2 import Mamba2
from .rglru import RGLRU
from .s4 import S4Kernel
from .s4_layer import S4, S4D
from .s4d import S4DKernel
from .s5 import S5
from .s7 import S7
from .short_conv import ShortConv
from .toeplitz import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve

__all__ = [
    "CauchyKernel",
    "DisplacementMV",
    "GatedDeltaNet",
    "HyenaCascade",
    "KimiDeltaAttention",
    "LRU",
    "Mamba",
    "Mamba2",
    "RGLRU",
    "S4",
    "S4D",
    "S4DKernel",
    "S4Kernel",
    "S5",
    "S6",
    "S7",
    "ShortConv",
    "ToeplitzInverse",
    "ToeplitzMV",
    "ToeplitzSolve",
]

for _name in __all__:
    name_errors_of(globals()[_name])
