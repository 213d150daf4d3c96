"""The kernels of hyena_medium and its gradients in the emulator."""

from hyena_medium_on_device import *  # noqa: F403
