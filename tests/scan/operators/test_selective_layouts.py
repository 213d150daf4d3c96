"""The layouts of the results of selective_scan and its backward, for calls with tensors in different layouts."""

from __future__ import annotations

from itertools import product
from typing import Any

import oracle
import pytest
import torch
from oracle import relative_rms
from selective_inputs import channels_last, selective_inputs
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import gdn_cuda

ROWS = ("u", "delta", "z", "delta_a")
MIXES = [mix for mix in product((False, True), repeat=4) if 0 < sum(mix) < 4]


def laid_out(x: dict[str, Any], last: tuple[bool, ...]) -> dict[str, Any]:
    return x | {k: channels_last(x[k]) if is_last else x[k].contiguous() for k, is_last in zip(ROWS, last, strict=True)}


def is_last(x: Tensor) -> bool:
    assert x.is_contiguous() or x.mT.is_contiguous()
    return x.mT.is_contiguous()


@pytest.mark.parametrize("last", MIXES, ids=lambda mix: "".join("DL"[not each] for each in mix))
def test_results_are_in_the_layout_of_most_tensors_or_of_u(last: tuple[bool, ...], seed: int) -> None:
    x = selective_inputs(seed, length=5)
    mixed = laid_out(x, last)
    out = gdn_cuda.selective_scan(**mixed)
    assert is_last(out) == (last[0] if sum(last) == 2 else sum(last) > 2)
    assert torch.equal(out, gdn_cuda.selective_scan(**x))


@pytest.mark.parametrize("grad_is_last", [False, True])
@pytest.mark.parametrize("last", MIXES, ids=lambda mix: "".join("DL"[not each] for each in mix))
def test_gradients_are_in_one_layout_too(last: tuple[bool, ...], grad_is_last: bool, seed: int) -> None:
    """The layout of the output's gradient counts too; traced shapes have the same strides."""
    mixed = laid_out(selective_inputs(seed, length=5), last)
    given = [mixed.get(argument) for argument in gdn_cuda.scan.selective._scan.schema.arguments[:-1]]
    out, state, states = torch.ops.gdn_cuda.selective_scan(*given, True)
    grad = channels_last(out) if grad_is_last else out.contiguous()
    arguments = grad, state, *given, states
    found = torch.ops.gdn_cuda.selective_scan_backward(*arguments)
    expected = sum((*last, grad_is_last)) > 2
    assert all(is_last(found[i]) == expected for i in (0, 1, 6, 8))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(v) if isinstance(v, Tensor) else v for v in arguments]
        traced = torch.ops.gdn_cuda.selective_scan_backward(*fakes)
        forward = torch.ops.gdn_cuda.selective_scan(*fakes[2:-1], True)
    assert [v.stride() for v in traced] == [v.stride() for v in found]
    assert [v.stride() for v in forward] == [v.stride() for v in (out, state, states)]


def test_autograd_takes_gradients_of_another_layout(seed: int) -> None:
    x = selective_inputs(seed, length=9, dtype=torch.float64)
    mixed = laid_out(x, (False, True, True, True))
    out, last = gdn_cuda.selective_scan(**mixed, return_last_state=True)
    grads = torch.randn_like(out), torch.randn_like(last)

    def scan(**x: Any) -> tuple[Tensor, Tensor]:
        return gdn_cuda.selective_scan(**x, return_last_state=True)

    wanted = oracle.gradients(oracle.selective_scan, x, *grads)
    for argument, found in oracle.gradients(scan, mixed, *grads).items():
        assert relative_rms(found, wanted[argument]) < 1e-12, argument


@pytest.mark.parametrize("shape", [(0, 4, 6), (2, 0, 6)])
def test_no_elements_may_have_any_strides(shape: tuple[int, int, int]) -> None:
    u = torch.empty(shape[0], shape[1], 2 * shape[2])[..., ::2]
    A, B = torch.zeros(shape[1], 3), torch.zeros(shape[0], 3, shape[2])
    assert gdn_cuda.selective_scan(u, u, A, B, B).shape == shape
