"""scan/selective_step_codes in the emulator: code_steps_on_device.py."""

from code_steps_on_device import *  # noqa: F403
