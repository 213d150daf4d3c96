"""recurrent_forward with a gate for every channel of the key on the GPU."""

from channel_gates_on_device import *  # noqa: F403
