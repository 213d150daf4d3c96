"""What the backward of Kimi Delta Attention prepares, on the GPU."""

from kda_training_records_on_device import *  # noqa: F403
