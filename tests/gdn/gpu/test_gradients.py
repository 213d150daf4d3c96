"""Gradients of chunked_forward on the GPU."""

from gradients_on_device import *  # noqa: F403
