"""fused_decode with a gate for every channel of the key on the GPU."""

from channel_decode_on_device import *  # noqa: F403
