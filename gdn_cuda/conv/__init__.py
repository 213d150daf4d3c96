"""Short causal convolutions and Hyena's, and what stands beside them in a layer.

Arithmetic is fp32, on CPU tensors fp64 where the inputs are. Results are the same in every run, gradients included. Wrong input
raises ValueError, which names function, argument, expected and got, before anything is launched or written.
"""

from .causal_conv1d import causal_conv1d
from .conv_split_l2norm import conv_split_l2norm
from .rms_norm_gated import rms_norm_gated

__all__ = ["causal_conv1d", "conv_split_l2norm", "rms_norm_gated"]
