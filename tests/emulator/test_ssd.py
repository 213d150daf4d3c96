"""Mamba-2's kernels in the emulator."""

from ssd_on_device import *  # noqa: F403
