"""Tails and segments of chunked_summary on the GPU."""

from summary_on_device import *  # noqa: F403
