"""Gating, layout, cumsum and the parts of the chunked form on the GPU."""

from pieces_on_device import *  # noqa: F403
