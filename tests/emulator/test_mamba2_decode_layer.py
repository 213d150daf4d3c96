"""layers/mamba2_decode_layer in the emulator."""

from __future__ import annotations

from mamba2_layer_on_device import *  # noqa: F403
