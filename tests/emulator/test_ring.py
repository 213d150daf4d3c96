"""gdn/ring_decode in the emulator: ring_on_device.py."""

from __future__ import annotations

from ring_on_device import *  # noqa: F403
