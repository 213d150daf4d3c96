"""Gradients with a gate for every channel of the key by kernels, against autograd of the recurrence in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from channel_gradient_cases import ChannelCase, drawn, smallest_errors
from devices import Device
from gradient_cases import GradientCase, error, gradients_of, oracle
from torch import Tensor

from gdn_cuda import chunked_forward

BF16, FP16 = torch.bfloat16, torch.float16
BOUND, CANCELLING = 6e-3, 8e-3  # keys that repeat, and beta to 2
SHAPE = GradientCase(lengths=(70,), heads=(1, 2))
GATES = ("none", "edge", "bounded", "heavy", "strong", "channel reset", "token reset")
OPTIONS: dict[str, Any] = {"use_qk_l2norm": True, "beta_is_logit": True, "allow_negative_eigenvalues": True}
CASES = [
    *(ChannelCase(replace(SHAPE, lengths=(length,))) for length in (1, 16, 17, 63, 64, 65, 300)),
    *(ChannelCase(SHAPE, gates) for gates in GATES),
    *(ChannelCase(replace(SHAPE, keys=keys, beta=2.0), gates) for keys in ("repeated", "near") for gates in ("init", "heavy")),
    ChannelCase(replace(SHAPE, keys="zero")),
    ChannelCase(replace(SHAPE, lengths=(40, 0, 1, 33), heads=(2, 4)), "heavy"),
    ChannelCase(replace(SHAPE, lengths=(33, 33), heads=(2, 6)), "bounded"),
    ChannelCase(replace(SHAPE, beta="zeros"), "channel reset"),
    ChannelCase(replace(SHAPE, state=False, last=False), "heavy"),
    ChannelCase(replace(SHAPE, out=False)),
    ChannelCase(replace(SHAPE, options={"use_qk_l2norm": True, "scale": -0.3}), "linear"),
    *(ChannelCase(replace(SHAPE, options=OPTIONS), gates) for gates in ("softplus", "bounded raw", "bound")),
]


@pytest.fixture(autouse=True)
def on_kernels(device: Device) -> Iterator[None]:
    with device.kernels():
        yield


def found_by_kernels(device: Device, x: dict[str, Any], grads: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    def there(y: Any) -> Any:
        return y.to(device.name) if isinstance(y, Tensor) else y

    found = gradients_of(chunked_forward, {name: there(y) for name, y in x.items()}, (there(grads[0]), there(grads[1])))
    return {name: y.cpu() for name, y in found.items()}


def check(device: Device, case: ChannelCase, seed: int, dtype: torch.dtype = BF16, factor: float = 1.0) -> None:
    x, grads = drawn(case, seed, dtype)
    found, wanted = found_by_kernels(device, x, grads), oracle(x, grads)
    bound = factor * (CANCELLING if case.shape.keys != "random" or case.shape.options == OPTIONS else BOUND)
    for name, gradient in found.items():
        by_head = {"value": -2, "beta": -1, "gate": -2, "state": 1}.get(name)
        assert error(gradient, wanted[name], by_head) < bound, (name, error(gradient, wanted[name], by_head))
    if "reset" in case.gates or case.gates == "linear":
        is_reset = x["gate"] == (0 if case.gates == "linear" else -torch.inf)
        assert is_reset.any() and not found["gate"][is_reset].any()
    if case.shape.beta == "zeros":
        assert not found["value"][x["beta"] == 0].any()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_recurrence(case: ChannelCase, device: Device, seed: int) -> None:
    device.skip_above(100, max(case.shape.lengths))
    check(device, case, seed)


@pytest.mark.parametrize("dk, dv", [(40, 72), (64, 64), (96, 192), (128, 128), (192, 8), (256, 72)])
@pytest.mark.parametrize("dtype, factor", [(BF16, 1.0), (FP16, 0.25)])
def test_head_dimensions(dk: int, dv: int, dtype: torch.dtype, factor: float, device: Device, seed: int) -> None:
    check(device, ChannelCase(replace(SHAPE, lengths=(40,), dk=dk, dv=dv)), seed, dtype, factor)


@pytest.mark.parametrize("gates", ["heavy", "strong", "edge", "bounded"])
def test_small_gradients_of_gates_are_right_in_relative_terms(gates: str, device: Device, seed: int) -> None:
    x, grads = drawn(ChannelCase(SHAPE, gates), seed, BF16)
    assert smallest_errors(found_by_kernels(device, x, grads)["gate"], oracle(x, grads)["gate"]) < 0.1
