"""States that ssd_scan reports, by its kernels on the GPU."""

import os

import pytest
import torch
from checkpoints_on_device import *  # noqa: F403
from checkpoints_on_device import check_rows, drawn, reported
from devices import Device
from other_kernels import check_with

from gdn_cuda import ssd_scan


def test_an_offset_beyond_its_sequence_is_a_row_of_nan(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=70, B=2, H=2, G=1, N=64)
    _, _, rows = reported(device, x, checkpoint_offsets=torch.tensor([71, -3], device=device.name))
    assert rows[0].isnan().all() and not rows[1].any()


def test_boundaries_that_decrease_touch_no_other_memory(device: Device, seed: int) -> None:
    """Which numbers are found does not matter. Under memcheck."""
    x = drawn(device, seed, T=700, H=2, G=1, N=64, lengths=(300, 400))
    boundaries = torch.tensor([0, 650, 3, 1 << 30, -5, 299, 20, 640] * 40, device=device.name)
    reported(device, x, boundaries=boundaries)
    torch.cuda.synchronize()


def test_fp32_reports_states_too(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=300, H=2, G=1, N=64, dtype=torch.float32, lengths=(130, 0, 170))
    boundaries = torch.tensor([0, 64, 130, 200, 300], device=device.name)
    _, _, rows = ssd_scan(**x, boundaries=boundaries)
    check_rows(x, rows, [(0, 64), (0, 130), (2, 70), (2, 170)], 1e-5)


@pytest.mark.skipif("GDN_SSD_PREFILL" in os.environ, reason="this is the process with GDN_SSD_PREFILL")
def test_all_tests_of_this_file_pass_with_prefill_mma() -> None:
    check_with("mma", __file__, "GDN_SSD_PREFILL")
