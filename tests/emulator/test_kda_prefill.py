"""Prefill of Kimi Delta Attention in the emulator."""

from kda_prefill_on_device import *  # noqa: F403
