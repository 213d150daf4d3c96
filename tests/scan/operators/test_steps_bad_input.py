"""Wrong input of the steps raises an error that names function, argument, expected and got, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from step_cases import draws, packed_draws
from torch import Tensor

from gdn_cuda import selective_state_update, simplified_state_update
from gdn_cuda.scan.simplified_step import _inputs as simplified_inputs

Change = Callable[[dict[str, Any]], dict[str, Any]]


def selective_case() -> dict[str, Any]:
    """All optional arguments; two tokens, heads in groups."""
    x = draws(0, batch=3, tokens=2, heads=4, dim=5, groups=2, slots=6)
    return x | {
        "state_batch_indices": torch.tensor([[0, 1], [2, 3], [4, 5]]),
        "num_accepted_tokens": torch.tensor([1, 2, 0]),
        "step_states": torch.zeros(3, 2, 4, 5, 16),
        "step_slots": torch.tensor([0, 1, 2]),
        "out": torch.zeros(3, 2, 4, 5),
    }


def simplified_case() -> dict[str, Any]:
    return simplified_inputs(3, 0, 7, 5) | {"D": torch.ones(5), "delta_a": torch.ones(7)}


def refused(function: Any, x: dict[str, Any], argument: str, says: str = "") -> None:
    before = {name: y.clone() for name, y in x.items() if isinstance(y, Tensor) and y.device.type == "cpu"}
    with pytest.raises(ValueError) as caught:
        function(**x)
    text = str(caught.value)
    assert re.fullmatch(rf"{function.__name__}: {argument}: expected .+, got .+", text, re.DOTALL), text
    assert says in text
    for name, old in before.items():
        assert torch.equal(old, x[name]), f"{name} was written"


def shorter(x: Tensor, d: int) -> Tensor:
    return x.narrow(d, 0, x.shape[d] - 1)


NO_SLOTS = {"state_batch_indices": None, "num_accepted_tokens": None}
ONLY_SLOTS = {"step_states": None, "step_slots": None}
ONE_SLOT = ONLY_SLOTS | {"state_batch_indices": torch.tensor([0, 1, 2]), "num_accepted_tokens": None}
PARENTS = torch.tensor([[-1, 0]] * 3)
# (argument, dimension) whose size may be smaller, as not all of it may be used.
MAY_BE_SMALLER = {("state", 0), ("step_states", 0), ("B", 2), ("C", 2)}


@pytest.mark.parametrize("make", [selective_case, simplified_case])
def test_every_tensor_of_another_size_dtype_rank_or_device(make: Callable[[], dict[str, Any]]) -> None:
    function = selective_state_update if make is selective_case else simplified_state_update
    for name, y in make().items():
        if not isinstance(y, Tensor):
            continue
        wrong = {"double": y.to(torch.complex128 if y.is_complex() else torch.float64), "rank": y[None, None, None]}
        wrong |= {f"size {d}": shorter(y, d) for d in range(y.dim()) if (name, d) not in MAY_BE_SMALLER}
        for what, bad in wrong.items():
            with pytest.raises(ValueError, match=rf"^{function.__name__}: \w+: expected "):
                function(**make() | {name: bad})
                pytest.fail(f"{name}, {what}: accepted")


WRONG: dict[str, tuple[str, Change, str]] = {
    "a state of rank 2": ("state", lambda x: {"state": x["state"][0, 0]}, "(B, dim, N), or (B, heads, dim, N)"),
    "tokens without heads": ("x", lambda x: {"x": x["x"][0, 0]}, "as state has heads"),
    "other channels": ("x", lambda x: {"x": x["x"][..., :3]}, "to match state"),
    "groups that do not divide": ("B", lambda x: {"B": x["B"][:, :, :1].expand(3, 2, 3, 16)}, "divides the 4 heads"),
    "groups of C that are not B's": ("C", lambda x: {"C": x["C"][:, :, :1].expand(3, 2, 4, 16)}, "the 2 of B"),
    "N of 257": (
        "state",
        lambda x: {"state": torch.zeros(6, 4, 5, 257), "A": torch.zeros(4, 5, 257), "B": torch.zeros(3, 2, 257)},
        "N from 1 to 256",
    ),
    "a transposed state": ("state", lambda x: {"state": torch.zeros(6, 4, 16, 5).mT}, "contiguous states"),
    "an expanded state": ("state", lambda x: {"state": torch.zeros(1, 4, 5, 16).expand(6, 4, 5, 16)}, "overlaps itself"),
    "transposed step states": ("step_states", lambda x: {"step_states": torch.zeros(3, 2, 4, 16, 5).mT}, "contiguous states"),
    "step states of another dtype": ("step_states", lambda x: {"step_states": x["step_states"].bfloat16()}, "float32"),
    "complex A for a real state": ("A", lambda x: {"A": x["A"] + 0j}, "float32"),
    "an unknown discretization": ("discretization", lambda x: {"discretization": "euler"}, "'mamba'"),
    "an output of another dtype": ("out", lambda x: {"out": x["out"].bfloat16()}, "float32"),
    "an expanded output": ("out", lambda x: {"out": torch.zeros(1).expand(3, 2, 4, 5)}, "overlaps itself"),
    "out over x": ("out", lambda x: {"out": x["x"]}, "x"),
    "state over step_states": ("step_states", lambda x: {"step_states": x["state"][None][:, :2].expand(3, 2, 4, 5, 16)}, ""),
    "accepted without indices of tokens": (
        "num_accepted_tokens",
        lambda x: {"state_batch_indices": torch.tensor([0, 1, 2])},
        "rank-2 state_batch_indices",
    ),
    "step_slots alone": ("step_states", lambda x: {"step_states": None}, "both"),
    "step_states alone": ("step_slots", lambda x: {"step_slots": None}, "both"),
    "too few columns": (
        "state_batch_indices",
        lambda x: {"state_batch_indices": x["state_batch_indices"][:, :1]},
        "each of 2 tokens",
    ),
    "accepted, and states that are only read": ("update_state", lambda x: ONLY_SLOTS | {"update_state": False}, "each token"),
    "slots to write and a tree": (
        "write_indices",
        lambda x: {"write_indices": torch.tensor([0, 1, 2]), "parents": PARENTS},
        "None where",
    ),
    "a tree without step states": ("parents", lambda x: ONLY_SLOTS | {"parents": PARENTS}, "None without step_states"),
    "a tree of one token": ("parents", lambda x: {"parents": PARENTS[:, :1]}, "a parent for each of 2 tokens"),
    "a tree of 65 tokens": ("parents", lambda x: {"parents": PARENTS[:, :1].expand(3, 65)}, "T at most 64"),
    "packed tokens with a dimension for them": ("x", lambda x: {"cu_seqlens": torch.tensor([0, 1, 3])}, "packed"),
    "slots to write of one token": (
        "write_indices",
        lambda x: ONLY_SLOTS | {"write_indices": torch.tensor([0, 1, 2])},
        "a slot for each of 2 tokens",
    ),
    "slots to write without slots to read": (
        "write_indices",
        lambda x: ONLY_SLOTS | NO_SLOTS | {"write_indices": torch.tensor([0, 1, 2])},
        "None without state_batch_indices",
    ),
    "slots to write, and states that are only read": (
        "write_indices",
        lambda x: ONE_SLOT | {"write_indices": torch.tensor([0, 1, 2]), "update_state": False},
        "None where",
    ),
    "slots to write that are not integers": (
        "write_indices",
        lambda x: ONE_SLOT | {"write_indices": torch.ones(3)},
        "int32 or int64",
    ),
    "a negative null slot": ("null_slot", lambda x: {"null_slot": -1}, "a slot number"),
    "steps of other heads": ("dt", lambda x: {"dt": torch.ones(3, 2, 5)}, "without its channels"),
    "A of other heads": ("A", lambda x: {"A": -torch.ones(5)}, "(heads,)"),
    "D of other heads": ("D", lambda x: {"D": torch.ones(5)}, "(heads,)"),
    "indices that are not integers": ("step_slots", lambda x: {"step_slots": x["step_slots"].double()}, "int32 or int64"),
    "too few states without indices": (
        "state",
        lambda x: NO_SLOTS | {"state": x["state"][:2]},
        "as state_batch_indices is None",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments(what: str) -> None:
    argument, change, says = WRONG[what]
    x = selective_case()
    refused(selective_state_update, x | change(x), argument, says)


OFFSETS: dict[str, tuple[str, dict[str, Any], str]] = {
    "offsets past the tokens": ("cu_seqlens", {"cu_seqlens": torch.tensor([0, 2, 7])}, "end by 6"),
    "offsets that decrease": ("cu_seqlens", {"cu_seqlens": torch.tensor([0, 3, 2])}, "never decrease"),
    "offsets that are not integers": ("cu_seqlens", {"cu_seqlens": torch.tensor([0.0, 6.0])}, "int"),
    "slots of other sequences": ("state_batch_indices", {"state_batch_indices": torch.arange(6)}, "a row for each sequence"),
    "parents of other sequences": (
        "parents",
        {"parents": torch.zeros(3, 6).int(), "step_states": torch.zeros(2, 6, 5, 16), "step_slots": torch.arange(2)},
        "(2, T)",
    ),
}


@pytest.mark.parametrize("what", OFFSETS)
def test_wrong_packed_arguments(what: str) -> None:
    argument, change, says = OFFSETS[what]
    refused(selective_state_update, packed_draws(0, [2, 4], slots=6) | change, argument, says)


@pytest.mark.parametrize("name", ["s7", "rglru"])
def test_a_complex_state_with_a_real_discretization(name: str) -> None:
    x = draws(0, state=torch.complex64) | {"discretization": name}
    refused(selective_state_update, x, "discretization", "for a complex state")


@pytest.mark.parametrize("name", "ABC")
def test_real_tensors_for_a_complex_state(name: str) -> None:
    x = draws(0, state=torch.complex64)
    refused(selective_state_update, x | {name: x[name].real.contiguous()}, name, "complex64")


@pytest.mark.parametrize("name", ["x", "dt", "A", "B", "z", "D"])
def test_a_state_that_shares_memory_with_an_input(name: str) -> None:
    x = draws(0)
    memory = torch.zeros(3 * 5 * 16)
    x["state"] = memory.view(3, 5, 16)
    x[name] = memory[-x[name].numel() :].view(x[name].shape)
    refused(selective_state_update, x, "state", f"that of {name}")


SIMPLIFIED_WRONG: dict[str, tuple[str, Change, str]] = {
    "mamba": ("discretization", lambda x: {"discretization": "mamba"}, "'bilinear', 'zoh' or 'dirac'"),
    "a real state": ("state", lambda x: {"state": torch.zeros(3, 7)}, "complex64"),
    "a real C": ("C", lambda x: {"C": x["C"].real.contiguous()}, "complex64"),
    "a D of another size": ("D", lambda x: {"D": torch.ones(5, 4)}, "(H=5,), or (H, H)"),
    "steps of another batch": ("dt", lambda x: {"dt": torch.ones(2, 7)}, "or (P,)"),
    "an expanded state": ("state", lambda x: {"state": x["state"][:1].expand(3, 7)}, "overlaps itself"),
    "state over C": ("state", lambda x: {"state": x["C"][:3]}, "that of C"),
}


@pytest.mark.parametrize("what", SIMPLIFIED_WRONG)
def test_wrong_arguments_of_the_simplified_step(what: str) -> None:
    argument, change, says = SIMPLIFIED_WRONG[what]
    x = simplified_case()
    refused(simplified_state_update, x | change(x), argument, says)


def test_a_conjugate_view_as_state_is_refused() -> None:
    x = draws(0, state=torch.complex64)
    refused(selective_state_update, x | {"state": x["state"].conj()}, "state", "conjugate view")


@pytest.mark.parametrize("discretization", ["s7", "rglru"])
def test_delta_a_is_refused_where_it_has_no_meaning(discretization: str) -> None:
    x = draws(0, batch=3, tokens=2, heads=4, dim=5, groups=2)
    x |= {"discretization": discretization, "delta_a": torch.ones_like(x["dt"])}
    refused(selective_state_update, x, "delta_a", f"expected None with '{discretization}', got a tensor")
