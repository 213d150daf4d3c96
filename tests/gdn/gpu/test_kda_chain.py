"""The chains of Kimi Delta Attention's backward on the GPU."""

from kda_chain_on_device import *  # noqa: F403
