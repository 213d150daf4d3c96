"""Packed sequences without states: a call allocates no tensor as large as one state per sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gdn_cuda
from gdn_cuda.gdn.inputs import make_packed_gdn_inputs
from gdn_cuda.operators.explain import device_of, recording


class Allocations(TorchDispatchMode):
    """The largest storage of any result of torch's operators, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return result


@contextmanager
def allocations() -> Iterator[Allocations]:
    with Allocations() as seen:
        yield seen


# The sequences are short, so that a state for each, 4 Hv dv dk bytes, would be larger than all other tensors.
SEQUENCES, HV, DIM = 40, 1, 64
STATES = SEQUENCES * HV * DIM * DIM * 4


def packed(count: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    x = make_packed_gdn_inputs([1, 2] * (count // 2), Hk=1, Hv=HV, dk=DIM, dv=DIM, dtype=dtype)
    del x["state"]
    return x


def test_a_call_on_the_cpu_has_one_state_at_a_time() -> None:
    x = packed(SEQUENCES)
    with allocations() as seen:
        gdn_cuda.reference.chunked_forward(**x, output_final_state=False)
    assert seen.largest < STATES / 4


def test_outputs_equal_those_of_a_call_that_returns_states() -> None:
    x = packed(8)
    output, final = gdn_cuda.chunked_forward(**x)
    alone, none = gdn_cuda.chunked_forward(**x, output_final_state=False)
    assert none is None
    assert torch.equal(output, alone)
    assert final is not None and final.shape[0] == 8


def test_allocations_of_returned_states_are_noticed() -> None:
    """Otherwise the tests here could not fail."""
    x = packed(SEQUENCES)
    with allocations() as seen:
        gdn_cuda.reference.chunked_forward(**x)
    assert seen.largest >= STATES


GPU_SEQUENCES = 4000
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "normalised": {"use_qk_l2norm": True},
    "deterministic": {"deterministic": True},
    "decays": {"gate_is_linear": True},
    "no gates": {"beta": None, "gate": None},
    "has_initial_state": {"has_initial_state": torch.ones(GPU_SEQUENCES, dtype=torch.bool, device="meta")},
}


@pytest.mark.parametrize("device", ["h200", "a100"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_call_on_a_gpu_allocates_no_state_per_sequence(options: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    tokens, heads, dim = 2 * GPU_SEQUENCES, 16, 128
    meta = {"dtype": dtype, "device": "meta"}
    rows = {name: torch.empty(tokens, heads, dim, **meta) for name in ("query", "key", "value")}
    gates = {name: torch.empty(tokens, heads, dtype=torch.float32, device="meta") for name in ("beta", "gate")}
    offsets = torch.empty(GPU_SEQUENCES + 1, dtype=torch.int32, device="meta")
    with allocations() as seen, recording(device_of(device)) as explained:
        gdn_cuda.chunked_forward(**rows | gates | options, cu_seqlens=offsets, output_final_state=False)
        steps = explained("chunked_forward").steps
    assert any(step["kernel"] for step in steps)
    states, out = GPU_SEQUENCES * heads * dim * dim * 4, tokens * heads * dim * dtype.itemsize
    assert out <= seen.largest < states / 8
