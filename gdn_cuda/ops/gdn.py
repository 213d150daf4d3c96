"""`gdn_cuda.gdn`, with what the family `layers` has of Gated Delta Net, as this module has always had it."""

from .. import gdn as _gdn
from ..gdn import *  # noqa: F403
from ..layers import fused_gdn_gating, gdn_decode_layer, gdn_prefill_layer

__all__ = ["fused_gdn_gating", "gdn_decode_layer", "gdn_prefill_layer"]
__all__ += _gdn.__all__
