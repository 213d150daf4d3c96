"""Temporary."""

from selective_try_on_device import *  # noqa: F403
