"""Mamba-2's layer on the GPU."""

from mamba2_on_device import *  # noqa: F403
