"""Mamba-2's kernels on the GPU."""

import gc
import os

import pytest
import torch
from devices import Device
from helpers import rel_rms
from other_kernels import check_with
from ssd_on_device import *  # noqa: F403
from ssd_on_device import BF16, TOKENS, backward_of, drawn, expected, scanned


@pytest.mark.parametrize(("P", "N"), [(12, 20), (64, 128)])
def test_fp32_goes_by_selective_scan(device: Device, P: int, N: int) -> None:
    x = drawn(device, 7, P=P, N=N, dtype=torch.float32)
    found, wanted = scanned(**x), expected(x)
    for one, other in zip(found, wanted, strict=True):
        assert rel_rms(one.double(), other) < 1e-5


# ---- Offsets beyond 2^31 elements


def need_memory(gigabytes: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < gigabytes << 30:
        pytest.skip(f"needs {gigabytes} GB of memory")


def test_packed_tokens_beyond_2_to_the_31_elements(device: Device, seed: int) -> None:
    """The last sequence has the bits that it has alone, gradients too; the one before it is zeros."""
    need_memory(64)
    H, P, own = 64, 64, 300
    before = 2**31 // (H * P) + 70
    alone = drawn(device, seed, T=own, H=H, G=1, P=P, z=True)
    far = dict(alone)
    for name in TOKENS:
        far[name] = alone[name].new_zeros((1, before + own, *alone[name].shape[2:]))
        far[name][:, before:] = alone[name]
    far["cu_seqlens"] = torch.tensor([0, before, before + own], device=device.name)
    far["initial_state"] = torch.cat([torch.zeros_like(alone["initial_state"]), alone["initial_state"]])
    with torch.no_grad():
        out, last = scanned(**far, deterministic=True)
        wanted, state = scanned(**alone, deterministic=True)
    assert torch.equal(out[:, before:], wanted) and torch.equal(last[1:], state)
    assert not out[:, :before].any() and not last[0].any()
    del out, far["z"], alone["z"]
    results = []
    for x in (far, alone):
        slope = torch.zeros_like(x["x"])
        slope[:, -own:] = torch.randn(slope[:, -own:].shape, generator=torch.Generator().manual_seed(seed)).to(slope)
        results.append(backward_of(device, x | {"out_gradient": slope, "deterministic": True}))
    for found, expected_rows in zip(results[0][:4], results[1][:4], strict=True):
        assert torch.equal(found[:, before:], expected_rows)
    assert torch.equal(results[0][5][1:], results[1][5])


def test_rows_2_to_the_31_elements_apart(device: Device, seed: int) -> None:
    need_memory(24)
    x = drawn(device, seed, T=70, H=4, G=1, B=2)
    sizes, step = x["x"].shape, 2**31 + 64
    reach = step + x["x"][0].numel()
    far, out = (torch.empty(reach, dtype=BF16, device=device.name).as_strided(sizes, (step, 256, 64, 1)) for _ in range(2))
    far.copy_(x["x"])
    with torch.no_grad():
        wanted, state = scanned(**x)
        found, last = scanned(**x | {"x": far}, out=out)
    assert found is out and torch.equal(out, wanted) and torch.equal(last, state)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_slots_beyond_2_to_the_31_elements(dtype: torch.dtype, device: Device, seed: int) -> None:
    need_memory(24)
    x = drawn(device, seed, T=70, H=64, G=1, B=2)
    small = x.pop("initial_state").to(dtype)
    pool = torch.zeros(4200, 64, 64, 128, dtype=dtype, device=device.name)
    slots = torch.tensor([4199, 2], device=device.name)
    pool[slots] = small
    with torch.no_grad():
        out, _ = scanned(**x, initial_state=pool, state_indices=slots)
        wanted, _ = scanned(**x, initial_state=small, state_indices=torch.tensor([0, 1], device=device.name))
    assert torch.equal(out, wanted) and torch.equal(pool[slots], small)
    assert int(pool.flatten(1).any(1).sum()) == 2


@pytest.mark.skipif("GDN_SSD_PREFILL" in os.environ, reason="this is the process with GDN_SSD_PREFILL")
def test_all_tests_of_this_file_pass_with_prefill_mma() -> None:
    check_with("mma", __file__, "GDN_SSD_PREFILL")
