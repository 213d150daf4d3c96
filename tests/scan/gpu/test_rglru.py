"""rglru_scan's kernels against the definition in fp64: both layouts, every dtype, odd lengths, packed sequences, resets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gated_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from rglru_cases import Inputs, inputs, laid_out
from torch import Tensor

from gdn_cuda import rglru_scan
from gdn_cuda.scan import reference_rglru

OUT = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
GRAD = {torch.float32: 1e-4, torch.bfloat16: 4e-3, torch.float16: 1e-3}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"first_multiplier": True},
    {"initial": True, "resets": True, "first_multiplier": True},
    {"packed": [0, 0, 17, 17, 150, 299]},
    {"packed": [0, 1, 2, 64, 128, 256, 300], "initial": True, "resets": True},
    {"packed": [0, 128, 128, 300], "initial": True, "first_multiplier": True},
]


def run(x: Inputs, bound: float | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Results and gradients of the kernels, and of the plain recurrence in fp64 on the CPU."""
    found = []
    for kernels in (True, False):
        device, dtype, wide = ("cuda", x.u.dtype, torch.float32) if kernels else ("cpu", torch.float64, torch.float64)
        leaves = [y.detach().to(device, dtype if i < 2 else wide).requires_grad_() for i, y in enumerate(x.leaves())]
        options = {name: y.to(device) if isinstance(y, Tensor) else y for name, y in x.options.items()}
        if "initial_state" in options:
            options["initial_state"] = leaves[3]
        out, last = rglru_scan(*leaves[:3], True, max_sqrt_gradient=bound, **options)
        if kernels and x.u.shape[2] > 1:
            assert out.stride() == x.u.stride()
        rng = torch.Generator().manual_seed(1)
        grads = torch.randn(out.shape, generator=rng), torch.randn(last.shape, generator=rng)
        grad = laid_out(grads[0].to(device, out.dtype), x.u.stride(1) == 1)
        given = [grad, grads[1].to(last)]
        if not kernels:
            given[0] = grads[0].to(x.u.dtype).double()
        found.append([out, last, *torch.autograd.grad((out, last), leaves, given)])
    return found[0], found[1]


def check(x: Inputs, bound: float | None = None) -> None:
    ours, expected = run(x, bound)
    dtype = x.u.dtype
    bounds = [OUT[dtype], OUT[torch.float32], GRAD[dtype], GRAD[dtype], GRAD[torch.float32], GRAD[torch.float32]]
    for name, mine, other, most in zip(("out", "last", "u", "delta", "A", "initial"), ours, expected, bounds, strict=False):
        assert rel_rms(mine, other) < most, name


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", OUT)
@pytest.mark.parametrize("N", [1, 7])
@pytest.mark.parametrize("form", OPTIONS, ids=str)
def test_values_and_gradients(form: dict[str, Any], N: int, dtype: torch.dtype, channels_last: bool, seed: int) -> None:
    B = 1 if "packed" in form else 2
    check(inputs(B, 35, 300, N, seed, dtype=dtype, device="cuda", channels_last=channels_last, **form))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "B, D, L, N", [(1, 1, 1, 1), (3, 2, 0, 2), (0, 2, 5, 1), (2, 33, 129, 16), (1, 4, 2049, 64), (1, 2, 70, 256)]
)
def test_sizes(B: int, D: int, L: int, N: int, channels_last: bool, seed: int) -> None:
    check(inputs(B, D, L, N, seed, device="cuda", channels_last=channels_last, initial=True))


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_definition_in_the_oracle(channels_last: bool, seed: int) -> None:
    """Against the oracle, which is independent of the package."""
    x = inputs(1, 5, 300, 2, seed, device="cuda", channels_last=channels_last, packed=[0, 100, 300], initial=True, resets=True)
    out, last = rglru_scan(x.u, x.delta, x.A, True, **x.options)
    expected, expected_last = oracle.rglru(x.u, x.delta, x.A, **x.options)
    assert rel_rms(out, expected) < 1e-5 and rel_rms(last, expected_last) < 1e-5


@pytest.mark.parametrize("channels_last", [False, True])
def test_delta_of_0_and_of_100(channels_last: bool, seed: int) -> None:
    x = inputs(2, 5, 300, 2, seed, device="cuda", channels_last=channels_last)
    x.delta[torch.rand_like(x.delta) < 0.3] = 0
    x.delta[..., ::7] = 100
    check(x, bound=1000.0)


@pytest.mark.parametrize("channels_last", [False, True])
def test_long_memories(channels_last: bool) -> None:
    """a = 1 − 1e-7 over 65536 tokens, and a state that only decays."""
    L = 65536
    u = torch.zeros(1, 2, L, device="cuda")
    u[0, 1] = torch.randn(L, device="cuda")
    A = torch.full((2, 1), 1 - 2.0**-23, device="cuda")
    delta = torch.full((1, 2, L), 1e-7 * 2**23, device="cuda")
    u, delta = (laid_out(x, channels_last) for x in (u, delta))
    initial = torch.ones(1, 2, 1, device="cuda")
    out, last = rglru_scan(u, delta, A, True, initial_state=initial)
    log = (delta.double() * A.double().log())[0]
    total = log.cumsum(-1)
    added = (-torch.expm1(2 * log)).sqrt() * u[0].double()
    expected = total.exp() * (1 + (added * (-total).exp()).cumsum(-1))
    assert rel_rms(out[0, 0], expected[0]) < 1e-5 and rel_rms(out[0, 1], expected[1]) < 1e-5
    assert rel_rms(last[0, :, 0], expected[:, -1]) < 1e-5


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("N", [1, 3])
def test_two_runs_are_the_same(channels_last: bool, N: int, seed: int) -> None:
    x = inputs(2, 70, 3000, N, seed, dtype=torch.bfloat16, device="cuda", channels_last=channels_last)
    leaves = [y.requires_grad_() for y in x.leaves()]
    first, second = (torch.autograd.grad(rglru_scan(*leaves).float().square().sum(), leaves) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("channels_last", [False, True])
def test_packed_sequences_equal_separate_calls(channels_last: bool, seed: int) -> None:
    offsets = [0, 100, 100, 229, 300]
    x = inputs(1, 35, 300, 2, seed, device="cuda", channels_last=channels_last, packed=offsets, initial=True)
    out, last = rglru_scan(x.u, x.delta, x.A, True, **x.options)
    for i in range(4):
        part = slice(offsets[i], offsets[i + 1])
        initial = x.options["initial_state"][i : i + 1]
        alone, end = rglru_scan(x.u[..., part], x.delta[..., part], x.A, True, initial_state=initial)
        assert alone.numel() == 0 or rel_rms(out[..., part], alone) < 1e-5
        assert rel_rms(last[i : i + 1], end) < 1e-5


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_sequence_in_two_calls_equals_one_call(channels_last: bool, seed: int) -> None:
    x = inputs(2, 35, 300, 2, seed, device="cuda", channels_last=channels_last, first_multiplier=True)
    out, last = rglru_scan(x.u, x.delta, x.A, True, **x.options)
    first, state = rglru_scan(x.u[..., :131], x.delta[..., :131], x.A, True, **x.options)
    second, end = rglru_scan(x.u[..., 131:], x.delta[..., 131:], x.A, True, initial_state=state, **x.options)
    assert rel_rms(torch.cat([first, second], -1), out) < 1e-5 and rel_rms(end, last) < 1e-5


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_resets_and_rows_stop_infinities_and_nans(bad: float, channels_last: bool, seed: int) -> None:
    x = inputs(1, 35, 300, 2, seed, device="cuda", channels_last=channels_last, packed=[0, 150, 300], initial=True)
    x.options["reset"] = torch.zeros(1, 300, dtype=torch.bool, device="cuda").index_fill_(
        1, torch.tensor(200, device="cuda"), True
    )
    leaves = [y.requires_grad_() for y in x.leaves()]
    clean = rglru_scan(*leaves[:3], **x.options)
    x.u.data[0, 3, 10] = x.u.data[0, 4, 160] = bad
    out = rglru_scan(*leaves[:3], **x.options)
    assert not out[0, 3, 10].isfinite() and not out[0, 4, 160].isfinite()
    assert torch.equal(out[0, 3, 150:], clean[0, 3, 150:]) and torch.equal(out[0, 4, 200:], clean[0, 4, 200:])
    rows = [d for d in range(35) if d not in (3, 4)]
    assert torch.equal(out[0, rows], clean[0, rows])
    grad = torch.zeros_like(out)
    grad[0, 3, 170] = bad
    (du,) = torch.autograd.grad(clean, x.u, grad)
    assert not du[0, 3, 160].isfinite() and not du[0, 3, :150].any() and not du[0, rows].any()


@pytest.mark.parametrize("channels_last", [False, True])
def test_rows_that_are_not_whole_vectors_and_mixed_layouts(channels_last: bool, seed: int) -> None:
    x = inputs(2, 5, 301, 1, seed, dtype=torch.bfloat16, device="cuda", channels_last=channels_last)
    whole = inputs(2, 5, 301, 1, seed, dtype=torch.bfloat16, device="cuda", channels_last=not channels_last)
    expected = rglru_scan(x.u, x.delta, x.A)
    assert torch.equal(rglru_scan(x.u, whole.delta, x.A), expected)
    assert torch.equal(
        rglru_scan(x.u[..., 1:], x.delta[..., 1:], x.A), rglru_scan(x.u[..., 1:].clone(), whole.delta[..., 1:], x.A)
    )


@pytest.mark.parametrize("offsets", [[-5, 400], [0, 10**9, -(10**9)], [7, 3, 250], [300, 0], [0, 0]])
@pytest.mark.parametrize("channels_last", [False, True])
def test_invalid_offsets_touch_no_memory_outside(offsets: list[int], channels_last: bool, seed: int) -> None:
    """Also for compute-sanitizer."""
    x = inputs(1, 35, 300, 2, seed, device="cuda", channels_last=channels_last, initial=True, packed=[0] * len(offsets))
    x.options["cu_seqlens"] = torch.tensor(offsets, device="cuda")
    leaves = [y.requires_grad_() for y in x.leaves()]
    out = rglru_scan(*leaves[:3], **x.options)
    torch.autograd.grad(out.sum(), leaves)
    torch.cuda.synchronize()


def test_graphs_and_compiled_code(seed: int) -> None:
    x = inputs(2, 64, 300, 1, seed, dtype=torch.bfloat16, device="cuda", first_multiplier=True)
    expected = rglru_scan(x.u, x.delta, x.A, first_multiplier=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rglru_scan(x.u, x.delta, x.A, first_multiplier=True)
    graph.replay()
    assert torch.equal(out, expected)
    compiled = torch.compile(
        lambda u, delta, A: rglru_scan(u, delta, A, first_multiplier=True), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(x.u, x.delta, x.A), expected)


def test_tiles_of_the_reference_are_those_of_the_kernels(seed: int) -> None:
    """The states that forward stores have the same shape on both devices."""
    for N in (1, 2):
        for channels_last in (False, True):
            x = inputs(1, 5, 300, N, seed, device="cuda", channels_last=channels_last)
            arguments = (x.u, x.delta, x.A, None, None, None, False, None)
            kept = torch.ops.gdn_cuda.rglru_scan.default(*arguments)[2]
            assert kept.shape[1] == -(-300 // reference_rglru.tile_of(x.u, x.A))
            moved = replace(x, u=x.u.cpu(), delta=x.delta.cpu(), A=x.A.cpu())
            on_cpu = torch.ops.gdn_cuda.rglru_scan.default(moved.u, moved.delta, moved.A, None, None, None, False, None)[2]
            assert rel_rms(kept, on_cpu) < 1e-5
