"""Gradients with a gate for every channel of the key on the GPU."""

import torch
from channel_gradient_cases import ChannelCase, drawn
from channel_gradients_on_device import *  # noqa: F403
from channel_gradients_on_device import SHAPE, found_by_kernels
from devices import Device
from gradient_cases import error, oracle


def test_tokens_that_no_kernel_takes(device: Device, seed: int) -> None:
    """fp32, by the backward in plain torch."""
    x, grads = drawn(ChannelCase(SHAPE, "heavy"), seed, torch.float32)
    found, wanted = found_by_kernels(device, x, grads), oracle(x, grads)
    assert all(error(found[name], wanted[name]) < 1e-4 for name in found)
