"""Convolutions: short causal ones and Hyena's.

Arithmetic is fp32, on CPU tensors fp64 where the inputs are. Results are the same in every run, gradients included. Wrong input
raises ValueError, which names function, argument, expected and got, before anything is launched or written.
"""

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
