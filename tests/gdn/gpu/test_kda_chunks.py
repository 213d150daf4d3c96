"""Kimi Delta Attention by chunks on the GPU."""

from kda_chunks_on_device import *  # noqa: F403
