"""Layers: the split convolution, gates and norm of a Gated Delta Net layer, the layer between its projections, and steps of
Kimi Delta Attention and Mamba-2 layers.

Wrong input raises ValueError, which names function, argument, expected and got, before anything is launched or written.
`conv_split_l2norm` and `rms_norm_gated` have gradients; `gdn_cuda.gdn` describes backward of the others.
"""

from .conv_split_l2norm import conv_split_l2norm
from .decode_layer import gdn_decode_layer
from .gating import fused_gdn_gating
from .kda_decode_layer import kda_decode_layer
from .kda_gating import fused_kda_gating
from .kda_prefill_layer import kda_prefill_layer
from .mamba2_decode_layer import mamba2_decode_layer
from .prefill_layer import gdn_prefill_layer
from .rms_norm_gated import rms_norm_gated

__all__ = [
    "fused_gdn_gating",
    "fused_kda_gating",
    "conv_split_l2norm",
    "rms_norm_gated",
    "gdn_decode_layer",
    "gdn_prefill_layer",
    "kda_decode_layer",
    "kda_prefill_layer",
    "mamba2_decode_layer",
]
