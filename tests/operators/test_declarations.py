"""The function generated from a declaration has its signature and docstring; its reference has the same signature."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

import gdn_cuda
from gdn_cuda.operators import operator
from gdn_cuda.operators.declare import DECLARATIONS
from gdn_cuda.operators.registration import SCHEMAS

EVERY = pytest.mark.parametrize("name", DECLARATIONS)


@EVERY
def test_the_generated_function_takes_what_was_declared(name: str) -> None:
    function = getattr(gdn_cuda, name)
    declared = inspect.unwrap(function)
    parameters = inspect.signature(function, follow_wrapped=False).parameters
    assert [(p.name, p.kind, p.default) for p in parameters.values()] == [
        (p.name, p.kind, p.default) for p in inspect.signature(declared).parameters.values()
    ]
    assert (function.__doc__, function.__module__, function.__qualname__) == (declared.__doc__, declared.__module__, name)
    assert function.__annotations__ == declared.__annotations__


@pytest.mark.parametrize("name", [name for name, declared in DECLARATIONS.items() if declared.reference])
def test_the_reference_has_the_same_signature(name: str) -> None:
    assert inspect.signature(getattr(gdn_cuda.reference, name)) == inspect.signature(getattr(gdn_cuda, name))


def test_the_reference_writes_into_no_output() -> None:
    x = torch.ones(1, 1, 1, 8)
    with pytest.raises(ValueError, match=r"^recurrent_forward: out: expected None, as the reference returns new tensors, got"):
        gdn_cuda.reference.recurrent_forward(x, x, x, None, x[..., 0], x[..., 0], out=x)


def test_a_missing_parameter_is_an_error_that_names_it() -> None:
    def fused_gdn_gating(A_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """Lacks dt_bias."""

    with pytest.raises(TypeError, match=r"^fused_gdn_gating: expected parameters dt_bias, which its operator"):
        operator()(fused_gdn_gating)


def test_parameters_that_no_kernel_reads_are_only_the_functions() -> None:
    lacking = {}
    for name, declared in DECLARATIONS.items():
        taken = {argument for schema in declared.schemas for argument in schema.arguments}
        lacking[name] = " ".join(p for p in inspect.signature(declared.function).parameters if p not in taken)
    assert {name: parameters for name, parameters in lacking.items() if parameters} == {
        "fused_decode": "replay",
        "fused_gdn_gating": "is_var_len",
        "hyena_long": "return_state",
        "hyena_medium": "return_state",
        "hyena_short": "return_state",
        "chunked_forward": "chunk_indices cu_chunks workspace forward",
        "chunk_local_cumsum_bf16": "batch_size seq_len num_heads chunk_indices",
        "bf16_gdn_compute_u_w": "compiled_dims chunk_indices",
        "bf16_chunked_seq_state_update": "compiled_dims chunk_size",
        "bf16_gdn_chunked_compute_O": "compiled_dims chunk_indices cu_chunks chunk_size",
    }


def test_a_parameter_that_the_operator_lacks_is_not_passed_to_it() -> None:
    (gating,) = DECLARATIONS["fused_gdn_gating"].schemas
    assert "is_var_len" not in gating.arguments
    assert gating.named((1, 2, 3, 4)).is_var_len is False


def test_modules_can_be_imported_under_their_earlier_names() -> None:
    from gdn_cuda.ops.structured_toeplitz import explain_toeplitz_solve
    from gdn_cuda.reference.structured_toeplitz import toeplitz

    from gdn_cuda.ops.gdn import fused_decode, fused_gdn_gating

    assert fused_decode is gdn_cuda.fused_decode and fused_gdn_gating is gdn_cuda.fused_gdn_gating
    assert "structured/toeplitz_gko" in explain_toeplitz_solve(64)
    assert toeplitz is gdn_cuda.reference.structured_toeplitz.toeplitz


def test_calls_leave_out_the_last_arguments_that_have_their_defaults() -> None:
    schema = SCHEMAS["fused_decode"]
    required = len(schema.arguments) - len(schema.last_defaults)
    passed: list[tuple[object, ...]] = []
    recording = replace(schema, overload=lambda *args: passed.append(args))
    all_defaults = (*range(required), *schema.last_defaults)
    for given in (None, "state_indices", "update_state", "step_scales"):
        args = list(all_defaults)
        if given is not None:
            at = schema.arguments.index(given)
            args[at] = torch.ones(2) if args[at] is None else 1  # 1 is True, but not the default itself
        recording.direct(*args)
        assert passed[-1] == tuple(args[: required if given is None else at + 1])
        assert schema.completed(passed[-1]) == tuple(args)


def test_every_default_of_a_schema_is_none_or_a_flag() -> None:
    """So that `is` compares them."""
    assert {schema.name for schema in SCHEMAS.values() if schema.last_defaults} >= {"fused_decode", "chunked_forward"}
    for schema in SCHEMAS.values():
        assert all(default in (None, True, False) and type(default) is not int for default in schema.last_defaults)
