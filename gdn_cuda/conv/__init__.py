"""Convolutions: short causal ones and Hyena's.

Arithmetic is fp32, or fp64 for fp64 inputs on the CPU. Results, gradients included, have the same bits in every run. Invalid
input raises ValueError with the function, the argument, what was expected and what came, before anything is launched or
written.
"""

from . import hyena_long_summary  # noqa: F401  (declares its operators)
from .causal_conv1d import causal_conv1d
from .causal_conv1d_update import causal_conv1d_update
from .fft_causal_conv import fft_causal_conv
from .hyena_filter import hyena_filter
from .hyena_fir_step import hyena_fir_step
from .hyena_long import hyena_long
from .hyena_medium import hyena_medium
from .hyena_modal_step import hyena_modal_step
from .hyena_short import hyena_short
from .split_projections import Projections, split_projections

__all__ = [
    "Projections",
    "causal_conv1d",
    "causal_conv1d_update",
    "fft_causal_conv",
    "hyena_filter",
    "hyena_fir_step",
    "hyena_long",
    "hyena_medium",
    "hyena_modal_step",
    "hyena_short",
    "split_projections",
]
