"""Gating, layout, cumsum and the parts of the chunked form in the emulator."""

from chunk_steps_on_device import *  # noqa: F403
