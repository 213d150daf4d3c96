"""Mamba-2's kernels on the GPU."""

from ssd_on_device import *  # noqa: F403
