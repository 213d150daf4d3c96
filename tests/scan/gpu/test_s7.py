"""s7_scan's kernels against the definition in fp64."""

from __future__ import annotations

import gated_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import s7_scan

OUT = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def inputs(b: int, H: int, N: int, L: int, seed: int, dtype: torch.dtype, bias: bool = True) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(b, H, L), (b, N, L), (b, N, H, L), (b, H, N, L), *([(b, N, L)] if bias else [])]
    return [torch.randn(shape, generator=rng).to("cuda", dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("dtype", OUT)
@pytest.mark.parametrize(
    "b, H, N, L", [(2, 5, 3, 37), (1, 3, 6, 1104), (1, 2, 2, 2100), (1, 1, 1, 1), (2, 3, 2, 0), (0, 3, 2, 4)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients(b: int, H: int, N: int, L: int, bias: bool, dtype: torch.dtype, seed: int) -> None:
    given = inputs(b, H, N, L, seed, dtype, bias)
    out, last = s7_scan(*given, return_last_state=True)
    wide = [x.detach().cpu().double().requires_grad_() for x in given]
    expected, expected_last = oracle.s7(*wide)
    assert rel_rms(out, expected) < OUT[dtype] and rel_rms(last, expected_last) < 1e-5
    if L == 0:
        return
    grads = torch.randn(out.shape).to(out), torch.randn(last.shape).to(last)
    ours = torch.autograd.grad((out, last), given, grads)
    theirs = torch.autograd.grad((expected, expected_last), wide, [x.cpu().double() for x in grads])
    for mine, other in zip(ours, theirs, strict=True):
        assert rel_rms(mine, other) < max(OUT[dtype], 1e-4)


def test_long_memories() -> None:
    """Decays of 1 − 1e-6 over 65536 tokens."""
    L = 65536
    A, ones = torch.full((1, 1, L), 1e3, device="cuda"), torch.ones(1, 1, L, device="cuda")
    u = torch.randn(1, 1, L, device="cuda")
    out = s7_scan(u, A, ones[None], ones[None])
    decay, x, expected = 1 - 1 / (1e6 + 0.5), 0.0, []
    for value in u[0, 0].double().tolist():
        x = decay * x + value
        expected.append(x)
    assert rel_rms(out[0, 0], torch.tensor(expected, dtype=torch.float64)) < 1e-5


def test_rows_that_do_not_begin_on_16_bytes(seed: int) -> None:
    given = inputs(1, 3, 5, 72, seed, torch.bfloat16)
    shifted = [torch.cat([x[..., :1], x], -1)[..., 1:] for x in given]
    assert torch.equal(s7_scan(*shifted), s7_scan(*given))


def test_two_runs_are_the_same(seed: int) -> None:
    given = inputs(2, 33, 17, 1500, seed, torch.bfloat16)
    first, second = (torch.autograd.grad(s7_scan(*given).float().square().sum(), given) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_nan_stays_in_its_row(seed: int) -> None:
    """A NaN in A reaches the later outputs of its own batch, and nothing else."""
    given = [x.detach() for x in inputs(2, 3, 5, 72, seed, torch.float32)]
    clean = s7_scan(*given)
    given[1][0, 2, 40] = torch.nan
    out = s7_scan(*given)
    assert (
        torch.equal(out[1], clean[1]) and torch.equal(out[0, :, :40], clean[0, :, :40]) and bool(out[0, :, 40:].isnan().all())
    )


def test_graphs_and_compiled_code(seed: int) -> None:
    given = [x.detach() for x in inputs(1, 8, 4, 72, seed, torch.bfloat16)]
    expected = s7_scan(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = s7_scan(*given)
    graph.replay()
    assert torch.equal(out, expected)
    assert torch.equal(torch.compile(s7_scan, fullgraph=True, backend="aot_eager")(*given), expected)
