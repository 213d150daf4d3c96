"""Initial states of conv_split_l2norm in the emulator."""

from split_states_on_device import *  # noqa: F403
