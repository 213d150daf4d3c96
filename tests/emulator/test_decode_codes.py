"""gdn/decode_codes in the emulator: decode_codes_on_device.py."""

from decode_codes_on_device import *  # noqa: F403
