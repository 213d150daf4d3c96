"""Gradients on a GPU against those of CPU tensors, at hostile values, for every operator with gradients."""

from __future__ import annotations

import pytest
from gradient_fuzz import DRAWS, check, run

SEEDS = 40


@pytest.mark.parametrize("name", DRAWS)
def test_gradients_on_a_gpu_are_those_of_the_cpu(name: str) -> None:
    for seed in range(SEEDS):
        check(name, seed, lambda call, seed: run(call, "cuda", seed))
