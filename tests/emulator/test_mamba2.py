"""Mamba-2's layer in the emulator."""

from mamba2_on_device import *  # noqa: F403
