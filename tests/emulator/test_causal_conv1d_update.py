"""The kernels of causal_conv1d_update in the emulator."""

from causal_step_on_device import *  # noqa: F403
