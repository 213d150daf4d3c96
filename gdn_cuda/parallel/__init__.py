"""Sequences whose tokens are on several ranks of torch.distributed: each has a part of them, and layers exchange states.

`context` says once a batch who has which tokens. `chunked_forward`, `causal_conv1d`, `selective_scan` and `ssd_scan` are the
operators of these names for a rank's tokens, and layers of `gdn_cuda.nn` take a context. `shard` and `unshard` take a rank's
tokens and gather them, `to_heads` and `from_heads` exchange all heads of a rank's tokens for some heads of all tokens.
"""

from .contexts import Context, context
from .halos import causal_conv1d
from .recurrence import chunked_forward
from .selective import selective_scan
from .ssd import ssd_scan
from .tokens import from_heads, shard, to_heads, unshard

__all__ = [
    "Context",
    "context",
    "chunked_forward",
    "causal_conv1d",
    "selective_scan",
    "ssd_scan",
    "shard",
    "unshard",
    "to_heads",
    "from_heads",
]
