"""ssd_scan on int8 pools on the GPU."""

from coded_pools_on_device import *  # noqa: F403
