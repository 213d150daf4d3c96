"""Prefill of Kimi Delta Attention on the GPU."""

from kda_prefill_on_device import *  # noqa: F403
