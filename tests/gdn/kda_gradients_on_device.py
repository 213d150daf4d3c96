"""gdn/kda_gradients alone, from what the passes before it hand over, against autograd of the recurrence in fp64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from channel_gradient_cases import ChannelCase, drawn, smallest_errors
from devices import Device
from gradient_cases import GradientCase, error
from kda_gradients import Handover, made, run
from torch import Tensor

BF16, FP16 = torch.bfloat16, torch.float16
BOUND, CANCELLING = 6e-3, 8e-3  # keys that repeat, and beta to 2
SHAPE = GradientCase(lengths=(70,), heads=(1, 1), dk=128, dv=64, options={"use_qk_l2norm": True})
LOGITS: dict[str, Any] = {"use_qk_l2norm": True, "beta_is_logit": True, "allow_negative_eigenvalues": True}
CASES = [
    *(ChannelCase(replace(SHAPE, lengths=(length,))) for length in (1, 17, 63, 64, 65, 150)),
    *(ChannelCase(SHAPE, gates) for gates in ("none", "edge", "bounded", "heavy", "strong", "channel reset", "token reset")),
    *(
        ChannelCase(replace(SHAPE, keys=keys, beta=2.0), gates)
        for keys in ("repeated", "near")
        for gates in ("none", "init", "heavy")
    ),
    ChannelCase(replace(SHAPE, keys="zero")),
    ChannelCase(replace(SHAPE, lengths=(40, 0, 1, 66), heads=(2, 2)), "heavy"),
    ChannelCase(replace(SHAPE, lengths=(33, 33), heads=(2, 2)), "bounded"),
    ChannelCase(replace(SHAPE, beta="zeros"), "channel reset"),
    ChannelCase(replace(SHAPE, state=False, last=False), "heavy"),
    ChannelCase(replace(SHAPE, options={"scale": -0.3}), "linear"),
    *(ChannelCase(replace(SHAPE, options=LOGITS), gates) for gates in ("softplus", "bounded raw", "bound")),
]
NAMES = ("query", "key", "gate", "beta")


def prepared(
    case: ChannelCase, seed: int, dtype: torch.dtype, edit: Callable[[dict[str, Any]], None] = lambda x: None
) -> tuple[dict[str, Any], Tensor, Handover, dict[str, Tensor]]:
    """(inputs, which `edit` changes, the outputs' gradient, what is handed over, gradients)"""
    x, (outer, last) = drawn(case, seed, dtype)
    assert outer is not None
    if dtype == FP16:
        x["beta"].clamp_(min=0.01)  # dV = beta Y loses digits below fp16's range
    edit(x)
    return x, outer, *made(case, x, outer, last, careful=case.shape.keys in ("repeated", "near"))


def launch(device: Device, x: dict[str, Any], outer: Tensor, given: Handover, **results: None) -> dict[str, Tensor]:
    def there(y: Any) -> Any:
        return y.to(device.name) if isinstance(y, Tensor) else y

    handed = Handover(**{name: there(y) for name, y in vars(given).items()})
    with device.only("gdn/kda_gradients"):
        found = run({name: there(y) for name, y in x.items()}, there(outer), handed, **results)
    return {name: y.cpu() for name, y in found.items() if y is not None}


def check(device: Device, case: ChannelCase, seed: int, dtype: torch.dtype = BF16, factor: float = 1.0) -> None:
    x, outer, given, wanted = prepared(case, seed, dtype)
    found = launch(device, x, outer, given)
    bound = factor * (CANCELLING if case.shape.keys in ("repeated", "near") or case.shape.options == LOGITS else BOUND)
    by_rate, by_bias = found.pop("sums").sum(1)
    found |= {"A_log": by_rate.sum(-1), "dt_bias": by_bias}
    for name in wanted:
        wrong = error(found[name], wanted[name], {"beta": -1, "A_log": None, "dt_bias": None}.get(name, -2))
        assert wrong < bound, (name, wrong)
    is_zero = (x["beta"] == 0)[..., None]
    assert torch.equal(found["value"], given.value_gradient.masked_fill(is_zero, 0))
    if "reset" in case.gates or case.gates == "linear":
        is_reset = x["gate"] == (0 if case.gates == "linear" else -torch.inf)
        assert is_reset.any() and not found["gate"][is_reset].any()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_recurrence(case: ChannelCase, device: Device, seed: int) -> None:
    check(device, case, seed)


@pytest.mark.parametrize("dk, dv", [(40, 72), (64, 8), (64, 64), (128, 128)])
@pytest.mark.parametrize("dtype, factor", [(BF16, 1.0), (FP16, 0.25)])
def test_head_dimensions(dk: int, dv: int, dtype: torch.dtype, factor: float, device: Device, seed: int) -> None:
    check(device, ChannelCase(replace(SHAPE, lengths=(40,), dk=dk, dv=dv)), seed, dtype, factor)


@pytest.mark.parametrize("gates", ["heavy", "edge", "bounded"])
def test_small_gradients_of_gates_are_right_in_relative_terms(gates: str, device: Device, seed: int) -> None:
    x, outer, given, wanted = prepared(ChannelCase(replace(SHAPE, lengths=(64,)), gates), seed, BF16)
    assert smallest_errors(launch(device, x, outer, given)["gate"], wanted["gate"]) < 0.05


@pytest.mark.parametrize("dtype, factor", [(BF16, 1.0), (FP16, 0.25)])
@pytest.mark.parametrize("gates", ["none", "bounded"])
def test_resets_anywhere(gates: str, dtype: torch.dtype, factor: float, device: Device, seed: int) -> None:
    """Of single channels, and of all, at the borders of halves and quarters; each has a gradient of exactly 0."""

    def reset(x: dict[str, Any]) -> None:
        for channel, token in enumerate((0, 1, 7, 8, 15, 16, 31, 32, 33, 47, 48, 63)):
            x["gate"][:, token, :, 10 * channel] = -torch.inf
        x["gate"][:, 40] = -torch.inf

    x, outer, given, wanted = prepared(ChannelCase(replace(SHAPE, lengths=(64,)), gates), seed, dtype, reset)
    found = launch(device, x, outer, given)
    assert all(error(found[name], wanted[name]) < factor * BOUND for name in NAMES)
    assert not found["gate"][x["gate"] == -torch.inf].any()


@pytest.mark.parametrize("gate", [-0.01, -0.34, -0.36])
def test_slow_decays_with_a_reset_in_some_quarters(gate: float, device: Device, seed: int) -> None:
    """Some quarters have a fast channel among each 32: all mixtures."""
    for fast in (False, True):

        def edit(x: dict[str, Any], fast: bool = fast) -> None:
            x["gate"][:] = gate
            for index in range(16) if fast else ():  # all subsets of quarters, in as many groups of channels and chunks
                chunk, group = divmod(index, 4)
                for quarter in range(4):
                    if index >> quarter & 1:
                        x["gate"][chunk, 16 * quarter + 5, :, 32 * group + 13] = -30.0

        shape = replace(SHAPE, lengths=(64,) * (4 if fast else 1))
        x, outer, given, wanted = prepared(ChannelCase(shape, "none"), seed, BF16, edit)
        found = launch(device, x, outer, given)
        assert all(error(found[name], wanted[name]) < BOUND for name in NAMES)


def test_nan_stays_in_its_head_and_sequence(device: Device, seed: int) -> None:
    """Tokens past a sequence's end are the next one's, and those of no sequence are neither read nor stored."""
    x, outer, given, _ = prepared(ChannelCase(replace(SHAPE, lengths=(40, 30, 20), heads=(2, 2)), "softplus"), seed, BF16)
    clean = launch(device, x, outer, given)
    assert all(clean[name].isfinite().all() for name in (*NAMES, "sums"))
    x["cu_seqlens"] = torch.tensor([0, 40, 70, 70], dtype=torch.int32)
    for each in (x["query"], x["key"], x["gate"], x["beta"], outer, given.value_gradient):
        each[70:] = torch.nan
        each[40:70, 1] = torch.nan
    found = launch(device, x, outer, given)
    for name in NAMES:
        assert torch.equal(found[name][:40], clean[name][:40]) and torch.equal(found[name][40:70, 0], clean[name][40:70, 0])
        assert found[name][40:70, 1].isnan().any() and found[name][70:].isnan().all(), name
    assert torch.equal(found["sums"][:, 0], clean["sums"][:, 0]) and not found["sums"][:, 2:].any()


def test_gradients_that_are_not_wanted(device: Device, seed: int) -> None:
    x, outer, given, _ = prepared(ChannelCase(replace(SHAPE, lengths=(20,)), "softplus"), seed, BF16)
    found, partly = launch(device, x, outer, given), launch(device, x, outer, given, beta=None, sums=None)
    assert all(torch.equal(found[name], partly[name]) for name in ("query", "key", "gate", "value"))
