"""The modules of gdn_cuda.nn on a GPU: as on the CPU, empty and short inputs, gradients, steps, autocast."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import rel_rms
from module_cases import CASES, Case

EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
LAYERS = pytest.mark.parametrize("case", [case for case in CASES if case.is_layer], ids=lambda case: case.id)
MATRICES = pytest.mark.parametrize("case", [case for case in CASES if not case.is_layer], ids=lambda case: case.id)
STEPPED = pytest.mark.parametrize("case", [case for case in CASES if case.has_steps], ids=lambda case: case.id)


@EVERY
def test_results_are_those_of_the_cpu(case: Case, seed: int) -> None:
    module, x = case.make(), case.inputs(seed, L=70 if case.is_layer else 5)
    on_gpu = copy.deepcopy(module).cuda()
    assert {t.device.type for t in (*on_gpu.parameters(), *on_gpu.buffers())} == {"cuda"}
    y, expected = case.run(on_gpu, x.cuda()), case.run(module, x)
    assert y.is_cuda and y.dtype == expected.dtype and rel_rms(y, expected) < 1e-4
    weights = torch.randn(y.shape).to(y.dtype)
    ours = torch.autograd.grad((y * weights.cuda()).abs().sum(), list(on_gpu.parameters()))
    theirs = torch.autograd.grad((expected * weights).abs().sum(), list(module.parameters()))
    for mine, other in zip(ours, theirs, strict=True):
        assert rel_rms(mine, other) < 2e-3


@LAYERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("B", "L"), [(0, 5), (2, 0), (2, 1), (0, 0), (3, 37)])
def test_empty_and_short_inputs(case: Case, B: int, L: int, dtype: torch.dtype, seed: int) -> None:
    module = case.make(device="cuda", dtype=dtype)
    x = case.inputs(seed, B, L, device="cuda", dtype=dtype).requires_grad_()
    y = case.run(module, x)
    assert y.shape == case.shape(B, L) and y.dtype == dtype and bool(y.isfinite().all())
    y.float().square().sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())


@STEPPED
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2), (torch.float16, 1e-2)])
@torch.no_grad()
def test_steps_give_the_same_as_the_sequence(case: Case, dtype: torch.dtype, bound: float, seed: int) -> None:
    module = case.make(device="cuda", dtype=dtype)
    x = case.inputs(seed, L=24, device="cuda", dtype=dtype)
    whole = case.run(module, x)
    assert rel_rms(case.stepped(module, x), whole) < bound
    first, state = case.prompt(module, x[:, :9])
    assert rel_rms(torch.cat([first, case.stepped(module, x[:, 9:], state)], 1), whole) < bound


@LAYERS
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 3e-2), (torch.float16, 5e-3)])
@torch.no_grad()
def test_layers_return_the_dtype_of_autocast(case: Case, dtype: torch.dtype, bound: float, seed: int) -> None:
    module, x = case.make(device="cuda"), case.inputs(seed, L=200, device="cuda")
    expected = case.run(module, x)
    for given in (x, x.to(dtype)):
        with torch.autocast("cuda", dtype):
            y = case.run(module, given)
            assert y.dtype == dtype and rel_rms(y, expected) < bound
            if case.has_steps:
                first, state = case.prompt(module, given[:, :190])
                last = case.stepped(module, given[:, 190:], state)
                assert last.dtype == dtype and rel_rms(torch.cat([first, last], 1), expected) < bound


@MATRICES
@torch.no_grad()
def test_autocast_leaves_matrices_and_kernels(case: Case, seed: int) -> None:
    """At several sizes, because solvers and products choose algorithms by size."""
    for L in (5, 300, 3000):
        like = {} if case.has_steps else {"L": L}
        module = case.make(device="cuda", **like)
        if case.has_steps:
            call = lambda module=module, L=L: module(L=L)[0]  # noqa: E731
            call()  # which converts C of S4
        else:
            x = case.inputs(seed, 2, L, device="cuda")
            call = lambda module=module, x=x: case.run(module, x)  # noqa: E731
        expected = call()
        with torch.autocast("cuda", torch.bfloat16):
            y = call()
        assert y.dtype == expected.dtype and torch.equal(y, expected)


@LAYERS
def test_a_seed_gives_the_same_systems_on_every_device(case: Case) -> None:
    if case.module not in ("S5", "LRU", "S4", "S4D"):
        pytest.skip("draws on its own device, as torch's modules do")
    on_cpu, on_gpu = case.make().state_dict(), case.make(device="cuda").state_dict()
    for name in on_cpu:
        if not name.startswith("out_proj"):
            assert torch.equal(on_cpu[name], on_gpu[name].cpu()), name
