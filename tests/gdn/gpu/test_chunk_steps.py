"""Gating, layout, cumsum and the parts of the chunked form on the GPU."""

from chunk_steps_on_device import *  # noqa: F403
