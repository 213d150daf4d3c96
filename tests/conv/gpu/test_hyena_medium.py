"""hyena_medium's kernel against its definition in fp64: layouts, dtypes, taps, lengths, long rows."""

from __future__ import annotations

import pytest
import torch
from hyena_cases import fir_parameters, gated_inputs, mask
from hyena_medium_checks import check_medium
from hyena_short_checks import LAYOUTS

from gdn_cuda import hyena_medium


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", [1, 2, 7, 127, 128, 129, 1024])
def test_layouts_and_taps(dtype: torch.dtype, layout: str, K: int, seed: int) -> None:
    check_medium(2, 34, 2056, K, seed, dtype, layout, groups=17, device="cuda")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 2, 127, 128, 129, 511, 512, 513, 4099, 40000])
def test_lengths_and_options(layout: str, L: int, seed: int) -> None:
    for K in (7, 128, 300):
        state = torch.randn(2, 6, K - 1, generator=torch.Generator().manual_seed(seed))
        options = {"padding_mask": mask(2, L, seed), "initial_state": state}
        check_medium(2, 6, L, K, seed, layout=layout, device="cuda", **options)


def test_two_runs_give_the_same_bits(seed: int) -> None:
    x1, x2, v = (x.bfloat16().cuda() for x in gated_inputs(1, 256, 8192, seed))
    weight, bias = (x.float().cuda() for x in fir_parameters(16, 256, 128, seed))
    first = hyena_medium(x1, x2, v, weight, bias, return_state=True)
    again = hyena_medium(x1, x2, v, weight, bias, return_state=True)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
