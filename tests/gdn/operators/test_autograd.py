"""GDN operators without gradients: their backward raises, and refused calls write nothing. tests/gdn/test_training.py has
chunked_forward, which has them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from gdn_cases import CASES, arguments_of, one_of_each
from operator_cases import copied, written_by
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

import gdn_cuda
from gdn_cuda.operators.examples import Arguments, Case

EACH = one_of_each()
NAMES = list(EACH)
# Integers, as int8 states are, have no history: their scales have.
WRITTEN = {
    name: [argument for argument in written if arguments_of(case)[argument].is_floating_point()]
    for name, case in EACH.items()
    if (written := written_by(case))
}
WRITES = [(name, argument) for name, arguments in WRITTEN.items() for argument in arguments]
TRAINS = {name for name, case in EACH.items() if case.function is gdn_cuda.chunked_forward}
WITHOUT_GRADIENTS = [name for name in NAMES if name not in TRAINS]


def read_of(name: str) -> str:
    """The first tensor that a call reads."""
    given = CASES[name].make(2, 3, 0).items()
    return next(argument for argument, x in given if isinstance(x, Tensor) and argument not in WRITTEN.get(name, []))


READ = {name: read_of(name) for name in NAMES}


def with_gradient(name: str, seed: int) -> tuple[Case, Arguments]:
    case = CASES[name]
    arguments = {argument: copied(x) for argument, x in arguments_of(case, seed).items()}
    arguments[READ[name]].requires_grad_()
    return case, arguments


def tensors(*values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_the_call_works_and_backward_raises(name: str, seed: int) -> None:
    case, arguments = with_gradient(name, seed)
    plain = {argument: x.detach().clone() if isinstance(x, Tensor) else x for argument, x in arguments.items()}
    plain |= {argument: copied(x.detach()) for argument, x in arguments.items() if isinstance(x, Tensor)}
    expected = case.function(**plain)
    results = case.function(**arguments)
    for one, other in zip(tensors(expected, plain), tensors(results, arguments), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=0, atol=0, equal_nan=True)
    followed = [x for x in tensors(results) if x.is_floating_point()]
    followed += [arguments[argument] for argument in WRITTEN.get(name, [])]
    for x in followed:
        assert x.requires_grad
        with pytest.raises(RuntimeError, match=f"{case.function.__name__}: no gradient .*gdn_cuda.reference"):
            x.float().sum().backward()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_autograd_graph_is_built_outside_grad_mode(name: str, mode: Any, seed: int) -> None:
    case, arguments = with_gradient(name, seed)
    with mode():
        results = case.function(**arguments)
    assert not any(x.requires_grad for x in tensors(results) + [arguments[argument] for argument in WRITTEN.get(name, [])])


@pytest.mark.parametrize("name, argument", [(name, argument) for name, argument in WRITES if name not in TRAINS])
@pytest.mark.parametrize(
    "memory", ["leaf", "view of a leaf", "inference tensor", "one of several views", "view made in no_grad"]
)
def test_memory_that_autograd_cannot_track_is_refused_before_anything_is_written(
    name: str, argument: str, memory: str, seed: int
) -> None:
    case, arguments = with_gradient(name, seed)
    given = arguments[argument]
    if memory == "leaf":
        arguments[argument] = given.requires_grad_()
    elif memory == "view of a leaf":
        arguments[argument] = torch.stack([given, given]).requires_grad_()[0]
    elif memory == "inference tensor":
        with torch.inference_mode():
            arguments[argument] = given.clone()
    elif memory == "one of several views":
        arguments[argument] = torch.stack([given, given]).unbind(0)[0]
    else:
        with torch.no_grad():
            arguments[argument] = torch.stack([given, given])[0]
    before = {n: x.detach().clone() for n, x in arguments.items() if isinstance(x, Tensor)}
    with pytest.raises(ValueError, match=f"{case.function.__name__}: {argument}: expected memory that "):
        case.function(**arguments)
    for n, x in before.items():
        torch.testing.assert_close(x, arguments[n].detach(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name, argument", WRITES)
@pytest.mark.parametrize("memory", ["leaf", "inference tensor", "view made in no_grad"])
def test_outside_grad_mode_any_memory_may_be_written(name: str, argument: str, memory: str, seed: int) -> None:
    """All results are written, as by kernels: no copy of the CPU implementation is refused after others are done."""
    case, arguments = with_gradient(name, seed)
    expected = {n: copied(x.detach()) if isinstance(x, Tensor) else x for n, x in arguments.items()}
    case.function(**expected)
    with torch.inference_mode() if memory == "inference tensor" else torch.no_grad():
        arguments[argument] = copied(arguments[argument])
    if memory == "leaf":
        arguments[argument].requires_grad_()
    with torch.no_grad():
        case.function(**arguments)
    for n in WRITTEN[name]:
        torch.testing.assert_close(expected[n], arguments[n].detach(), rtol=0, atol=0, equal_nan=True)


def test_a_refused_decode_leaves_the_state_for_the_next_try(seed: int) -> None:
    """Otherwise the next call would start from the state after the refused call."""
    arguments = arguments_of(CASES["decode"], seed)
    pool = arguments["state_pool"].clone()
    once = {n: copied(x) for n, x in arguments.items()}
    gdn_cuda.fused_decode(**once)
    with pytest.raises(ValueError, match="fused_decode: out: expected memory that requires no gradient"):
        gdn_cuda.fused_decode(**arguments | {"out": arguments["out"].clone().requires_grad_()})
    assert torch.equal(arguments["state_pool"], pool)
    gdn_cuda.fused_decode(**arguments)
    assert torch.equal(arguments["state_pool"], once["state_pool"])


def test_the_autograd_graph_of_a_pool_does_not_grow_with_each_call(seed: int) -> None:
    _, arguments = with_gradient("decode", seed)
    block = torch.zeros(2, *arguments["state_pool"].shape)
    block[0] = arguments["state_pool"]

    def nodes() -> int:
        gc.collect()
        return sum("_WrittenBackward" in type(x).__name__ for x in gc.get_objects())

    for pool in (arguments["state_pool"], block[0]):
        arguments["state_pool"] = pool
        gdn_cuda.fused_decode(**arguments)
        before = nodes()
        for _ in range(10):
            gdn_cuda.fused_decode(**arguments)
        assert nodes() <= before + 1


def test_backward_through_a_buffer_around_out_raises(seed: int) -> None:
    """No gradient reaches earlier computations through the part that a call has written."""
    _, arguments = with_gradient("decode", seed)
    weight = torch.ones((), requires_grad=True)
    buffer = weight * torch.ones(2, *arguments["out"].shape)
    arguments["out"] = buffer.to(arguments["out"].dtype)[1]
    gdn_cuda.fused_decode(**arguments)
    with pytest.raises(RuntimeError, match="fused_decode: no gradient"):
        arguments["out"].float().sum().backward()


@pytest.mark.parametrize("name", WRITTEN)
def test_overwriting_what_autograd_saved_is_noticed(name: str, seed: int) -> None:
    arguments = arguments_of(CASES[name], seed)
    weight = torch.ones((), requires_grad=True)
    losses = [(weight * arguments[argument].float().mul(1) * arguments[argument]).sum() for argument in WRITTEN[name]]
    CASES[name].function(**arguments)
    for loss in losses:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


# ---- forward mode and torch.func


BACKWARD, FORWARD = ("grad", "jacrev", "vjp"), ("jvp", "jacfwd", "dual")


@pytest.mark.parametrize(
    "name, transform",
    [(name, transform) for name in NAMES for transform in (FORWARD if name in TRAINS else BACKWARD + FORWARD)],
)
def test_forward_mode_and_torch_func_are_refused(name: str, transform: str, seed: int) -> None:
    case, argument = CASES[name], READ[name]
    arguments = arguments_of(case, seed)
    x = arguments[argument]

    def function(x: Tensor) -> Tensor:
        return tensors(case.function(**arguments | {argument: x}), x)[0].sum()

    with pytest.raises(
        ValueError, match=f"{CASES[name].function.__name__}: {argument}: expected a tensor .*gdn_cuda.reference"
    ):
        if transform == "dual":
            with forward_ad.dual_level():
                function(forward_ad.make_dual(x, torch.ones_like(x)))
        elif transform == "jvp":
            torch.func.jvp(function, (x,), (torch.ones_like(x),))
        elif transform == "vjp":
            torch.func.vjp(function, x)
        else:
            getattr(torch.func, transform)(function)(x)


def test_forward_mode_is_refused_in_no_grad_too(seed: int) -> None:
    x = CASES["gating"].make(2, 3, seed)
    with torch.no_grad(), forward_ad.dual_level():
        x["a"] = forward_ad.make_dual(x["a"], torch.ones_like(x["a"]))
        with pytest.raises(ValueError, match="fused_gdn_gating: a: expected a tensor without a tangent"):
            gdn_cuda.fused_gdn_gating(**x)


def test_a_transform_over_another_tensor_is_allowed(seed: int) -> None:
    x = CASES["gating"].make(2, 3, seed)

    def scaled(weight: Tensor) -> Tensor:
        return (weight * gdn_cuda.fused_gdn_gating(**x)[1]).sum()

    expected = gdn_cuda.fused_gdn_gating(**x)[1].sum()
    torch.testing.assert_close(torch.func.grad(scaled)(torch.ones(())), expected)
    torch.testing.assert_close(torch.func.jvp(scaled, (torch.ones(()),), (torch.ones(()),))[1], expected)


# ---- compiled


@pytest.mark.parametrize("name", ["gating", "recurrent-PREFILL", "decode", "u-w"])
def test_compiled_calls_work_and_their_backward_raises(name: str, seed: int) -> None:
    torch._dynamo.reset()
    case, arguments = with_gradient(name, seed)
    if name != "u-w":
        arguments.pop("out", None)
    expected = tensors(case.function(**{n: copied(x.detach()) if isinstance(x, Tensor) else x for n, x in arguments.items()}))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(arguments: Arguments) -> Any:
        return case.function(**arguments)

    results = tensors(function(arguments))
    for one, other in zip(expected, results, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=0, atol=0)
    for x in results:
        with pytest.raises(RuntimeError, match=f"{case.function.__name__}: no gradient"):
            x.float().sum().backward(retain_graph=True)
    torch._dynamo.reset()
