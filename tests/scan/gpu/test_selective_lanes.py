"""scan/selective_lanes on the GPU."""

from selective_lanes_on_device import *  # noqa: F403
