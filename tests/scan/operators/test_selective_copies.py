"""Which tensors of selective_scan are copied by common/transposed_copy, and how."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from selective_inputs import channels_last, selective_inputs
from torch import Tensor

import gdn_cuda
from gdn_cuda.operators.explain import explained

ROWS = ("u", "delta", "z", "delta_a")
BOTH_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])


def other_layout(x: Tensor) -> Tensor:
    return x.contiguous() if x.mT.is_contiguous() else channels_last(x)


def copies(x: dict[str, Any], grad: Tensor | None = None) -> list[tuple[str, str, str]]:
    """(configuration, what a lane loads, what it stores) for each copy; with `grad`, for those of backward."""

    def step(**x: Any) -> Any:
        out = gdn_cuda.selective_scan(**x)
        return out if grad is None else torch.autograd.grad(out, x["u"], grad.to("meta"))

    given = x | {k: x[k].detach().requires_grad_(grad is not None) for k in ROWS}
    steps = [each for each in explained(step, device="h200", **given).steps if each["kernel"]]
    ends = [i for i, each in enumerate(steps) if each["kernel"] == "scan/selective_forward"]
    assert len(ends) == 1
    steps = steps[: ends[0]] if grad is None else steps[ends[0] + 1 :]
    found = [each for each in steps if each["kernel"] == "common/transposed_copy"]
    assert steps[: len(found)] == found, "copies are made first"
    moved = [re.search(r"a lane loads (.+) and stores (.+)", each["reason"]) for each in found]
    return [(each["configuration"], match[1], match[2]) for each, match in zip(found, moved, strict=True) if match]


def mixed(x: dict[str, Any], *names: str) -> dict[str, Any]:
    return x | {name: other_layout(x[name]) for name in names}


@pytest.mark.parametrize("dtype, bytes_", [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)])
@BOTH_LAYOUTS
def test_tensors_in_the_other_layout_are_copied(dtype: torch.dtype, bytes_: int, last: bool, seed: int) -> None:
    x = selective_inputs(seed, dim=16, length=72, dtype=dtype, last=last)
    by_vectors = (f"{{.element_bytes = {bytes_}}}", "16 bytes", "16 bytes")
    assert copies(x) == []
    assert copies(mixed(x, "u")) == copies(mixed(x, "z")) == [by_vectors]
    assert copies(mixed(x, "delta", "z")) == [by_vectors] * 2


@BOTH_LAYOUTS
def test_a_gradient_of_out_in_the_other_layout_is_copied(last: bool, seed: int) -> None:
    x = selective_inputs(seed, dim=16, length=72, last=last)
    grad = x["u"].detach()
    assert copies(x, grad) == []
    assert len(copies(x, other_layout(grad))) == len(copies(mixed(x, "u"), grad)) == 1
    assert len(copies(mixed(x, "u"), other_layout(grad))) == 2


@pytest.mark.parametrize(
    "dim, length, along_channels, along_tokens",
    [(16, 72, True, True), (16, 70, True, False), (13, 72, False, True), (13, 70, False, False)],
)
@BOTH_LAYOUTS
def test_vectors_take_rows_that_begin_on_16_bytes(
    dim: int, length: int, along_channels: bool, along_tokens: bool, last: bool, seed: int
) -> None:
    words = {False: "an element", True: "16 bytes"}
    x = selective_inputs(seed, dim=dim, length=length, dtype=torch.bfloat16, last=last)
    loads, stores = (along_tokens, along_channels) if last else (along_channels, along_tokens)
    assert copies(mixed(x, "z")) == [("{.element_bytes = 2}", words[loads], words[stores])]


def test_parts_of_wider_tensors_are_copied_by_vectors_if_they_begin_on_16_bytes(seed: int) -> None:
    x = selective_inputs(seed, dim=16, length=72, dtype=torch.bfloat16)
    wide = torch.zeros(2, 72, 48, dtype=torch.bfloat16)
    for first, loads in ((16, "16 bytes"), (8, "16 bytes"), (7, "an element"), (12, "an element")):
        assert copies(x | {"z": wide[..., first : first + 16].mT}) == [("{.element_bytes = 2}", loads, "16 bytes")]


@BOTH_LAYOUTS
def test_other_strides_are_left_to_torch(last: bool, seed: int) -> None:
    x = selective_inputs(seed, dim=16, length=72, last=last)
    spread = torch.stack([x["z"], x["z"]], -1)[..., 0]
    assert 1 not in spread.stride()[1:] and copies(x | {"z": spread}) == []


@BOTH_LAYOUTS
def test_empty_tensors_are_not_copied(last: bool, seed: int) -> None:
    x = selective_inputs(seed, length=0, last=last)
    assert copies(mixed(x, "z")) == []
