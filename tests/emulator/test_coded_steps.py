"""selective_state_update on int8 states in the emulator."""

from coded_steps_on_device import *  # noqa: F403
