"""Gradients with a gate for every channel of the key by kernels, against autograd of the recurrence in fp64: with as many value
heads as key heads by chunks of 64 tokens on Hopper, else by those of 16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
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
# Betas' gradients by chunks of 64 tokens: products of rows that have been rounded three times on their way, as E, dV' and dV.
BETA = 1e-2
SHAPE = GradientCase(lengths=(70,), heads=(1, 2))
EQUAL = replace(SHAPE, lengths=(65,), heads=(2, 2))
GATES = ("none", "edge", "bounded", "heavy", "strong", "channel reset", "token reset")
OPTIONS: dict[str, Any] = {"use_qk_l2norm": True, "beta_is_logit": True, "allow_negative_eigenvalues": True}
HEADS = pytest.mark.parametrize("heads", [(1, 2), (2, 2)])
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
EQUAL_CASES = [
    *(ChannelCase(replace(EQUAL, lengths=(length,))) for length in (1, 16, 63, 64, 130, 300)),
    *(ChannelCase(EQUAL, gates) for gates in ("init", *GATES)),
    *(ChannelCase(replace(EQUAL, keys=keys, beta=2.0), gates) for keys in ("repeated", "near") for gates in ("init", "heavy")),
    ChannelCase(replace(EQUAL, keys="zero")),
    ChannelCase(replace(EQUAL, lengths=(70, 0, 1, 64)), "heavy"),
    ChannelCase(replace(EQUAL, lengths=(33, 33)), "bounded"),
    ChannelCase(replace(EQUAL, beta="zeros"), "channel reset"),
    ChannelCase(replace(EQUAL, state=False, last=False), "heavy"),
    ChannelCase(replace(EQUAL, state=False), "bounded"),
    ChannelCase(replace(EQUAL, last=False)),
    ChannelCase(replace(EQUAL, out=False)),
    ChannelCase(replace(EQUAL, options={"use_qk_l2norm": True, "scale": -0.3}), "linear"),
    *(ChannelCase(replace(EQUAL, options=OPTIONS), gates) for gates in ("softplus", "bounded raw", "bound")),
    ChannelCase(replace(EQUAL, dk=128, dv=128), "bounded"),
]


FEW = 4  # numbers


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
        limit = max(bound, factor * BETA) if name == "beta" and case.shape.heads[0] == case.shape.heads[1] else bound
        if gradient.numel() <= FEW:  # their terms may cancel, and are of size 1
            assert (gradient - wanted[name]).norm() < limit * max(wanted[name].norm(), gradient.numel() ** 0.5), name
            continue
        assert error(gradient, wanted[name], by_head) < limit, (name, error(gradient, wanted[name], by_head))
    if "reset" in case.gates or case.gates == "linear":
        is_reset = x["gate"] == (0 if case.gates == "linear" else -torch.inf)
        assert is_reset.any() and not found["gate"][is_reset].any()
    if case.shape.beta == "zeros":
        assert not found["value"][x["beta"] == 0].any()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_recurrence(case: ChannelCase, device: Device, seed: int) -> None:
    device.skip_above(100, max(case.shape.lengths))
    check(device, case, seed)


@pytest.mark.parametrize("case", EQUAL_CASES, ids=str)
def test_equal_heads(case: ChannelCase, device: Device, seed: int) -> None:
    device.skip_above(200, max(case.shape.lengths))
    check(device, case, seed)


FEW_HEADS = replace(EQUAL, lengths=(1180,), heads=(1, 1), dv=40)


@pytest.mark.parametrize("gates", ["init", "heavy"])
def test_chains_of_few_heads_are_split_along_time(gates: str, device: Device, seed: int) -> None:
    with device.kernels() as launched:
        check(device, ChannelCase(FEW_HEADS, gates), seed)
        if device.emulate:
            assert "gdn/backward_links" in {kernel.partition("{")[0] for kernel in launched()}


def test_deterministic_gradients_are_the_same_in_every_batch(device: Device, seed: int) -> None:
    device.skip_above(2000, 3 * FEW_HEADS.lengths[0])
    x, grads = drawn(ChannelCase(replace(FEW_HEADS, lengths=3 * FEW_HEADS.lengths)), seed, BF16)
    x["deterministic"] = True
    alone = {name: y[:1] if isinstance(y, Tensor) else y for name, y in x.items()}
    first = tuple(None if gradient is None else gradient[:1] for gradient in grads)
    found, one = found_by_kernels(device, x, grads), found_by_kernels(device, alone, first)
    assert all(torch.equal(found[name][:1], one[name]) for name in found)


@pytest.mark.parametrize("dk, dv", [(40, 72), (64, 64), (96, 192), (128, 128), (192, 8), (256, 72)])
@pytest.mark.parametrize("dtype, factor", [(BF16, 1.0), (FP16, 0.25)])
@HEADS
def test_head_dimensions(
    dk: int, dv: int, dtype: torch.dtype, factor: float, heads: tuple[int, int], device: Device, seed: int
) -> None:
    check(device, ChannelCase(replace(SHAPE, lengths=(40,), dk=dk, dv=dv, heads=heads)), seed, dtype, factor)


SMALL = [*product(["heavy", "edge", "bounded"], [(1, 2), (2, 2)]), ("strong", (1, 2))]  # else few are small, by chance


@pytest.mark.parametrize("gates, heads", SMALL)
def test_small_gradients_of_gates_are_right_in_relative_terms(
    gates: str, heads: tuple[int, int], device: Device, seed: int
) -> None:
    x, grads = drawn(ChannelCase(replace(SHAPE, heads=heads), gates), seed, BF16)
    assert smallest_errors(found_by_kernels(device, x, grads)["gate"], oracle(x, grads)["gate"]) < 0.1


@pytest.mark.parametrize("heads", [(2, 4), (2, 2)])
def test_nan_stays_in_its_head(heads: tuple[int, int], device: Device, seed: int) -> None:
    x, grads = drawn(ChannelCase(replace(SHAPE, lengths=(40,), heads=heads), "NaN in a head"), seed, BF16)
    found = found_by_kernels(device, x, grads)
    wanted = found_by_kernels(device, x | {"gate": x["gate"].nan_to_num(0.0)}, grads)
    for name, head in (("query", -2), ("key", -2), ("value", -2), ("gate", -2), ("beta", -1), ("state", 1)):
        clean = 1 if name in ("query", "key") else heads[1] - 1  # the last value head is the second key head's
        assert torch.equal(found[name].narrow(head, 0, clean), wanted[name].narrow(head, 0, clean)), name
        assert found[name].isnan().any(), name


@HEADS
def test_tokens_of_no_sequence_have_gradients_of_zero(heads: tuple[int, int], device: Device, seed: int) -> None:
    x, grads = drawn(ChannelCase(replace(SHAPE, lengths=(20, 3, 17), heads=heads), "softplus"), seed, BF16)
    x["cu_seqlens"] = torch.tensor([0, 20, 23, 23], dtype=torch.int64)
    for name in ("query", "key", "value", "gate"):
        x[name][23:] = torch.nan
    found = found_by_kernels(device, x, grads)
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert not any(found[name][23:].any() for name in ("query", "key", "value", "beta", "gate"))
    assert torch.equal(found["state"][2], grads[1][2])  # type: ignore[index]


@pytest.mark.parametrize("heads", [(3, 6), (3, 3)])
@pytest.mark.parametrize("gates", ["init", "softplus"])
def test_heads_in_groups_that_fit_the_workspace(heads: tuple[int, int], gates: str, device: Device, seed: int) -> None:
    """The same bits as all heads at once."""
    x, grads = drawn(ChannelCase(replace(SHAPE, lengths=(20,), heads=heads), gates), seed, BF16)
    with pytest.raises(ValueError, match=r"chunked_forward: workspace: expected at least \d+ bytes") as refused:
        found_by_kernels(device, x | {"workspace": 1000}, grads)
    least = int(str(refused.value).split("at least ")[1].split()[0])
    at_once, in_groups = (found_by_kernels(device, x | {"workspace": bytes_}, grads) for bytes_ in (None, 2 * least))
    assert all(torch.equal(at_once[name], in_groups[name]) for name in at_once)


@pytest.mark.parametrize("given", [("value",), ("state",), ("state", "gate")])
@HEADS
def test_gradients_of_some_inputs_are_the_same(
    given: tuple[str, ...], heads: tuple[int, int], device: Device, seed: int
) -> None:
    x, _ = drawn(ChannelCase(replace(SHAPE, lengths=(33,), heads=heads, beta="zeros")), seed, BF16)
    x = {name: y.to(device.name) if isinstance(y, Tensor) else y for name, y in x.items()}

    def run(names: tuple[str, ...]) -> tuple[Tensor, ...]:
        leaves = {name: x[name].detach().requires_grad_() for name in names}
        out, state = chunked_forward(**(x | leaves))
        return torch.autograd.grad(out.float().square().sum() + state.square().sum(), [leaves[name] for name in given])

    every = ("query", "key", "value", "beta", "gate", "state")
    assert all(torch.equal(a, b) for a, b in zip(run(given), run(every), strict=True))


@HEADS
def test_views(heads: tuple[int, int], device: Device, seed: int) -> None:
    """Columns of one projection, and a gate whose channels have a stride, which only chunks of 16 tokens take."""
    x, grads = drawn(ChannelCase(replace(SHAPE, lengths=(20,), heads=heads)), seed, BF16)
    rows = torch.cat([x["query"].flatten(2), x["key"].flatten(2), x["value"].flatten(2)], -1)
    first, second = x["query"][0, 0].numel(), x["key"][0, 0].numel()
    views = x | {
        "query": rows[..., :first].view(x["query"].shape),
        "key": rows[..., first : first + second].view(x["key"].shape),
        "value": rows[..., first + second :].view(x["value"].shape),
    }
    if heads[0] < heads[1]:
        views["gate"] = x["gate"].mT.contiguous().mT
    found, wanted = found_by_kernels(device, views, grads), found_by_kernels(device, x, grads)
    assert all(torch.equal(found[name], wanted[name]) for name in found)
