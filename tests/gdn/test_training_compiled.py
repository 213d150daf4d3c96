"""Gradients of chunked_forward in traced code: opcheck, torch.compile(fullgraph=True), partitioning, torch.export's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradient_cases import CASE, LEAVES, PACKED, RAW, GradientCase, drawn, gradients_of, same, with_leaves
from operator_cases import Recorder
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from gdn_cuda import chunked_forward

SIZES = [(5, 131), (6, 200)]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("case", [CASE, PACKED])
@pytest.mark.parametrize("names", [("value",), ("query", "A_log")])
def test_opcheck(case: GradientCase, names: tuple[str, ...], seed: int) -> None:
    x, grads = drawn(replace(case, dk=8, dv=8, options=RAW), seed)
    with Recorder() as recorder:
        leaves = with_leaves(x, *names)
        torch.autograd.backward(chunked_forward(**leaves), grads)
    (rule, given), (backward, of_backward) = recorder.calls
    assert [operator.name() for operator in (rule, backward)] == [
        "gdn_cuda::gated_delta_rule",
        "gdn_cuda::gated_delta_rule_backward",
    ]
    torch.library.opcheck(rule, given)
    torch.library.opcheck(backward, of_backward, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("options", [{}, RAW])
def test_one_full_graph_serves_changing_sizes(options: dict[str, Any], seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(chunked_forward, fullgraph=True, dynamic=True, backend=counter)
    for batch, tokens in SIZES:
        x, grads = drawn(GradientCase((tokens,) * batch, (2, 4), 8, 8, options=options), seed)
        assert same(gradients_of(compiled, x, grads), gradients_of(chunked_forward, x, grads))
    assert counter.frame_count == 1


def test_compiled_packed_sequences(seed: int) -> None:
    x, grads = drawn(PACKED, seed)
    compiled = torch.compile(chunked_forward, fullgraph=True, backend="aot_eager")
    assert same(gradients_of(compiled, x, grads), gradients_of(chunked_forward, x, grads))
    (value,) = ("value",)
    leaves, plain = with_leaves(x, value), with_leaves(x, value)
    compiled(**leaves)[0].sum().backward()
    chunked_forward(**plain)[0].sum().backward()
    assert torch.equal(leaves[value].grad, plain[value].grad)


def test_inductor_compiles_a_layer(seed: int) -> None:
    x, _ = drawn(CASE, seed)

    def loss(query: Tensor, gate: Tensor) -> Tensor:
        out, last = chunked_forward(
            **x | {"query": torch.nn.functional.silu(query), "gate": -torch.nn.functional.softplus(gate)}
        )
        return out.square().sum() + last.mean()

    compiled = torch.compile(loss, fullgraph=True, dynamic=False)
    found = []
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}):
        for function in (loss, compiled):
            leaves = [x[name].clone().requires_grad_() for name in ("query", "gate")]
            found.append(torch.autograd.grad(function(*leaves), leaves))
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_aot_partitions(partition: Any, seed: int) -> None:
    """The backward is a graph of its own, whose inputs are the call's and no intermediate result of its size."""
    x, grads = drawn(CASE, seed)
    names = [name for name in LEAVES if x.get(name) is not None]
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(graph)
        return graph

    def function(*leaves: Tensor) -> Any:
        return chunked_forward(**x | dict(zip(names, leaves, strict=True)))

    compiled = aot_function(function, fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)
    leaves = [x[name].clone().requires_grad_() for name in names]
    found = torch.autograd.grad(compiled(*leaves), leaves, grads)
    assert same(dict(zip(names, found, strict=True)), gradients_of(chunked_forward, x, grads))
    called = [{str(node.target) for node in graph.graph.nodes if "gdn_cuda" in str(node.target)} for graph in graphs]
    assert called == [{"gdn_cuda.gated_delta_rule.default"}, {"gdn_cuda.gated_delta_rule_backward.default"}]


def test_checkpointed_in_compiled_code(seed: int) -> None:
    x, grads = drawn(CASE, seed)

    def function(**given: Any) -> Any:
        return checkpoint(lambda: chunked_forward(**given), use_reentrant=False)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert same(gradients_of(compiled, x, grads), gradients_of(chunked_forward, x, grads))


def test_meta_tensors(seed: int) -> None:
    """Shapes and dtypes of gradients."""
    x, grads = drawn(replace(CASE, options=RAW), seed, torch.bfloat16)
    on_meta = {name: y.to("meta") if isinstance(y, Tensor) else y for name, y in x.items()}
    for name, gradient in gradients_of(chunked_forward, on_meta, tuple(g.to("meta") for g in grads)).items():
        assert (gradient.dtype, gradient.shape, gradient.device.type) == (x[name].dtype, x[name].shape, "meta")


def test_fake_tensors_of_a_gpu_are_checked(seed: int) -> None:
    x, _ = drawn(CASE, seed, torch.bfloat16)
    with FakeTensorMode():
        fake = {name: torch.empty(y.shape, dtype=y.dtype, device="cuda") for name, y in x.items()}
        out, last = chunked_forward(**with_leaves(fake, "value"))
        assert out.requires_grad and out.device.type == last.device.type == "cuda"
        with pytest.raises(ValueError, match="chunked_forward: state: expected a state for each of 2 sequences"):
            chunked_forward(**with_leaves(fake, "value") | {"state": fake["state"][:1]})
