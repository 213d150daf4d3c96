"""kda_decode_layer on CPU tensors against its definition, and against the operators that it fuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kda_oracle import POOLS, check

from gdn_cuda import kda_decode_layer
from gdn_cuda.layers.kda_decode_layer import by_operators, layer_arguments
from gdn_cuda.operators import examples

CASES = [case for name, case in examples.load().items() if name.startswith("kda_decode_layer")]
FORMS: dict[str, dict[str, Any]] = {
    "softplus": {},
    "bounded": {"lower_bound": -5.0},
    "bounded without A_log": {"lower_bound": -5.0, "A_log": None},
    "no dt_bias": {"dt_bias": None},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("B", [0, 1, 3])
def test_examples(case: Any, B: int, seed: int) -> None:
    check(case.make(B, 1, seed), kda_decode_layer)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads", [(1, 1), (2, 6), (3, 3)])
def test_heads_and_gates(heads: tuple[int, int], form: str, seed: int) -> None:
    for io in (torch.float16, torch.float64):
        x = layer_arguments(2, seed, heads, 96, 24, io=io) | FORMS[form]
        if io == torch.float64:
            x = {name: y.double() if isinstance(y, torch.Tensor) else y for name, y in x.items()}
        check(x, kda_decode_layer)


@pytest.mark.parametrize("taps", [2, 3, 4, 7])
@pytest.mark.parametrize("separate", [False, True])
def test_operators_in_sequence(separate: bool, taps: int, seed: int) -> None:
    slots = torch.tensor([5, 0, -1, 3], dtype=torch.int32)
    for state, more in ((torch.float32, FORMS["bounded"]), (torch.bfloat16, {"z": None, "norm_weight": None})):
        x = layer_arguments(4, seed, (1, 2), taps=taps, columns=taps + 1, slots=8, state=state, separate=separate)
        x |= {"state_indices": slots, "null_slot": 0} | more
        copies = {name: x[name].clone(memory_format=torch.preserve_format) for name in POOLS if name in x}
        found = check(x | copies, by_operators, out_argument=False)
        if taps <= 4:
            assert torch.allclose(kda_decode_layer(**x).float(), found.float(), rtol=2**-6, atol=2**-9)


def test_dtypes_that_the_kernel_does_not_take(seed: int) -> None:
    x = layer_arguments(3, seed, (1, 2), 32, 12, io=torch.float32)
    check(x, by_operators, out_argument=False)


def test_resets_of_channels(seed: int) -> None:
    x = layer_arguments(2, seed)
    x["a"][0, 1, 3] = torch.inf
    x["state_pool"][0, 1, :, 3] = torch.inf
    x["state_pool"][0, 1, 2, 3] = torch.nan
    out = check(x, kda_decode_layer)
    assert out.isfinite().all() and x["state_pool"].isfinite().all()
