"""States of int8 codes in the emulator."""

from state_codes_on_device import *  # noqa: F403
