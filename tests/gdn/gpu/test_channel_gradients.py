"""Gradients with a gate for every channel of the key on the GPU."""

from channel_gradients_on_device import *  # noqa: F403
