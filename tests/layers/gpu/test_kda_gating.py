"""fused_kda_gating on the GPU."""

from kda_gating_on_device import *  # noqa: F403
