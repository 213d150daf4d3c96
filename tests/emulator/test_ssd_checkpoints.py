"""States that ssd_scan reports, by its kernels in the emulator."""

from checkpoints_on_device import *  # noqa: F403
