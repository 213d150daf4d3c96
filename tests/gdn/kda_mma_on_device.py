"""gdn/kda_mma, for GPUs other than Hopper and for long keys, against the recurrence in fp64: those tests of Kimi Delta
Attention's prefill in which the kernels do not matter, and lengths and head dimensions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import decays
from kda_chunks_on_device import (  # noqa: F401
    BF16,
    BOUND,
    FP16,
    KERNELS,
    check,
    expected,
    inputs,
    launch,
    test_a_nan_stays_in_its_head,
    test_dtypes,
    test_forms_of_gates,
    test_gates_and_keys,
    test_nothing_before_a_reset_shows,
    test_packed_sequences,
    test_scale_without_norms,
    test_sixteen_identical_keys,
    test_sizes,
    test_strided_rows,
)
from kda_prefill_on_device import (  # noqa: F401
    test_a_head_has_the_same_bits_beside_many,
    test_a_pool,
    test_checkpoints_and_states_before,
    test_gates_that_are_copied,
    test_invalid_offsets_write_nothing_else,
    test_rows_with_gaps_and_wide_values,
    test_slots_past_the_pool_write_nothing,
    test_states_after_any_token,
    test_states_after_tokens_that_do_not_exist,
    test_windows_of_packed_sequences,
    test_windows_of_padded_sequences,
    test_write_indices_and_first_states,
)

KERNEL = "gdn/kda_mma"


class ChunksByMma(Device):
    """Where tests expect Hopper's kernels, this one is expected."""

    @contextmanager
    def only(self, *kernels: str, multiprocessors: int = 132) -> Iterator[None]:
        others = set(kernels) - {*KERNELS, "gdn/kda_order"}
        with super().only(*others, KERNEL, multiprocessors=multiprocessors):
            yield


@pytest.fixture
def window() -> str:
    """It has no windows."""
    return "auto"


@pytest.mark.parametrize("T", [1, 15, 16, 17, 63, 64, 65, 300])
def test_lengths(device: Device, T: int) -> None:
    check(device, inputs(T, "bounded", beta=2.0, dk=64))


# One warp of value rows, four, and eight; with as many warps that make operands, and more.
@pytest.mark.parametrize("io", [BF16, FP16])
@pytest.mark.parametrize(
    "dk, dv",
    [(16, 16), (64, 40), (40, 72), (96, 64), (96, 80), (128, 24), (128, 136), (192, 8), (144, 72), (256, 72), (256, 256)],
)
def test_head_dimensions(device: Device, dk: int, dv: int, io: torch.dtype) -> None:
    check(device, inputs(50, "init", beta=2.0, dk=dk, dv=dv, io=io), BOUND[io])


@pytest.mark.parametrize("gates", ["heavy", "edge", "channel reset", "token reset"])
@pytest.mark.parametrize("keys", ["repeated", "zero"])
def test_long_keys(device: Device, gates: str, keys: str) -> None:
    check(device, inputs(100, gates, keys, 2.0, dk=256, dv=16))


# A reset in the same chunk of 16 tokens: token by token, in the warps whose rows are not finite.
@pytest.mark.parametrize("dk", [64, 256])
def test_rows_apart_before_a_reset(device: Device, dk: int) -> None:
    x = inputs(60, "init", dk=dk, dv=72)
    x["value"][0, 20, 0, 5] = torch.inf
    x["gate"][0, 25, 0, :] = -torch.inf
    found = launch(device, x, norm=True)
    output, state = expected(x, decays(x["gate"]), norm=True)
    finite = output.isfinite()
    assert torch.equal(found["out"].isfinite(), finite) and not finite[0, 20:25, 0, 5].any()
    assert rel_rms(found["out"][finite], output[finite]) < BOUND[BF16] and rel_rms(found["state"], state) < BOUND[BF16]


def test_two_runs_have_the_same_bits(device: Device) -> None:
    options: dict[str, Any] = {"norm": True}
    x = inputs(70, "init", Hk=2, Hv=4, dk=64)
    first, second = launch(device, x, **options), launch(device, x, **options)
    assert all(torch.equal(first[name], second[name]) for name in first)
