"""The draws of gradient_fuzz call every operator with gradients, and its comparison finds differences."""

from __future__ import annotations

import pytest
import torch
from gradient_fuzz import DRAWS, Call, Draws, check, run
from operator_cases import Recorder
from torch import Tensor

from gdn_cuda.operators.gradients import DIFFERENTIABLE


def test_every_operator_with_gradients_is_drawn() -> None:
    with Recorder() as recorder:
        for draw in DRAWS.values():
            for seed in range(2):
                run(draw(Draws(seed)), "cpu", seed)
    called = {operator._schema.name.partition("::")[2] for operator, _ in recorder.calls}
    assert set(DIFFERENTIABLE) - called == set()


@pytest.mark.parametrize("wrong", [torch.nan, 1.001])
def test_a_difference_is_found(wrong: float) -> None:
    def other(call: Call, seed: int) -> dict[str, Tensor]:
        found = run(call, "cpu", seed)
        return found | {"gradient of u": found["gradient of u"] * wrong}

    check("selective_mamba", 3, run_on_cpu)
    with pytest.raises(AssertionError, match="selective_mamba, seed 3: gradient of u: "):
        check("selective_mamba", 3, other)


def run_on_cpu(call: Call, seed: int) -> dict[str, Tensor]:
    return run(call, "cpu", seed)
