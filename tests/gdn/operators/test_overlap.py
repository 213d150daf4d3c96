"""Outputs that overlap another argument or themselves are refused; interleaved slices are accepted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from gdn_cases import CASES, arguments_of, refuses
from operator_cases import copied, written_by
from torch import Tensor

import gdn_cuda
from gdn_cuda.gdn.examples import DK, DV, HK, HV
from gdn_cuda.operators.examples import Arguments, Case, random

# Together, these calls write every argument that any call writes.
WRITING = [
    "recurrent-PREFILL",
    "recurrent-int8",
    "recurrent-accepted-packed",
    "decode",
    "decode-verify-packed",
    "decode-step-states",
    "decode-int8-tree",
    "replay-packed",
    "ring-int8",
    "chunked",
    "chunked-pool",
    "chunked_summary, from a state",
    "chunked_summary, gates of channels",
    "chunked_summary, packed",
    "recurrent-by-engine",
    "decode-by-engine",
    "chunked-by-engine",
    "chunked-pool-by-engine",
    "chunked-pool-int8",
    "cumsum-packed",
    "u-w-packed",
    "state-update-packed",
    "compute-o-packed",
]


def test_the_cases_write_every_argument_that_any_call_writes() -> None:
    def written(cases: Iterable[Case]) -> set[tuple[str, str]]:
        return {(case.function.__name__, argument) for case in cases for argument in written_by(case)}

    assert written(CASES[name] for name in WRITING) == written(CASES.values())


def pairs() -> list[tuple[str, str, str]]:
    found = []
    for name in WRITING:
        arguments = arguments_of(CASES[name])
        for written in written_by(CASES[name]):
            tensors = {other: x for other, x in arguments.items() if isinstance(x, Tensor) and x.numel()}
            others = tensors.keys() - {written, "chunk_indices", "cu_chunks"}  # these two are not read
            found += [(name, written, other) for other in others if written in arguments]
    return sorted(found)


def over(memory: Tensor, x: Tensor) -> Tensor:
    """A copy of x with the same strides, in `memory`'s storage."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    storage = memory.untyped_storage()
    storage.resize_(max(storage.nbytes(), (last + 1) * x.element_size()))
    moved = torch.empty(0, dtype=x.dtype).set_(storage, 0, x.shape, x.stride())
    return moved.copy_(x)


@pytest.mark.parametrize("name, written, other", pairs())
def test_an_output_in_the_memory_of_another_argument_is_refused(name: str, written: str, other: str) -> None:
    arguments = {argument: copied(x) for argument, x in arguments_of(CASES[name]).items()}
    arguments[other] = over(arguments[written], copied(arguments[other]))
    assert refuses(CASES[name], arguments) in {written, other}


def test_the_error_names_the_argument_that_shares_the_memory() -> None:
    x = arguments_of(CASES["recurrent-PREFILL"])
    x["out"] = over(x["query"], x["out"])
    with pytest.raises(ValueError) as caught:
        gdn_cuda.recurrent_forward(**x)
    assert (
        str(caught.value)
        == "recurrent_forward: out: expected memory that does not overlap that of query, got memory that overlaps it"
    )


def over_itself(x: Tensor, dim: int) -> Tensor:
    """A tensor like x with half the stride in `dim`, so that elements coincide."""
    strides = list(x.contiguous().stride())
    strides[dim] //= 2
    return torch.empty(x.numel(), dtype=x.dtype).as_strided(x.shape, strides)


@pytest.mark.parametrize(
    "name, argument, dim",
    [
        ("recurrent-PREFILL", "out", 0),
        ("recurrent-PREFILL", "out", 1),
        ("decode", "out", 2),
        ("decode", "state_pool", 0),
        ("decode-step-states", "step_states", 0),
        ("decode-step-states", "step_states", 1),
        ("chunked", "out", 1),
        ("chunked-pool", "state", 0),
        ("cumsum", "output", 1),
        ("u-w", "u", 1),
        ("u-w", "w", 2),
        ("state-update", "u", 1),
        ("compute-o", "o", 1),
    ],
)
def test_an_output_that_overlaps_itself_is_refused(name: str, argument: str, dim: int) -> None:
    arguments = arguments_of(CASES[name])
    arguments[argument] = over_itself(arguments[argument], dim)
    assert refuses(CASES[name], arguments) == argument


def interleaved(*tensors: Tensor) -> list[Tensor]:
    """Copies of the tensors as slices of one buffer, interleaved row by row as in a packed projection."""
    rows = [x.reshape(*x.shape[:2], -1) for x in tensors]
    packed = torch.cat(rows, dim=-1)
    parts = packed.split([x.shape[-1] for x in rows], dim=-1)
    return [part.unflatten(-1, x.shape[2:]) if x.dim() > 3 else part for part, x in zip(parts, tensors, strict=True)]


def results(function: Any, x: Arguments) -> list[Tensor]:
    kept = function(**x)
    written = [x[name] for name in ("out", "state_pool", "step_states") if name in x]
    return [y.clone() for y in [*(kept if isinstance(kept, tuple) else (kept,)), *written] if y is not None]


@pytest.mark.parametrize("name", ["recurrent-PREFILL", "decode", "chunked"])
def test_out_may_be_a_slice_of_the_buffer_that_holds_the_inputs(name: str, seed: int) -> None:
    case = CASES[name]
    separate = arguments_of(case, seed)
    beside = {argument: copied(x) for argument, x in separate.items()}
    names = [argument for argument in ("query", "key", "value", "out") if argument in separate]
    beside |= dict(zip(names, interleaved(*(separate[argument] for argument in names)), strict=True))
    assert beside["out"].data_ptr() < beside["query"].data_ptr() + beside["query"].stride(0) * 2  # within query's address range
    for expected, got in zip(results(case.function, separate), results(case.function, beside), strict=True):
        assert torch.equal(expected, got)


def test_slots_may_interleave_with_other_caches(seed: int) -> None:
    """A block of a paged cache holds a slot of the pool, a row of step_states, and memory of other caches."""
    separate = CASES["decode-step-states"].make(2, 3, seed)
    beside = {argument: copied(x) for argument, x in separate.items()}
    slots, (rows, steps) = separate["state_pool"].shape[0], separate["step_states"].shape[:2]
    slot = HV * DV * DK
    blocks = random(max(slots, rows), slot + 7 + steps * slot, seed=seed)
    beside["state_pool"] = blocks[:slots, :slot].unflatten(-1, (HV, DV, DK)).copy_(separate["state_pool"])
    beside["step_states"] = blocks[:rows, slot + 7 :].unflatten(-1, (steps, HV, DV, DK)).copy_(separate["step_states"])
    gap = blocks[:, slot : slot + 7].clone()
    function = gdn_cuda.fused_decode
    for expected, got in zip(results(function, separate), results(function, beside), strict=True):
        assert torch.equal(expected, got)
    assert torch.equal(blocks[:, slot : slot + 7], gap)


def test_one_tensor_may_be_several_inputs(seed: int) -> None:
    """For example query as key, a as b, or one vector expanded to all heads."""
    x = CASES["decode"].make(2, 1, seed)
    x |= {"key": x["query"], "b": x["a"], "dt_bias": x["A_log"]}
    assert gdn_cuda.fused_decode(**x).isfinite().all()
    assert HK < HV
