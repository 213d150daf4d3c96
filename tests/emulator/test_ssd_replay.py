"""ssd/replay_step in the emulator."""

from ssd_replay_on_device import *  # noqa: F403
