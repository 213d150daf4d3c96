"""Gating, layout, cumsum and the parts of the chunked form in the emulator."""

from pieces_on_device import *  # noqa: F403
