"""States of int8 codes on the GPU."""

from state_codes_on_device import *  # noqa: F403
