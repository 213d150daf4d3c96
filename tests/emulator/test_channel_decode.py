"""fused_decode with a gate for every channel of the key in the emulator."""

from channel_decode_on_device import *  # noqa: F403
