"""The kernels of selective_scan, forward and backward, in the emulator."""

from selective_on_device import *  # noqa: F403
