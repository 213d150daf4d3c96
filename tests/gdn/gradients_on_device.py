"""Gradients of chunked_forward by kernels, against autograd of the recurrence in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from devices import Device
from gradient_cases import GradientCase, cotangents, error, gradients_of, inputs, oracle
from torch import Tensor

from gdn_cuda import chunked_forward, recurrent_forward

BOUNDS = {"query": 5e-3, "key": 5e-3, "value": 5e-3, "state": 5e-3, "beta": 8e-3, "gate": 8e-3, "A_log": 8e-3, "dt_bias": 8e-3}

DIMENSIONS = [(40, 64), (64, 72), (96, 192), (128, 128), (192, 8), (256, 72)]
CASES = [
    GradientCase(lengths=(70, 0, 1, 130), heads=(2, 4)),
    GradientCase(heads=(1, 4), gates=(0.01, 0.01, 100.0, 0.01)),
    GradientCase(gates=1e-5),
    GradientCase(keys="repeated", beta=2.0, gates=1e-3),
    GradientCase(keys="near", beta=2.0, gates=1e-3, state=False, last=False),
    GradientCase(keys="zero"),
    GradientCase(beta="zeros"),
    GradientCase(resets=True, options={"use_qk_l2norm": True}),
    GradientCase(lengths=(65, 65), out=False),
    GradientCase(options={"A_log": True, "beta_is_logit": True, "allow_negative_eigenvalues": True, "use_qk_l2norm": True}),
    GradientCase(options={"gate_is_linear": True}, resets=True),
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


def check(device: Device, case: GradientCase, seed: int, dtype: torch.dtype, factor: float = 1.0, **how: Any) -> None:
    """`how`: what changes how gradients are computed, not what they are."""
    x = inputs(case, seed, dtype)
    grads = cotangents(case, seed, x)
    found, wanted = found_by_kernels(device, x | how, grads), oracle(x, grads)
    for name, gradient in found.items():
        bound = factor * (15e-3 if name in ("gate", "A_log", "dt_bias") and case.keys != "random" else BOUNDS[name])
        by_head = {"value": -2, "beta": -1, "gate": -1, "state": 1}.get(name)
        assert error(gradient, wanted[name], by_head) < bound, name
    if case.resets:
        is_reset = x["gate"] == (0 if case.options.get("gate_is_linear") else -torch.inf)
        assert is_reset.any() and not found["gate"][is_reset].any()
    if case.beta == "zeros":
        assert not found["value"][x["beta"] == 0].any()


@pytest.mark.parametrize("dk, dv", DIMENSIONS)
@pytest.mark.parametrize("dtype, factor", [(torch.bfloat16, 1.0), (torch.float16, 0.25)])
def test_head_dimensions(dk: int, dv: int, dtype: torch.dtype, factor: float, device: Device, seed: int) -> None:
    check(device, GradientCase(lengths=(130,), heads=(1, 2), dk=dk, dv=dv), seed, dtype, factor)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_recurrence(case: GradientCase, device: Device, seed: int) -> None:
    check(device, case, seed, torch.bfloat16)


FEW_HEADS = GradientCase(lengths=(1180,), heads=(1, 1), dk=64, dv=40, gates=1e-3)


@pytest.mark.parametrize("forward", ["chunked", "recurrent"])  # with states within the sequence from forward, and without
def test_chains_of_few_heads_are_split_along_time(forward: str, device: Device, seed: int) -> None:
    check(device, FEW_HEADS, seed, torch.bfloat16, forward=forward)


@pytest.mark.parametrize("gates", [1.0, 1e-3, 1e-5])
def test_long_sequences(gates: float, device: Device, seed: int) -> None:
    device.skip_above(2000, tokens := 4200)
    check(device, GradientCase(lengths=(tokens,), heads=(1, 2), gates=gates), seed, torch.bfloat16)


def test_windows_of_tokens_that_fit_the_workspace(device: Device, seed: int) -> None:
    """From the last to the first, with the gradient of the state handed on."""
    case = GradientCase(lengths=(1100, 1100), heads=(1, 1), dk=64, dv=40, gates=1e-3)
    check(device, case, seed, torch.bfloat16, workspace=least_workspace(device, case, seed))


def test_deterministic_gradients_are_the_same_in_every_batch(device: Device, seed: int) -> None:
    three = replace(FEW_HEADS, lengths=3 * FEW_HEADS.lengths)
    x = inputs(three, seed) | {"deterministic": True}
    grads = cotangents(three, seed, x)
    alone = {name: y[:1] if isinstance(y, Tensor) else y for name, y in x.items()}
    found, one = found_by_kernels(device, x, grads), found_by_kernels(device, alone, (grads[0][:1], grads[1][:1]))
    assert all(torch.equal(found[name][:1], one[name]) for name in found)


def least_workspace(device: Device, case: GradientCase, seed: int) -> int:
    x = inputs(case, seed)
    with pytest.raises(ValueError, match=r"chunked_forward: workspace: expected at least \d+ bytes") as refused:
        found_by_kernels(device, x | {"workspace": 1000}, cotangents(case, seed, x))
    return int(str(refused.value).split("at least ")[1].split()[0])


def test_heads_in_groups_that_fit_the_workspace(device: Device, seed: int) -> None:
    """The same bits as all heads at once."""
    case = GradientCase(lengths=(70,), heads=(3, 6))
    x = inputs(case, seed)
    grads = cotangents(case, seed, x)
    at_once = found_by_kernels(device, x, grads)
    in_groups = found_by_kernels(device, x | {"workspace": 2 * least_workspace(device, case, seed)}, grads)
    assert all(torch.equal(at_once[name], in_groups[name]) for name in at_once)


@pytest.mark.parametrize("layout", ["rows", "columns", "none"])
def test_a_forward_by_token_has_the_bits_of_recurrent_forward(layout: str, device: Device, seed: int) -> None:
    """Also from states that are views of [K, V] too, which other kernels take."""
    x = inputs(GradientCase(lengths=(5, 5), options={"use_qk_l2norm": True}, state=layout != "none"), seed)
    x = {name: y.to(device.name) if isinstance(y, Tensor) else y for name, y in x.items()}
    if layout == "columns":
        x["state"] = x["state"].mT.contiguous().mT
    norm = {"is_qk_norm": x.pop("use_qk_l2norm")}
    expected = recurrent_forward(**{"state": None} | x, **norm)
    x["value"].requires_grad_()
    found = chunked_forward(**x, use_qk_l2norm=True, forward="recurrent")
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("lengths", [(1, 1), (1, 2)], ids=["padded", "packed"])
def test_no_tokens(lengths: tuple[int, ...], device: Device, seed: int) -> None:
    """The final state is the initial one, and so are their gradients."""
    x = inputs(GradientCase(lengths=lengths), seed)
    for name in ("query", "key", "value", "beta", "gate"):
        x[name] = x[name][:0] if "cu_seqlens" in x else x[name][:, :0]
    if "cu_seqlens" in x:
        x["cu_seqlens"] = torch.zeros_like(x["cu_seqlens"])
    last = torch.randn(x["state"].shape, generator=torch.Generator().manual_seed(seed))
    found = found_by_kernels(device, x, (x["value"], last))
    assert torch.equal(found["state"], last.to(found["state"].dtype))
    assert all(gradient.numel() == 0 for name, gradient in found.items() if name != "state")


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_one_sequence_and_key_head_poisons_no_other(poison: float, device: Device, seed: int) -> None:
    case = GradientCase(lengths=(70, 30, 65), heads=(2, 4))
    x = inputs(case, seed)
    grads = cotangents(case, seed, x)
    clean = found_by_kernels(device, x, grads)
    hostile = {name: y.clone() if isinstance(y, Tensor) else y for name, y in x.items()}
    for name, head in (("query", 1), ("key", 1), ("value", 2), ("gate", 3), ("beta", 2)):
        hostile[name][80, head] = poison if name != "gate" else -poison
    found = found_by_kernels(device, hostile, grads)
    for name, mine in found.items():
        other = clean[name]
        if name == "state":
            assert torch.equal(mine[[0, 2]], other[[0, 2]]) and torch.equal(mine[1, :2], other[1, :2])
            continue
        outside = [slice(0, 70), slice(100, None)]
        assert all(torch.equal(mine[span], other[span]) for span in outside), name
        heads = mine.shape[1] // 2
        assert torch.equal(mine[:, :heads], other[:, :heads]), name


@pytest.mark.parametrize("given", [("value",), ("state", "gate")])
def test_gradients_of_some_inputs_are_the_same(given: tuple[str, ...], device: Device, seed: int) -> None:
    x = inputs(GradientCase(lengths=(100,)), seed)
    x = {name: y.to(device.name) if isinstance(y, Tensor) else y for name, y in x.items()}

    def run(names: tuple[str, ...]) -> tuple[Tensor, ...]:
        leaves = {name: x[name].detach().requires_grad_() for name in names}
        out, state = chunked_forward(**(x | leaves))
        return torch.autograd.grad(out.float().square().sum() + state.square().sum(), [leaves[name] for name in given])

    every = ("query", "key", "value", "beta", "gate", "state")
    assert all(torch.equal(a, b) for a, b in zip(run(given), run(every), strict=True))
