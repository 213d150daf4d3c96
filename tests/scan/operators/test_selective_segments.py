"""Which sequences of selective_scan are split into segments, forward and backward, and into how many."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from processes import run

import gdn_cuda
from gdn_cuda.operators.explain import explained
from gdn_cuda.scan.measure_selective import Shape, layer_inputs


def launches(shape: Shape, backward: bool, **more: Any) -> list[Any]:
    def step(**x: Any) -> Any:
        out = gdn_cuda.selective_scan(**x, delta_softplus=True)
        return torch.autograd.grad(out.sum(), x["u"]) if backward else out

    x = {name: v.requires_grad_() for name, v in layer_inputs("meta", shape).items()} | more
    return [s for s in explained(step, device="h200", **x).steps if s["kernel"]]


def segments(shape: Shape, backward: bool = False, **more: Any) -> tuple[int, int]:
    """How many segments, and their tokens, as the kernel's launch says; (1, 0): not split."""
    names = ["scan/selective_backward"] if backward else ["scan/selective_forward", "scan/selective_lanes"]
    steps = launches(shape, backward, **more)
    found = [
        (i, re.search(r"split into (\d+) segments of (\d+) tokens", s["reason"]))
        for i, s in enumerate(steps)
        if s["kernel"] in names
    ]
    for i, match in found:
        before = [s["kernel"] for s in steps[:i]][-2:]
        assert (before == ["scan/selective_pieces", "scan/selective_starts"]) == bool(match)
        assert match or "sequences are not split" in steps[i]["reason"] or steps[i]["kernel"] == "scan/selective_lanes"
    assert len(found) == 1
    match = found[0][1]
    return (int(match[1]), int(match[2])) if match else (1, 0)


LONG = [Shape(1, 256, 131072), Shape(1, 1536, 8192), Shape(1, 2048, 4096), Shape(1, 8, 1 << 20)]
FULL = [Shape(8, 5120, 2048), Shape(8, 1536, 2048), Shape(64, 1024, 512)]


@pytest.mark.parametrize("shape", LONG, ids=lambda shape: shape.name)
@pytest.mark.parametrize("backward", [False, True])
def test_few_channels_and_many_tokens_are_split(shape: Shape, backward: bool) -> None:
    count, length = segments(shape, backward)
    assert 2 <= count <= 128 and length % 64 == 0
    assert (count - 1) * length < shape.length <= count * length, "no segment is empty"
    assert segments(replace(shape, layout="transposed"), backward) == (count, length)


@pytest.mark.parametrize("shape", FULL, ids=lambda shape: shape.name)
def test_forward_does_not_split_what_fills_the_gpu(shape: Shape) -> None:
    assert segments(shape) == (1, 0)


def test_short_sequences_are_not_split() -> None:
    for length in (0, 1, 64, 127):
        assert segments(Shape(1, 16, length)) == (1, 0)
    assert segments(Shape(1, 1536, 512)) == (1, 0)  # a prompt: the additional launches would take longer


def test_backward_splits_shapes_that_forward_does_not() -> None:
    shape = Shape(1, 5120, 4096)
    assert segments(shape) == (1, 0) and segments(shape, backward=True)[0] > 1


def test_packed_sequences_have_segments_for_the_longest() -> None:
    offsets = torch.zeros(5, dtype=torch.int64, device="meta")
    count, length = segments(Shape(1, 256, 16384), cu_seqlens=offsets)
    assert count * length >= 16384 and length <= 16384 // 4


def test_the_variable_sets_the_number_of_segments() -> None:
    """In a new process, as the variable is read once per process."""
    code = """
import gdn_cuda
from gdn_cuda.operators.explain import explained
from gdn_cuda.scan.measure_selective import Shape, layer_inputs
steps = explained(gdn_cuda.selective_scan, device="h200", **layer_inputs("meta", Shape(8, 5120, 2048))).steps
print([(s["kernel"].split("_")[-1], s["grid"][1]) for s in steps])
"""
    wanted = [("pieces", 2), ("starts", 1), ("forward", 3)]
    assert run("-c", code, GDN_SCAN_PIECES="3").stdout.strip() == str(wanted)
