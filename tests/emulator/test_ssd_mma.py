"""ssd/prefill_mma and ssd/backward_mma in the emulator, as GPUs other than Hopper run them: the tests of ssd_on_device.py, of
long ones and those of many cases a few."""

from __future__ import annotations

import functools

import checkpoints_on_device as reported
import pytest
import ssd_on_device as cases
import torch
from checkpoints_on_device import (  # noqa: F401
    test_a_pool_whose_sequences_are_not_all_computed,
    test_after_every_so_many_tokens,
    test_what_follows_is_not_in_a_state,
)
from devices import Device
from emulated import emulated
from ssd_on_device import (  # noqa: F401
    BF16,
    F16,
    check,
    check_gradients,
    check_pool,
    check_summary,
    drawn,
    test_a_pool_that_is_only_read,
    test_a_reset_in_an_earlier_segment,
    test_a_reset_stops_what_is_not_finite,
    test_an_infinite_rate_at_a_tail,
    test_autograd,
    test_decays,
    test_gradients_after_a_reset,
    test_gradients_after_a_reset_after_an_infinite_token,
    test_gradients_before_a_reset,
    test_gradients_have_the_same_bits_in_two_runs,
    test_gradients_of_groups,
    test_gradients_of_numbered_sequences,
    test_gradients_of_packed_sequences,
    test_gradients_of_segments,
    test_gradients_of_views_and_rounded_parameters,
    test_gradients_with_decays,
    test_gradients_within_limits,
    test_gradients_without_tokens,
    test_limits,
    test_nan_stays_in_its_sequence_and_head_or_group,
    test_summaries_of_packed_sequences,
    test_the_next_sequence_is_not_read,
    test_tokens_after_a_reset_do_not_see_those_before,
    test_two_runs_have_the_same_bits,
    test_views_of_one_projection,
)

# Capability and shared memory of a block: two chunks of B and C fit with 128 states and z, or one.
A100, L40S = (80, 163 << 10), (89, 99 << 10)


def device_like(capability: int, shared_bytes: int) -> Device:
    return Device("cpu", functools.partial(emulated, capability=capability, shared_bytes=shared_bytes))


@pytest.fixture
def device() -> Device:
    return device_like(*A100)


@pytest.mark.parametrize("length", [0, 1, 64, 65, 200])
def test_lengths(length: int, device: Device, seed: int) -> None:
    check(device, drawn(device, seed, T=length, N=64, H=2, dtype=BF16))


@pytest.mark.parametrize("P, N, gpu", [(64, 64, A100), (72, 128, A100), (8, 72, L40S), (136, 200, L40S)])
@pytest.mark.parametrize("z", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_sizes_of_heads(dtype: torch.dtype, z: bool, P: int, N: int, gpu: tuple[int, int], seed: int) -> None:
    """Every configuration; one head of a group and several, D of heads and of channels."""
    H, G = ((3, 1), (2, 2), (3, 3), (5, 1))[seed % 4]
    device = device_like(*gpu)
    check(device, drawn(device, seed, T=70, H=H, G=G, P=P, N=N, z=z, D=seed % 3, dtype=dtype))


@pytest.mark.parametrize("z", [False, True])
def test_packed(z: bool, device: Device, seed: int) -> None:
    check(device, drawn(device, seed, T=175, H=2, N=64, lengths=(30, 0, 1, 75, 64), z=z))


@pytest.mark.parametrize("H, P, N, length", [(3, 64, 64, 0), (3, 64, 64, 1), (2, 80, 128, 150)])
def test_summaries(H: int, P: int, N: int, length: int, device: Device, seed: int) -> None:
    check_summary(device, drawn(device, seed, T=length, H=H, G=1, P=P, N=N, B=2))


def test_summaries_of_segments(device: Device, seed: int) -> None:
    check_summary(device, drawn(device, seed, T=1100, H=1, G=1, N=64, decay=0.01))


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_segments(decay: float, device: Device, seed: int) -> None:
    check(device, drawn(device, seed, T=1100, H=1, G=1, N=64, decay=decay, z=bool(seed % 2)))


def test_segments_read_a_slot_before_it_is_written(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=1100, H=2, G=1, N=64, decay=1e-4)
    check_pool(device, x, x.pop("initial_state"), [0], None, None)


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_sequences_of_rows(decay: float, device: Device, seed: int) -> None:
    cases.test_sequences_of_rows(70, decay, device, seed)


@pytest.mark.parametrize("dtype, write, begin", [(BF16, [0, 4, 7, -1], None), (F16, None, [True, False, True, True])])
def test_pools(dtype: torch.dtype, write: list[int] | None, begin: list[bool] | None, device: Device, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    pool = torch.randn(6, 3, 64, 64, generator=rng).to(dtype)[:, 1:]
    x = drawn(device, seed, T=170, H=2, N=64, lengths=(70, 0, 65, 30), z=bool(seed % 2))
    check_pool(device, x, pool, [3, 1, 5 if seed % 2 else 6, -1], begin, write)


@pytest.mark.parametrize("P, N, gpu", [(64, 128, A100), (136, 200, L40S)])
def test_boundaries(P: int, N: int, gpu: tuple[int, int], seed: int) -> None:
    reported.test_boundaries(F16, P, N, device_like(*gpu), seed)


# ---- Gradients


@pytest.mark.parametrize("T", [1, 64, 65])
def test_gradients(T: int, device: Device) -> None:
    check_gradients(device, drawn(device, 1, T=T, H=2, G=1, N=64), slack=2)


@pytest.mark.parametrize(
    "P, N, gpu", [(64, 64, A100), (72, 128, A100), (8, 72, L40S), (128, 144, A100), (80, 192, L40S), (136, 256, L40S)]
)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_gradients_of_sizes(dtype: torch.dtype, P: int, N: int, gpu: tuple[int, int]) -> None:
    """Every configuration; row tiles that a head fills and not, heads of a group and groups."""
    H, G = {64: (3, 1), 72: (2, 2)}.get(P, (4, 2))
    device = device_like(*gpu)
    check_gradients(device, drawn(device, 2, T=70, H=H, G=G, P=P, N=N, dtype=dtype), slack=5)
