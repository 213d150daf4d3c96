"""Gradients of the emulated kernels against those of CPU tensors, at hostile values."""

from __future__ import annotations

import pytest
from emulated import emulated
from gradient_fuzz import IN_EMULATOR, Call, check, run
from torch import Tensor

SEEDS = 6


def run_emulated(call: Call, seed: int) -> dict[str, Tensor]:
    with emulated():
        return run(call, "cpu", seed)


@pytest.mark.parametrize("name", sorted(IN_EMULATOR))
def test_the_kernels_give_what_a_cpu_does(name: str) -> None:
    for seed in range(SEEDS):
        check(name, seed, run_emulated)


def run_as_on_an_a100(call: Call, seed: int) -> dict[str, Tensor]:
    with emulated(capability=80, shared_bytes=163 << 10):
        return run(call, "cpu", seed)


def test_mamba2_by_warp_mmas_gives_what_a_cpu_does() -> None:
    for seed in range(2 * SEEDS):
        check("ssd", seed, run_as_on_an_a100)
