"""selective_scan on the GPU; each operator alone, long sequences, calls in parts, equal bits, graphs, the C++ API."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import oracle
import pytest
import selective_api
import selective_on_device
import torch
from devices import GPU
from oracle import relative_rms, within
from selective_inputs import model_inputs, selective_inputs
from selective_on_device import *  # noqa: F403
from selective_on_device import BOTH_LAYOUTS, EVERY_DISCRETIZATION, ROWS, scan
from torch import Tensor

import gdn_cuda

check, check_forward, inputs, poison = (
    partial(function, GPU)
    for function in (
        selective_on_device.check,
        selective_on_device.check_forward,
        selective_on_device.inputs,
        selective_on_device.poison,
    )
)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("form", [{"length": 200}, {"batch": 1, "length": 333, "cu_seqlens": [0, 0, 64, 129, 320]}])
@BOTH_LAYOUTS
def test_each_operator_equals_that_on_the_cpu(is_complex: bool, form: dict[str, Any], last: bool, seed: int) -> None:
    """Including the states before chunks; backward reads the CPU's."""
    x = selective_inputs(seed, dim=37, N=16, is_complex=is_complex, last=last, **form)
    given = [x.get(argument) for argument in gdn_cuda.scan.selective._scan.schema.arguments[:-1]]
    on_gpu = [v.cuda() if isinstance(v, Tensor) else v for v in given]
    poison()
    expected = torch.ops.gdn_cuda.selective_scan(*given, True)
    for found, wanted in zip(torch.ops.gdn_cuda.selective_scan(*on_gpu, True), expected, strict=True):
        assert found.stride() == wanted.stride() and relative_rms(found.cpu(), wanted) < 1e-5
    out, state, states = expected
    grads = torch.randn_like(out), torch.randn_like(state)
    wanted_gradients = torch.ops.gdn_cuda.selective_scan_backward(*grads, *given, states)
    poison()
    found_gradients = torch.ops.gdn_cuda.selective_scan_backward(*(g.cuda() for g in grads), *on_gpu, states.cuda())
    for found, wanted in zip(found_gradients, wanted_gradients, strict=True):
        assert found.stride() == wanted.stride() and relative_rms(found.cpu(), wanted) < 1e-4


def test_offsets_beyond_2_to_the_31(seed: int) -> None:
    dim, length = 4099, 1 << 19
    u = torch.randn(1, dim, length, dtype=torch.bfloat16, device="cuda")
    x = {
        "A": torch.full((dim, 1), -1.0, device="cuda"),
        "B": torch.ones(dim, 1, device="cuda"),
        "C": torch.ones(dim, 1, device="cuda"),
    }
    out, state = scan(u=u, delta=u.abs(), **x)
    alone = {k: v[-1:] for k, v in x.items()}
    wanted, wanted_state = scan(u=u[:, -1:], delta=u[:, -1:].abs(), **alone)
    assert relative_rms(out[:, -1:], wanted) < 1e-3 and relative_rms(state[:, -1:], wanted_state) < 1e-5


@BOTH_LAYOUTS
def test_65536_tokens_of_a_layer(last: bool, seed: int) -> None:
    check(model_inputs(seed, 1, 24, 65536, 16, torch.float32, last=last, device="cuda"), seed)


@pytest.mark.parametrize("rate", [1e-6, 1e-4])
@BOTH_LAYOUTS
def test_slow_decay_over_65536_tokens(rate: float, last: bool, seed: int) -> None:
    x = inputs(seed, batch=1, dim=8, length=65536, bare=True, last=last)
    check_forward(x | {"A": torch.full_like(x["A"], -rate)})


# ---- Between calls


@pytest.mark.parametrize("split", [1, 64, 100, 132])
@EVERY_DISCRETIZATION
def test_tokens_in_two_parts(name: str, is_complex: bool, split: int, seed: int) -> None:
    x = inputs(seed, name, is_complex=is_complex, length=133)

    def tokens(first: int, end: int) -> dict[str, Any]:
        return x | {k: x[k][..., first:end] for k in (*ROWS, "B", "C") if k in x}

    out, state = scan(**x)
    first, middle = scan(**tokens(0, split))
    second, end = scan(**tokens(split, 133) | {"initial_state": middle})
    assert relative_rms(torch.cat([first, second], -1), out) < 2e-6 and relative_rms(end, state) < 2e-6


@BOTH_LAYOUTS
def test_packed_sequences_equal_separate_calls(last: bool, seed: int) -> None:
    cu_seqlens = [0, 0, 700, 701, 765, 829, 2000]
    x = inputs(seed, batch=1, dim=40, N=16, length=2000, cu_seqlens=cu_seqlens, last=last)
    out, state = scan(**x)
    for n, (first, end) in enumerate(pairwise(cu_seqlens)):
        alone = x | {k: x[k][..., first:end] for k in (*ROWS, "B", "C") if k in x}
        alone |= {"cu_seqlens": None, "initial_state": x["initial_state"][n : n + 1]}
        expected, expected_state = scan(**alone)
        assert relative_rms(out[..., first:end], expected) < 2e-6 and relative_rms(state[n : n + 1], expected_state) < 2e-6


@pytest.mark.parametrize("form", [{"batch": 3, "length": 500}, {"batch": 1, "length": 9000}, {"is_complex": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BOTH_LAYOUTS
def test_two_runs_are_bit_identical(form: dict[str, Any], dtype: torch.dtype, last: bool, seed: int) -> None:
    x = inputs(seed, dim=130, N=16, dtype=dtype, last=last, **form)
    out, state = scan(**x)
    grads = torch.randn_like(out), torch.randn_like(state)
    wanted = oracle.gradients(scan, x, *grads)
    for _ in range(3):
        again, again_state = scan(**x)
        assert torch.equal(out, again) and torch.equal(state, again_state)
        assert all(torch.equal(found, wanted[k]) for k, found in oracle.gradients(scan, x, *grads).items())


@BOTH_LAYOUTS
def test_graphs_capture_both_passes(last: bool, seed: int) -> None:
    x = inputs(seed, length=200, dim=40, N=16, dtype=torch.bfloat16, last=last)
    out, state = scan(**x)
    grads = torch.randn_like(out), torch.randn_like(state)
    oracle.gradients(scan, x, *grads)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, captured_state = scan(**x)
        found = oracle.gradients(scan, x, *grads)
    other = inputs(seed + 1, length=200, dim=40, N=16, dtype=torch.bfloat16, last=last)
    for k, v in other.items():
        if isinstance(v, Tensor):
            x[k].copy_(v)
    for _ in range(2):
        for y in (captured, captured_state, *found.values()):
            y.fill_(torch.nan)
        graph.replay()
    expected, expected_state = scan(**other)
    assert torch.equal(captured, expected) and torch.equal(captured_state, expected_state)
    wanted = oracle.gradients(scan, other, *grads)
    assert all(torch.equal(y, wanted[k]) for k, y in found.items())


def test_either_result_may_be_the_only_one_with_a_gradient(seed: int) -> None:
    x = inputs(seed, length=100)
    out, state = scan(**x)
    grads = torch.randn_like(out), torch.randn_like(state)
    for kept in ((grads[0], torch.zeros_like(state)), (torch.zeros_like(out), grads[1])):
        u = x["u"].clone().requires_grad_()
        results = scan(**x | {"u": u})
        which = 0 if kept[0] is grads[0] else 1
        (found,) = torch.autograd.grad(results[which], u, grads[which])
        assert within(found, oracle.gradients(oracle.selective_scan, x, *kept)["u"], 1e-4)


def test_the_cpp_api(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    selective_api.check(selective_api.load(tmp_path_factory.mktemp("selective_api")), "cuda", seed)


def test_fp64_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=r"^selective_scan: u: expected float32 or bfloat16 or float16 on CUDA, got float64$"):
        scan(**inputs(seed, dtype=torch.float64))
