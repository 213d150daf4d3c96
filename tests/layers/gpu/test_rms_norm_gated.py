"""rms_norm_gated on a GPU against its definition in fp64."""

from __future__ import annotations

import pytest
import torch
from rms_norm_cases import DTYPES, check, drawn, inputs
from rms_norm_on_device import *  # noqa: F403
from rms_norm_on_device import BF16
from rms_norm_oracle import NormOptions

from gdn_cuda import rms_norm_gated


@pytest.mark.parametrize("dtype", DTYPES)
def test_very_long_rows(dtype: torch.dtype, seed: int) -> None:
    check(inputs(17, 20000, seed=seed, dtypes=(dtype,) * 3, device="cuda"), NormOptions(), seed)


def test_strides_beyond_32_bits(seed: int) -> None:
    """The last row begins 2^32 elements after the first."""
    memory = torch.zeros(2**32 + 128, dtype=BF16, device="cuda")
    for columns in (128, 70):
        x = memory.as_strided((3, columns), (2**31, 1))
        x.copy_(drawn(3, columns, seed=seed, dtype=BF16))
        check((x, x, None), NormOptions(), seed)


def test_more_than_2_to_the_31_elements(seed: int) -> None:
    rows = 2**24 + 3
    x = drawn(64, 128, seed=seed, dtype=BF16, device="cuda").repeat(rows // 64 + 1, 1)[:rows]
    out = rms_norm_gated(x, x, None)
    expected = rms_norm_gated(x[:64], x[:64], None)
    assert torch.equal(out[-3:], expected[[rows % 64 - 3, rows % 64 - 2, rows % 64 - 1]])
    assert bool((out[: rows // 64 * 64].view(-1, 64, 128) == expected).all())


def test_runs_are_deterministic(seed: int) -> None:
    leaves = [
        y.requires_grad_() for y in inputs(4000, 128, seed=seed, dtypes=(BF16, BF16, BF16), device="cuda") if y is not None
    ]
    grad = drawn(4000, 128, seed=seed + 3, dtype=BF16, device="cuda")
    first, second = (torch.autograd.grad(rms_norm_gated(*leaves), leaves, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_graphs_and_compiled_code(seed: int) -> None:
    given = inputs(100, 32, 128, seed=seed, dtypes=(BF16, BF16, torch.float32), device="cuda")
    expected = rms_norm_gated(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rms_norm_gated(*given)
    graph.replay()
    assert torch.equal(out, expected)
    compiled = torch.compile(lambda *x: rms_norm_gated(*x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), expected)
