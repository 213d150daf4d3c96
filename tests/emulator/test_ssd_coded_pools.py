"""ssd_scan on int8 pools in the emulator."""

from coded_pools_on_device import *  # noqa: F403
