"""Short causal convolutions and Hyena's, and what stands beside them in a layer.

Arithmetic is fp32, on CPU tensors fp64 where the inputs are. Results are the same in every run, gradients included. Wrong input
raises ValueError, which names function, argument, expected and got, before anything is launched or written.
"""

from .causal_conv1d import causal_conv1d
from .causal_conv1d_update import causal_conv1d_update

__all__ = ["causal_conv1d", "causal_conv1d_update"]
from .rms_norm_gated import rms_norm_gated

__all__ = ["causal_conv1d", "rms_norm_gated"]
