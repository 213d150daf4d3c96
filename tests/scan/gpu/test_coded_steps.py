"""selective_state_update on int8 states on the GPU."""

from coded_steps_on_device import *  # noqa: F403
