"""The gradient of a state alone, on the GPU."""

from state_gradient_on_device import *  # noqa: F403
