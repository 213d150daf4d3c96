"""layers/decode_layer with gates of channels in the emulator."""

from __future__ import annotations

from kda_layer_on_device import *  # noqa: F403
