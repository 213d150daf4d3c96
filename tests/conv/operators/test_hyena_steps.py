"""The steps of Hyena's filters on CPU tensors: values, slots, wrong input."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hyena_step_cases import check, fir_inputs, modal_inputs
from torch import Tensor

from gdn_cuda import hyena_fir_step, hyena_modal_step

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Change = Callable[[dict[str, Any]], dict[str, Any]]


def function_of(x: dict[str, Any]) -> Any:
    return hyena_fir_step if "u" in x else hyena_modal_step


@pytest.mark.parametrize("T", [None, 1, 4, 20])
@pytest.mark.parametrize("K", [1, 2, 7, 64])
def test_values(K: int, T: int | None, seed: int) -> None:
    for flags in ({}, {"flip_filter": True, "gated_bias": True}):
        check(fir_inputs(seed, K=K, T=T, **flags), hyena_fir_step)
        check(fir_inputs(seed, K=K, T=T, groups=2, **flags) | {"bias": None}, hyena_fir_step)
    check(modal_inputs(seed, S=K, T=T), hyena_modal_step)
    check(modal_inputs(seed, S=K, T=T, groups=2), hyena_modal_step)


@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("state", DTYPES)
def test_dtypes(io: torch.dtype, state: torch.dtype, seed: int) -> None:
    for make in (fir_inputs, modal_inputs):
        x = make(seed, T=2, io=io, state=state)
        check(x, function_of(x))


def test_slots(seed: int) -> None:
    for make in (fir_inputs, modal_inputs):
        x = make(seed, B=5, T=3, slots=7) | {"state_indices": torch.tensor([4, -1, 0, 2, 2**62]), "null_slot": 2}
        x["state_indices"][4] = 6
        check(x, function_of(x))
        x["state_indices"][1] = 7
        before = [x[name].clone() for name in x if name in ("state", "fir_state")]
        with pytest.raises(IndexError, match=r"_step: state_indices: expected < 7, got 7$"):
            function_of(x)(**x)
        assert torch.equal(before[0], x["fir_state" if "u" in x else "state"])


def test_references_write_nothing_and_are_differentiable(seed: int) -> None:
    import gdn_cuda

    for x in (fir_inputs(seed, T=2), modal_inputs(seed, T=2)):
        name = function_of(x).__name__
        given = {key: y.double().requires_grad_() for key, y in x.items()}
        y, state = getattr(gdn_cuda.reference, name)(**given)
        found, after = function_of(x)(**x)
        assert torch.allclose(found, y.float(), 1e-5, 1e-5) and torch.allclose(after, state.float(), 1e-5, 1e-5)
        assert all(g is not None for g in torch.autograd.grad(y.sum() + state.sum(), list(given.values())))


def test_gradients_are_refused(seed: int) -> None:
    x = fir_inputs(seed)
    x["u"].requires_grad_()
    y, _ = hyena_fir_step(**x)
    with pytest.raises(RuntimeError, match="hyena_fir_step"):
        y.sum().backward()


# ---- Wrong input


def fir_case() -> dict[str, Any]:
    return fir_inputs(0, B=3, D=6, K=4, T=2) | {"state_indices": torch.tensor([0, 1, 2]), "out": torch.zeros(3, 6, 2)}


def modal_case() -> dict[str, Any]:
    return modal_inputs(0, B=3, D=6, S=4, T=2) | {"state_indices": torch.tensor([0, 1, 2]), "out": torch.zeros(3, 6, 2)}


# (argument, dimension) whose size may be smaller: fewer slots than sequences, and groups that still divide the channels.
MAY_BE_SMALLER = {("fir_state", 0), ("state", 0)}


@pytest.mark.parametrize("make", [fir_case, modal_case])
def test_every_tensor_of_another_size_dtype_rank_or_device(make: Callable[[], dict[str, Any]]) -> None:
    for name, y in make().items():
        wrong = {"double": y.double(), "rank": y[None, None, None], "device": y.to("meta")}
        wrong |= {f"size {d}": y.narrow(d, 0, y.shape[d] - 1) for d in range(y.dim()) if (name, d) not in MAY_BE_SMALLER}
        for what, bad in wrong.items():
            x = make() | {name: bad}
            with pytest.raises(ValueError, match=rf"^{function_of(x).__name__}: \w+: expected "):
                function_of(x)(**x)
                pytest.fail(f"{name}, {what}: accepted")


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], str, Change, str]] = {
    "1025 taps": (
        fir_case,
        "weight",
        lambda x: {"weight": torch.ones(6, 1, 1025), "fir_state": torch.ones(3, 6, 1024)},
        "K from 1 to 1024",
    ),
    "no taps": (fir_case, "weight", lambda x: {"weight": torch.ones(6, 1, 0)}, "K from 1"),
    "a weight without its dimension of one": (fir_case, "weight", lambda x: {"weight": x["weight"][:, 0]}, "(groups, 1, K)"),
    "groups that do not divide": (fir_case, "weight", lambda x: {"weight": x["weight"][:4]}, "divide the 6 channels"),
    "a state of another length": (fir_case, "fir_state", lambda x: {"fir_state": torch.zeros(3, 6, 4)}, "K-1=3"),
    "an expanded state": (fir_case, "fir_state", lambda x: {"fir_state": torch.zeros(6, 3).expand(3, 6, 3)}, ""),
    "an expanded output": (fir_case, "out", lambda x: {"out": torch.zeros(6, 2).expand(3, 6, 2)}, ""),
    "an output that is the input": (fir_case, "out", lambda x: {"out": x["u"]}, ""),
    "an output in the state": (
        fir_case,
        "fir_state|out",
        lambda x: {"fir_state": (whole := torch.zeros(3, 6, 5))[..., :3], "out": whole[..., 2:4]},
        "",
    ),
    "too few slots": (fir_case, "fir_state", lambda x: {"state_indices": None, "fir_state": x["fir_state"][:2]}, "3 sequences"),
    "a negative null slot": (fir_case, "null_slot", lambda x: {"null_slot": -2}, "None"),
    "slots of rank 2": (fir_case, "state_indices", lambda x: {"state_indices": torch.zeros(3, 2).long()}, "(sequences,)"),
    "65 states": (
        modal_case,
        "residues",
        lambda x: {"residues": torch.ones(6, 65), "log_poles": torch.ones(6, 65), "state": torch.ones(3, 6, 65)},
        "S from 1 to 64",
    ),
    "poles of other groups": (modal_case, "log_poles", lambda x: {"log_poles": x["log_poles"][:3]}, "as residues"),
    "groups of residues that do not divide": (
        modal_case,
        "residues",
        lambda x: {"residues": x["residues"][:4], "log_poles": x["log_poles"][:4]},
        "divide the 6 channels",
    ),
    "a state that is an input": (modal_case, "state|x2|x1|v", lambda x: {"v": x["state"][..., :2]}, ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name: str) -> None:
    make, argument, change, says = WRONG[name]
    x = make()
    x |= change(x)
    before = {key: y.clone() for key, y in x.items() if isinstance(y, Tensor)}
    with pytest.raises(ValueError) as caught:
        function_of(x)(**x)
    text = str(caught.value)
    assert re.fullmatch(rf"{function_of(x).__name__}: ({argument}): expected .+, got .+", text, re.DOTALL), text
    assert says in text
    for key, old in before.items():
        assert torch.equal(old, x[key]), f"{key} was written"
