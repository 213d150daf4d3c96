"""Gradients with a gate for every channel of the key, with the chains split into segments along time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from channel_gradient_cases import ChannelCase, drawn
from channel_gradients_on_device import BF16, BOUND, SHAPE, check, found_by_kernels
from devices import Device
from gradient_cases import error, oracle

from gdn_cuda import chunked_forward

VARIABLE = "GDN_KDA_BACKWARD_SEGMENTS"
CHOSEN = os.environ.get(VARIABLE, "auto")
COUNTS = ("2", "3", "100")  # the last is more than there are chunks
CASES = [
    ChannelCase(SHAPE, "channel reset"),
    ChannelCase(SHAPE, "token reset"),
    ChannelCase(replace(SHAPE, keys="repeated", beta=2.0), "none"),
    ChannelCase(replace(SHAPE, keys="near", beta=2.0)),
    ChannelCase(replace(SHAPE, lengths=(40, 0, 1, 33), heads=(2, 4)), "heavy"),
    ChannelCase(replace(SHAPE, lengths=(48, 48), state=False), "strong"),
    ChannelCase(replace(SHAPE, last=False)),
    ChannelCase(replace(SHAPE, state=False, last=False), "bounded"),
    ChannelCase(replace(SHAPE, out=False)),
    ChannelCase(replace(SHAPE, dk=96, dv=72)),
]


@pytest.fixture(params=COUNTS)
def segments(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A process on a GPU reads the variable once."""
    if not device.emulate and request.param != CHOSEN:
        pytest.skip("another process has this number of segments")
    monkeypatch.setenv(VARIABLE, request.param)
    with device.kernels() as launched:
        yield request.param
        if device.emulate and request.param != "2":
            names = {kernel.partition("{")[0] for kernel in launched()}
            assert "gdn/fold_states" in names or "gdn/kda_backward_states" not in names


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_recurrence(case: ChannelCase, device: Device, segments: str, seed: int) -> None:
    check(device, case, seed)


def test_the_longest_keys(device: Device, segments: str, seed: int) -> None:
    device.skip_above(2, int(segments))
    check(device, ChannelCase(replace(SHAPE, lengths=(33,), dk=136, dv=8)), seed)


GROWING = slice(16, 112)


def growing(seed: int) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """Keys that would multiply states by −30 a token, and gradients, between two resets; but there are none of either."""
    x, (out, _) = drawn(ChannelCase(replace(SHAPE, lengths=(128,), state=False, last=False)), seed, BF16)
    assert out is not None
    for t in (GROWING.start, GROWING.stop):
        x["gate"][:, t] = -torch.inf
    x["gate"][:, GROWING.start + 1 : GROWING.stop] = 0
    x["key"][:, GROWING] = x["key"][:, :1] * 31**0.5
    x["beta"][:, GROWING] = 1
    x["value"][:, GROWING] = 0
    out[:, GROWING] = 0
    return x, (out, None)


def test_what_grows_without_bounds_leaves_zeros_alone(device: Device, segments: str, seed: int) -> None:
    """M of the second of three segments overflows, and 0 times infinity would be NaN."""
    x, grads = growing(seed)
    found, wanted = found_by_kernels(device, x, grads), oracle(x, grads)
    for name, gradient in found.items():
        assert error(gradient, wanted[name]) < BOUND, (name, error(gradient, wanted[name]))
    assert not found["value"][:, GROWING].any() and found["value"][:, GROWING.stop :].all(-1).any()


def test_an_infinity_stays_in_its_row(device: Device, segments: str, seed: int) -> None:
    """An infinity of a state: gradients of values and of the initial state have no term of it."""
    x, grads = drawn(ChannelCase(SHAPE), seed, BF16)
    clean = found_by_kernels(device, x, grads)
    x["value"][:, 5, :, 3] = torch.inf
    found = found_by_kernels(device, x, grads)
    assert torch.equal(found["value"], clean["value"]) and torch.equal(found["state"], clean["state"])
    assert not found["beta"].isfinite().all()
    grads[0][:, 60, :, 3] = torch.inf  # type: ignore[index]
    found = found_by_kernels(device, x, grads)
    others = torch.arange(64) != 3
    assert error(found["value"][..., others], clean["value"][..., others]) < BOUND  # not by segments, so in other bits
    assert error(found["state"][:, :, others], clean["state"][:, :, others]) < BOUND
    assert not found["value"][..., 3].isfinite().all()


def test_heads_in_groups_have_the_same_bits(device: Device, segments: str, seed: int) -> None:
    """With any workspace."""
    x, grads = drawn(ChannelCase(replace(SHAPE, lengths=(40,), heads=(3, 6))), seed, BF16)
    with pytest.raises(ValueError, match=r"workspace: expected at least \d+ bytes") as refused:
        found_by_kernels(device, x | {"workspace": 1000}, grads)
    least = int(str(refused.value).split("at least ")[1].split()[0])
    at_once, in_groups = (found_by_kernels(device, x | {"workspace": bytes_}, grads) for bytes_ in (None, 2 * least))
    assert all(torch.equal(at_once[name], in_groups[name]) for name in at_once)


def test_gradients_of_values_alone_have_the_same_bits(device: Device, segments: str, seed: int) -> None:
    x, grads = drawn(ChannelCase(replace(SHAPE, lengths=(60,))), seed, BF16)
    x = {name: y.to(device.name) if isinstance(y, torch.Tensor) else y for name, y in x.items()}
    every = found_by_kernels(device, x, grads)
    value = x["value"].detach().requires_grad_()
    out, last = chunked_forward(**(x | {"value": value}))
    given = [g.to(device.name) for g in grads if g is not None]
    (found,) = torch.autograd.grad((out, last), value, given)
    assert torch.equal(found.cpu(), every["value"])
