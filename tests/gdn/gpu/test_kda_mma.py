"""gdn/kda_mma on the GPU; on a Hopper in another process, which GDN_PREFILL has choose it."""

import pytest
import torch
from devices import GPU, Device
from kda_mma_on_device import *  # noqa: F403
from other_kernels import CHOSEN, check_with


@pytest.fixture
def device() -> Device:
    if CHOSEN != "mma" and torch.cuda.get_device_capability() == (9, 0):
        pytest.skip("Hopper's own kernels would be chosen")
    return GPU


@pytest.mark.skipif(CHOSEN != "auto", reason="this is the child")
def test_all_tests_of_this_file_pass_with_mma() -> None:
    check_with("mma", __file__)
