"""Calls of the Gated Delta Net's operators on CPU tensors, and a check that a call is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from operator_cases import operator_call, written_by
from torch import Tensor

from gdn_cuda.operators import examples
from gdn_cuda.operators.examples import Arguments, Case

# Operators of other modules are tested elsewhere.
MODULES = (
    *(f"gdn_cuda.gdn.{name}" for name in ("operators", "chunk_steps", "replay", "ring", "chunked_summary")),
    "gdn_cuda.layers.gating",
)
CASES = {name: case for name, case in examples.load().items() if case.function.__module__ in MODULES}

MESSAGE = re.compile(r"(?P<function>\w+): (?P<argument>\w+): expected .+, got .+", re.DOTALL)


def output_of(arguments: Arguments) -> Tensor:
    """A tensor for the output of a call: shaped like value, but with query's head count if query has more heads; for a call
    without query, a tensor for its summary."""
    value, key = arguments["value"], arguments["key"]
    heads, dv = value.shape[-2:]
    if "query" not in arguments:
        dk, offsets = key.shape[-1], arguments.get("cu_seqlens")
        sequences = value.shape[0] if offsets is None else len(offsets) - 1
        rows = dv + (dk if arguments.get("transition", True) else 0)
        return torch.full((sequences, heads, rows, dk), torch.nan)
    return value.new_full((*value.shape[:-2], max(heads, arguments["query"].shape[-2]), dv), torch.nan)


def arguments_of(case: Case, seed: int = 0) -> Arguments:
    """Valid arguments of the case, with `out` if it has one."""
    arguments = case.make(2, 3, seed)
    if "accepted" in case.name:  # so that they stay valid for a state with one step less
        arguments["num_accepted_tokens"].clamp_(max=2)
    return arguments | ({"out": output_of(arguments).fill_(7.0)} if case.out_argument else {})


def refuses(case: Case, arguments: Arguments, error: type[Exception] = ValueError) -> str:
    """Asserts that the call is refused and writes nothing; returns the argument that the error names."""
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor) and x.device.type == "cpu"}
    with pytest.raises(error) as caught:
        case.function(**arguments)
    found = MESSAGE.fullmatch(str(caught.value))
    assert found, str(caught.value)
    assert found["function"] == case.function.__name__
    for name, old in before.items():
        assert torch.equal(old.nan_to_num(), arguments[name].nan_to_num()), f"{name} was written"
    return found["argument"]


def one_of_each() -> dict[str, Case]:
    """One example for each operator and each set of arguments that it writes."""
    found: dict[Any, str] = {}
    for name, case in CASES.items():
        if not case.packed:
            found.setdefault((operator_call(case)[0].name(), *written_by(case)), name)
    return {name: CASES[name] for name in found.values()}
