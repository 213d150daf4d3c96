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
