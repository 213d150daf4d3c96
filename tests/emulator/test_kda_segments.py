"""Segments of Kimi Delta Attention's prefill in the emulator."""

from kda_segments_on_device import *  # noqa: F403
