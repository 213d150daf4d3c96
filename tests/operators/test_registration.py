"""Registration: schemas, declared mutation, and fake implementations, whose results have the geometry of real ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operator_cases import copied, operator_call
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from gdn_cuda.operators import examples
from gdn_cuda.operators.examples import Case

CASES = examples.load()
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
PADDED_CASES = {name: case for name, case in CASES.items() if not case.packed}


FIRST_OF_OPERATORS = {operator_call(case)[0]: name for name, case in reversed(CASES.items())}.values()
QUICK_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name: str, seed: int) -> None:
    """Checks undeclared mutation and aliasing, autograd registration and fake tensors; and AOT dispatch with dynamic shapes,
    which takes seconds, for one case per operator."""
    operator, arguments = operator_call(CASES[name], seed=seed)
    checks = (*QUICK_CHECKS, "test_aot_dispatch_dynamic") if name in FIRST_OF_OPERATORS else QUICK_CHECKS
    torch.library.opcheck(operator, arguments, test_utils=checks)


COMPOSED = {
    "gdn_cuda::s5_inner",
    "gdn_cuda::simplified_scan",
}  # functions that are composed of operators, and have their own checks
BY_REFERENCE = {"gdn_cuda::gated_delta_rule_backward_reference"}  # what an operator calls for tensors that no kernel takes

INTERNAL = {
    "gdn_cuda::kda_chain",
    "gdn_cuda::kda_chunks",
    "gdn_cuda::kda_gradients",
}  # parts of an operator, for tests and benchmarks of its kernels; no Python function calls them


def test_every_operator_has_an_example() -> None:
    called = {operator_call(case)[0].name() for case in CASES.values()}
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("gdn_cuda::")}
    with_a_kernel = {name for name in registered if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")}
    assert with_a_kernel - BY_REFERENCE - INTERNAL == called
    checked = {name.replace("::validate_", "::") for name in registered if "::validate_" in name}
    assert checked == called | COMPOSED


def geometry(result: Any) -> list[tuple[Any, ...]]:
    return [
        (x.dtype, tuple(x.shape), x.stride() if x.numel() else None, x.device)
        for x in tree_leaves(result)
        if isinstance(x, Tensor)
    ]


def check_fake(case: Case, B: int, T: int, seed: int) -> None:
    arguments = case.make(B, T, seed)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        faked = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, arguments)
        expected = geometry(case.function(**faked))
    assert geometry(case.function(**arguments)) == expected


@EVERY_CASE
def test_fake_results_have_the_geometry_of_real_ones(case: Case, seed: int) -> None:
    check_fake(case, 2, 5, seed)


@pytest.mark.parametrize("case", PADDED_CASES.values(), ids=PADDED_CASES.keys())
@pytest.mark.parametrize("B, T", [(0, 3), (2, 0), (1, 1), (3, 130)])
def test_fake_results_have_the_geometry_of_real_ones_at_odd_sizes(case: Case, B: int, T: int, seed: int) -> None:
    check_fake(case, B, T, seed)


@EVERY_CASE
def test_meta_tensors_give_meta_results(case: Case, seed: int) -> None:
    arguments = case.make(2, 3, seed)
    on_meta = {name: x.to("meta") if isinstance(x, Tensor) else x for name, x in arguments.items()}
    for result in tree_leaves(case.function(**on_meta)):
        assert result is None or result.device.type == "meta"


@EVERY_CASE
def test_only_declared_arguments_change(case: Case, seed: int) -> None:
    operator, arguments = operator_call(case, seed=seed)
    before = [copied(x) for x in arguments]
    results = [x for x in tree_leaves(operator(*arguments)) if isinstance(x, Tensor)]
    for declared, old, new in zip(operator._schema.arguments, before, arguments, strict=True):
        if not isinstance(new, Tensor):
            continue
        assert declared.alias_info is not None or torch.equal(old, new), declared.name
        for result in results:
            assert result.untyped_storage().data_ptr() != new.untyped_storage().data_ptr() or not result.numel()


def test_every_argument_declared_as_written_is_written() -> None:
    """At least one example writes it."""
    declared, changed = set(), set()
    for case in CASES.values():
        operator, arguments = operator_call(case)
        before = [copied(x) for x in arguments]
        operator(*arguments)
        for argument, old, new in zip(operator._schema.arguments, before, arguments, strict=True):
            if argument.alias_info is not None and argument.alias_info.is_write:
                declared.add((operator.name(), argument.name))
                if isinstance(new, Tensor) and not torch.equal(old.nan_to_num(7), new.nan_to_num(7)):
                    changed.add((operator.name(), argument.name))
    assert not declared - changed
