"""The kernels of conv_split_l2norm in the emulator."""

from split_on_device import *  # noqa: F403
