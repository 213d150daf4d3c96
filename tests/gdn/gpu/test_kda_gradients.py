"""gdn/kda_gradients alone on the GPU."""

from kda_gradients_on_device import *  # noqa: F403
