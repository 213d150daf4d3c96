"""gdn/decode_codes on the GPU: decode_codes_on_device.py."""

from decode_codes_on_device import *  # noqa: F403
