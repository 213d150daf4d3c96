"""The kernels of hyena_filter in the emulator."""

from hyena_filter_on_device import *  # noqa: F403
