"""fold_states on the GPU."""

from fold_states_on_device import *  # noqa: F403
