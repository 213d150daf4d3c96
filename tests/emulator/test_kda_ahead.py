"""Chunks of Kimi Delta Attention prepared beside the owners of states, in the emulator, which runs one block after another."""

from kda_ahead_on_device import *  # noqa: F403
