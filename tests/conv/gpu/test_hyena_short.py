"""hyena_short's kernels against its definition in fp64: layouts, dtypes, taps, lengths, long rows, strides past 2³¹."""

from __future__ import annotations

import hyena_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs, mask
from hyena_short_checks import BOUND, LAYOUTS, check_short, laid_out

from gdn_cuda import hyena_short


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", [1, 7, 8, 9, 32])
def test_layouts_and_taps(dtype: torch.dtype, layout: str, K: int, seed: int) -> None:
    check_short(2, 136, 1032, K, seed, dtype, layout, groups=17, device="cuda")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 2, 7, 127, 128, 129, 4099, 20000])
def test_lengths_and_options(layout: str, L: int, seed: int) -> None:
    for K in (3, 7, 12):
        state = torch.randn(2, 6, K - 1, generator=torch.Generator().manual_seed(seed))
        options = {"padding_mask": mask(2, L, seed), "initial_state": state, "gated_bias": K == 7}
        check_short(2, 6, L, K, seed, layout=layout, device="cuda", **options)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_infinities_end_with_the_filter(layout: str, seed: int) -> None:
    K, at = 7, 1500
    x1, x2, v = (laid_out(x.bfloat16().cuda(), layout) for x in gated_inputs(1, 64, 4000, seed))
    x1[:, :, at] = torch.nan
    weight, bias = (x.float().cuda() for x in fir_parameters(64, 64, K, seed))
    finite = hyena_short(x1, x2, v, weight, bias).isfinite().all(1)[0]
    assert not finite[at : at + K].any() and finite[:at].all() and finite[at + K :].all()


def test_two_runs_give_the_same_bits(seed: int) -> None:
    x1, x2, v = (x.bfloat16().cuda() for x in gated_inputs(1, 256, 8192, seed))
    weight, bias = (x.float().cuda() for x in fir_parameters(16, 256, 7, seed))
    first = hyena_short(x1, x2, v, weight, bias, return_state=True)
    again = hyena_short(x1, x2, v, weight, bias, return_state=True)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_offsets_past_2_to_31(layout: str, seed: int) -> None:
    """Rows so far apart that elements of the second lie beyond 2³¹."""
    far = 2**31 + 64
    x1, x2, v = (x.bfloat16().cuda() for x in gated_inputs(2, 8, 264, seed))
    memory = torch.empty(far + 8 * 264, dtype=torch.bfloat16, device="cuda")
    strides = (far, 264, 1) if layout == "tokens" else (far, 1, 8)
    spread = torch.as_strided(memory, (2, 8, 264), strides).copy_(x1)
    weight, bias = (x.float().cuda() for x in fir_parameters(8, 8, 7, seed))
    y = hyena_short(spread, laid_out(x2, layout), laid_out(v, layout), weight, bias)
    expected, _ = oracle.short(x1, x2, v, weight, bias)
    assert rel_rms(y.cpu(), torch.from_numpy(expected)) < BOUND[torch.bfloat16]
