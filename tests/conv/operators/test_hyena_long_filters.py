"""hyena_medium and hyena_long on CPU tensors: their definitions in fp64, and refusals of wrong input by name."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hyena_fir_checks import LAYOUTS
from hyena_long_checks import check_long
from hyena_medium_checks import check_medium

from gdn_cuda import hyena_long, hyena_medium


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 5, 140])
def test_definitions(dtype: torch.dtype, layout: str, L: int, seed: int) -> None:
    weights = torch.float64 if dtype == torch.float64 else torch.float32
    for K in (1, 7, 128):
        check_medium(2, 6, L, K, seed, dtype, layout, groups=2, weights=weights)
    for S in (1, 16):
        check_long(2, 6, L, S, seed, dtype, layout, groups=2)


def tensors() -> dict[str, Any]:
    return {name: torch.ones(2, 6, 10) for name in ("x1", "x2", "v")} | {"bias": torch.ones(6)}


def medium() -> dict[str, Any]:
    return tensors() | {"weight": torch.ones(3, 1, 9), "initial_state": torch.ones(2, 6, 8)}


def long() -> dict[str, Any]:
    return tensors() | {"residues": torch.ones(3, 5), "log_poles": -torch.ones(3, 5), "initial_state": torch.ones(2, 6, 5)}


# function, argument, value, the end of the error
WRONG: list[tuple[Any, str, Any, str]] = [
    (hyena_medium, "weight", torch.ones(4, 1, 9), "a number of groups that divides the 6 channels, got (4, 1, 9)"),
    (hyena_medium, "weight", torch.ones(3, 1, 1025), "1 to 1024 taps, got (3, 1, 1025)"),
    (hyena_medium, "weight", torch.ones(3, 1, 0), "1 to 1024 taps, got (3, 1, 0)"),
    (hyena_medium, "bias", torch.ones(3), "got (3,)"),
    (hyena_medium, "padding_mask", torch.ones(2, 9), "got (2, 9)"),
    (hyena_medium, "initial_state", torch.ones(2, 6, 9), "got (2, 6, 9)"),
    (hyena_medium, "x2", torch.ones(2, 6, 10).half(), "float32, got float16"),
    (hyena_long, "x1", torch.ones(2, 6), "rank 3 (B, D, L), got (2, 6)"),
    (hyena_long, "residues", torch.ones(4, 5), "a number of groups that divides the 6 channels, got (4, 5)"),
    (hyena_long, "residues", torch.ones(3, 65), "1 to 64 states, got (3, 65)"),
    (hyena_long, "residues", torch.ones(3, 0), "1 to 64 states, got (3, 0)"),
    (hyena_long, "residues", torch.ones(3, 5).bfloat16(), "float32, got bfloat16"),
    (hyena_long, "log_poles", torch.ones(3, 4), "got (3, 4)"),
    (hyena_long, "log_poles", torch.ones(3, 5, 2), "got (3, 5, 2)"),
    (hyena_long, "bias", torch.ones(6, 1), "got (6, 1)"),
    (hyena_long, "initial_state", torch.ones(2, 6, 4), "got (2, 6, 4)"),
]


@pytest.mark.parametrize("function, argument, given, got", WRONG)
def test_wrong_arguments_are_refused_by_name(function: Any, argument: str, given: Any, got: str) -> None:
    arguments = medium() if function is hyena_medium else long()
    with pytest.raises(ValueError, match=rf"^{function.__name__}: {argument}: expected .*{re.escape(got)}$"):
        function(**arguments | {argument: given})


def test_log_poles_may_have_a_last_dimension_of_one() -> None:
    x = long()
    assert torch.equal(hyena_long(**x), hyena_long(**x | {"log_poles": x["log_poles"][..., None]}))
