"""Summaries of selective scans on the GPU."""

from summaries_on_device import *  # noqa: F403
