"""scan/selective_lanes in the emulator."""

from selective_lanes_on_device import *  # noqa: F403
