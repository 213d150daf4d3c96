"""Summaries of hyena_long in the emulator."""

from hyena_long_summary_on_device import *  # noqa: F403
