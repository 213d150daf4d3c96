"""torch.compile(fullgraph=True) and torch.export of the public functions: the results of eager mode, states in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gdn_cases import CASES
from operator_cases import copied
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_leaves

import gdn_cuda
from gdn_cuda.operators.examples import Arguments, Case

# A case of every function, and of each variant that mutates or returns something else. opcheck traces the other cases.
COMPILED = [
    "gating",
    "recurrent-PREFILL",
    "recurrent-accepted",
    "decode",
    "decode-verify",
    "decode-step-states-packed",
    "replay-packed",
    "ring-packed",
    "chunked-packed-hints",
    "chunked-pool",
    "chunked-no-final-state",
    "chunked_summary",
    "mn-major-fp32",
    "cumsum",
    "u-w",
    "state-update",
    "compute-o",
]

SIZES = [(5, 131), (6, 200)]  # no two sizes are equal, as the tracer would assume that they always are


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensors_after(function: Any, arguments: Arguments) -> list[Tensor]:
    """The results of a call, and its tensor arguments afterwards."""
    mine = {name: copied(x) for name, x in arguments.items()}
    results = function(mine)
    return [x for x in tree_leaves((results, mine)) if isinstance(x, Tensor)]


def check_same(function: Any, compiled: Any, arguments: Arguments) -> None:
    eager, traced = tensors_after(function, arguments), tensors_after(compiled, arguments)
    assert len(eager) == len(traced)
    for a, b in zip(eager, traced, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert a.stride() == b.stride()


def test_every_function_is_among_the_compiled_cases() -> None:
    assert {CASES[name].function for name in COMPILED} == {case.function for case in CASES.values()}


@pytest.mark.parametrize("name", COMPILED)
def test_one_full_graph_serves_changing_sizes(name: str, seed: int) -> None:
    """One graph for all sizes, which are symbols in the fake implementations."""
    case: Case = CASES[name]
    counter = CompileCounterWithBackend("aot_eager")

    def function(arguments: Arguments) -> Any:
        return case.function(**arguments)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for B, T in SIZES:
        check_same(function, compiled, case.make(B, T, seed))
    assert counter.frame_count == 1


def test_unread_tensors_whose_size_depends_on_data(seed: int) -> None:
    arguments = CASES["chunked-packed"].make(0, 0, seed)
    mask = torch.tensor([[True, True], [False, False], [True, False]])

    def function(x: Arguments) -> Any:
        return gdn_cuda.chunked_forward(**x, chunk_indices=mask.nonzero())

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check_same(function, torch.compile(function, fullgraph=True, backend="aot_eager"), arguments)


def layer(x: Arguments) -> Tensor:
    """A decode step between other operations, as in a model: fused_decode with gates, norm and a residual."""
    query = torch.nn.functional.silu(x["query"].float()).to(x["query"].dtype)
    output = gdn_cuda.fused_decode(**x | {"query": query})
    return output.float().sum(-1) + x["a"]


def test_inductor_compiles_a_decode_step(seed: int) -> None:
    compiled = torch.compile(layer, fullgraph=True, dynamic=False)
    arguments = CASES["decode-null-slot"].make(3, 1, seed)
    # Inductor generates scalar code: testing which vector instructions the CPU has takes longer than all else here.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}):
        eager, traced = tensors_after(layer, arguments), tensors_after(compiled, arguments)
    for a, b in zip(eager, traced, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


def test_a_compiled_step_updates_the_pool_in_place(seed: int) -> None:
    arguments = CASES["decode"].make(3, 1, seed)
    before, address = copied(arguments["state_pool"]), arguments["state_pool"].data_ptr()
    expected = tensors_after(layer, arguments)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    compiled(arguments)
    assert arguments["state_pool"].data_ptr() == address
    assert not torch.equal(arguments["state_pool"], before)
    assert any(torch.equal(arguments["state_pool"], x) for x in expected if x.shape == before.shape)


def test_an_exported_step_equals_the_eager_one(seed: int) -> None:
    class Step(torch.nn.Module):
        def forward(self, x: Arguments) -> Tensor:
            return layer(x)

    arguments = CASES["decode"].make(3, 2, seed)
    batch = torch.export.Dim.AUTO
    shapes = {"x": {name: {0: batch} if name in ("query", "key", "value", "a", "b") else None for name in arguments}}
    program = torch.export.export(Step(), ({name: copied(x) for name, x in arguments.items()},), dynamic_shapes=shapes)
    assert any("gdn_cuda.fused_decode" in str(node.target) for node in program.graph.nodes)
    check_same(layer, program.module(), arguments)


def test_errors_pass_through_a_compiled_function(seed: int) -> None:
    arguments = CASES["decode"].make(2, 1, seed)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with pytest.raises(IndexError, match="fused_decode: state_indices: expected < 4, got 9"):
        compiled(arguments | {"state_indices": torch.tensor([0, 9], dtype=torch.int32)})
