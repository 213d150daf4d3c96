"""Short causal convolutions and Hyena's, and what stands beside them in a layer.

Arithmetic is fp32, on CPU tensors fp64 where the inputs are. Results are the same in every run, gradients included. Wrong input
raises ValueError, which names function, argument, expected and got, before anything is launched or written.
"""

from .fft_causal_conv import fft_causal_conv
from .hyena_filter import hyena_filter
from .hyena_fir_step import hyena_fir_step
from .hyena_modal_step import hyena_modal_step
from .split_projections import Projections, split_projections

__all__ = [
    "Projections",
    "fft_causal_conv",
    "hyena_filter",
    "hyena_fir_step",
    "hyena_modal_step",
    "split_projections",
]
from .hyena_medium import hyena_medium
from .hyena_short import hyena_short

__all__: list[str] = ["hyena_medium", "hyena_short"]
from .causal_conv1d import causal_conv1d

__all__ = ["causal_conv1d"]
