"""chunked_summary with a gate for every channel of the key on the GPU."""

import pytest
import torch
from channel_summary_on_device import *  # noqa: F403
from channel_summary_on_device import BF16, BOUND, KERNELS, close, exact, inputs, summary_of
from devices import Device
from other_kernels import CHOSEN, check_with


def test_many_heads(device: Device) -> None:
    """Blocks of several waves. The oracle keeps every token's state: 2.5 GB."""
    x = inputs(300, "init", Hk=32, Hv=64, dv=128)
    assert close(summary_of(device, x), exact(x), BOUND[BF16])


def test_bits_do_not_depend_on_what_is_beside(device: Device) -> None:
    x = inputs(1000, "bounded", Hk=64, Hv=64, dv=128)
    found = summary_of(device, x)
    one = {name: t[:, -1:] if name == "state" else t[:, :, -1:] for name, t in x.items()}
    assert torch.equal(summary_of(device, one), found[:, -1:]) and torch.equal(summary_of(device, x, *KERNELS), found)


@pytest.mark.skipif(CHOSEN != "auto", reason="this is the child")
def test_all_tests_of_this_file_pass_with_mma() -> None:
    check_with("mma", __file__)
