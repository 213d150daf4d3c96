"""Mamba-2's kernels on the GPU."""

import os

import pytest
import torch
from devices import Device
from helpers import rel_rms
from other_kernels import check_with
from ssd_on_device import *  # noqa: F403
from ssd_on_device import GRADIENT, drawn, expected, expected_gradients, scanned


@pytest.mark.parametrize(("P", "N"), [(12, 20), (64, 128)])
def test_fp32_goes_by_selective_scan(device: Device, P: int, N: int) -> None:
    x = drawn(device, 7, P=P, N=N, dtype=torch.float32)
    found, wanted = scanned(**x), expected(x)
    for one, other in zip(found, wanted, strict=True):
        assert rel_rms(one.double(), other) < 1e-5


def test_gradients_with_256_states(device: Device) -> None:
    x = drawn(device, 8, T=100, H=2, G=1, N=256)
    leaves = {name: y.requires_grad_() for name, y in x.items() if isinstance(y, torch.Tensor)}
    found = torch.autograd.grad(scanned(**x)[0].sum(), list(leaves.values()))
    detached = {name: y.detach() if isinstance(y, torch.Tensor) else y for name, y in x.items()}
    wanted = expected_gradients(detached, torch.ones_like(detached["x"]), None)
    for name, grad in zip(leaves, found, strict=True):
        assert rel_rms(grad.double(), wanted[name]) < GRADIENT[torch.bfloat16], name


@pytest.mark.skipif("GDN_SSD_PREFILL" in os.environ, reason="this is the process with GDN_SSD_PREFILL")
def test_all_tests_of_this_file_pass_with_prefill_mma() -> None:
    check_with("mma", __file__, "GDN_SSD_PREFILL")
