"""Scans: the recurrences x_t = Ā_t x_{t−1} + (B̄u)_t, y_t = Σ_n C x of Mamba, S6, S7 and RG-LRU (selective), LRU and S5.

The state is fp32, or fp64 for fp64 inputs on the CPU. Results and gradients are the same bits in every run. Invalid input
raises ValueError, which names function, argument, expected and got, before anything is launched or written.
"""

from . import selective_summary  # noqa: F401  (declares its operators)
from .rglru import rglru_scan
from .s7 import s7_scan
from .selective import selective_scan
from .selective_step import selective_state_update
from .simplified_scan import s5_inner, simplified_scan
from .simplified_step import simplified_state_update

__all__ = [
    "rglru_scan",
    "s5_inner",
    "s7_scan",
    "selective_scan",
    "selective_state_update",
    "simplified_scan",
    "simplified_state_update",
]
