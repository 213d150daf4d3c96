"""`gdn_cuda.gdn` and the Gated Delta Net operators of the family `layers`, under the module name of earlier versions."""

from .. import gdn as _gdn
from ..gdn import *  # noqa: F403
from ..layers import fused_gdn_gating, gdn_decode_layer, gdn_prefill_layer

__all__ = ["fused_gdn_gating", "gdn_decode_layer", "gdn_prefill_layer"]
__all__ += _gdn.__all__
