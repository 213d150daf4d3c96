"""Mamba-2's kernels on the GPU."""

import os

import pytest
import torch
from devices import Device
from helpers import rel_rms
from other_kernels import check_with
from ssd_on_device import *  # noqa: F403
from ssd_on_device import drawn, expected, scanned


@pytest.mark.parametrize(("P", "N"), [(12, 20), (64, 128)])
def test_fp32_goes_by_selective_scan(device: Device, P: int, N: int) -> None:
    x = drawn(device, 7, P=P, N=N, dtype=torch.float32)
    found, wanted = scanned(**x), expected(x)
    for one, other in zip(found, wanted, strict=True):
        assert rel_rms(one.double(), other) < 1e-5


@pytest.mark.skipif("GDN_SSD_PREFILL" in os.environ, reason="this is the process with GDN_SSD_PREFILL")
def test_all_tests_of_this_file_pass_with_prefill_mma() -> None:
    check_with("mma", __file__, "GDN_SSD_PREFILL")
