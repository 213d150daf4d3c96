"""Wrong input raises an error that names function, argument, expected and actual value, and nothing is written.

test_a_wrong_tensor_is_refused_by_name changes rank, sizes, dtype and strides of each tensor of valid calls. WRONG_VALUES lists
invalid ranges, missing arguments and options by hand.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gdn_cases import CASES, MESSAGE, arguments_of, one_of_each, refuses
from operator_cases import copied, operator_call, written_by
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._pytree import tree_leaves

import gdn_cuda
from gdn_cuda.gdn.examples import DK, DV, HV
from gdn_cuda.operators.examples import Arguments, Case, poisoned

# Together, these calls have every tensor argument.
TENSOR_CASES = [
    "gating",
    "gating-packed-fp16",
    "recurrent-PREFILL",
    "recurrent-accepted",
    "recurrent-accepted-packed",
    "recurrent-int8",
    "decode",
    "decode-verify",
    "decode-packed",
    "decode-step-states",
    "decode-tree",
    "decode-int8-tree",
    "decode-channels",
    "replay",
    "replay-channels",
    "replay-packed",
    "ring",
    "ring-verify",
    "ring-packed",
    "ring-int8",
    "chunked",
    "chunked-pool",
    "chunked-pool-int8",
    "chunked-offsets",
    "chunked-offsets-pool-packed",
    "chunked-channels",
    "chunked-channels-raw",
    "chunked-channels-pool-packed",
    "chunked_summary",
    "chunked_summary, gates of a layer",
    "chunked_summary, gates of channels",
    "chunked_summary, from a state",
    "chunked_summary, packed",
    "recurrent-by-engine",
    "decode-by-engine",
    "chunked-by-engine",
    "chunked-pool-by-engine",
    "recurrent-more-queries",
    "recurrent-channels",
    "recurrent-channels-raw",
    "recurrent-channels-bound",
    "mn-major-fp32",
    "mn-major-bf16",
    "cumsum",
    "cumsum-head-first-packed",
    "u-w",
    "u-w-packed",
    "state-update",
    "state-update-packed",
    "compute-o",
    "compute-o-packed",
]
# Arguments that may have any strides, by function or case.
ANY_STRIDE = {
    "recurrent-more-queries": "out",
    "recurrent_forward": "query key value state final_state beta gate num_accepted_tokens",
    "fused_decode": "query key value a b state_pool step_states state_indices parents",
    "replay_decode": "a b state_indices",
    "ring_decode": "a b state_indices decays",
    "chunked_forward": "query key value state state_indices final_state checkpoints states_before beta gate",
    "chunked_summary": "key value beta gate",
    "transpose_to_mn_major": "input",
    "chunk_local_cumsum_bf16": "input output",
}
UNREAD = {"chunk_indices", "cu_chunks"}
# Sizes that may be one larger or smaller, mostly because a tensor may have more room than needed, by argument and dimension.
FLEXIBLE_SIZES = {
    ("cu_seqlens", 0): ["cumsum-head-first-packed", "u-w-packed", "compute-o-packed"],
    ("state_pool", 0): [
        *("decode", "decode-packed", "decode-verify", "decode-step-states", "decode-tree", "decode-by-engine"),
        "decode-channels",
    ],
    ("step_states", 0): ["decode-step-states", "decode-tree"],
    ("step_states", 1): ["decode-step-states", "decode-tree"],
    ("state", 1): ["recurrent-accepted", "recurrent-accepted-packed"],
    ("state", 0): [
        "chunked-pool",
        "chunked-channels-pool-packed",
        "chunked-offsets-pool-packed",
        "chunked-pool-by-engine",
        "state-update-packed",
        "compute-o-packed",
    ],
    ("checkpoints", 0): ["chunked-by-engine", "chunked-pool-by-engine"],
    ("states_before", 0): ["chunked-by-engine", "chunked-pool-by-engine"],
}
# Other changed sizes that are valid: one key head for all value heads, or more room.
LEGAL_SIZES = {
    ("chunked_summary", "key", 2, -1),
    ("chunked_summary, gates of a layer", "key", 2, -1),
    ("chunked_summary, gates of channels", "key", 2, -1),
    ("chunked_summary, from a state", "key", 2, -1),
    ("chunked_summary, packed", "key", 1, -1),
    ("decode-tree", "parents", 1, +1),
    ("decode-int8-tree", "parents", 1, +1),
    ("decode-verify", "state_indices", 1, +1),
    ("state-update", "k", 2, -1),
    ("state-update-packed", "k", 1, -1),
    ("u-w", "k", 2, -1),
    ("u-w-packed", "k", 1, -1),
}
LEGAL_SIZES |= {
    (name, argument, dim, by) for (argument, dim), names in FLEXIBLE_SIZES.items() for name in names for by in (-1, 1)
}


def tensor_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The tensor parameters that the function reads."""
    return [p for p in inspect.signature(function).parameters.values() if "Tensor" in p.annotation and p.name not in UNREAD]


def resized(x: Tensor, dim: int, by: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] += by
    return x.new_zeros(shape)


def wrong_tensors(case: Case, arguments: Arguments) -> Iterator[tuple[str, str, Tensor]]:
    """Yields (defect, argument, wrong tensor)."""
    for name, x in arguments.items():
        if not isinstance(x, Tensor) or name in UNREAD:
            continue
        yield "rank+1", name, x[None]
        yield "rank-1", name, x[0]
        for dim in range(x.dim()):
            for by in (-1, 1):
                legal = (case.name, name, dim, by) in LEGAL_SIZES
                if not legal and case.function is not gdn_cuda.transpose_to_mn_major:
                    yield f"size[{dim}]{by:+}", name, resized(x, dim, by)
        for dtype in (torch.float64, torch.complex64, torch.int16):
            yield str(dtype), name, x.to(dtype)
        any_stride = {each for key in (case.function.__name__, case.name) for each in ANY_STRIDE.get(key, "").split()}
        if name not in any_stride and x.shape[-1] > 1:
            yield "stride", name, torch.stack([x, x], dim=-1)[..., 0]


@pytest.mark.parametrize("name", TENSOR_CASES)
def test_a_wrong_tensor_is_refused_by_name(name: str) -> None:
    case = CASES[name]
    arguments = arguments_of(case)  # refused calls do not change them
    anchor = next(argument for argument in ("query", "a", "input", "k", "key") if argument in arguments)
    failures = []
    for wrong, argument, x in wrong_tensors(case, arguments):
        # This function accepts any leading dimensions.
        if case.function is gdn_cuda.transpose_to_mn_major and wrong.startswith("rank") and x.dim() >= 2:
            continue
        where = f"{argument}: {wrong}"
        try:
            named = refuses(case, arguments | {argument: x})
        except (AssertionError, pytest.fail.Exception) as failure:
            failures.append(f"{where}: {failure}")
            continue
        # If the anchor or value is wrong, the tensors that are compared with it do not match: the error may name one of those.
        compared = (anchor, "value", "v", "u", "q", "cu_seqlens", *(["state_pool", "keys"] if "keys" in arguments else []))
        compared += ("state_pool", "step_states", "state") if "state_scales" in arguments else ()
        if named != argument and argument not in compared:
            failures.append(f"{where}: the error names {named}")
    assert not failures


def test_every_tensor_parameter_is_tested_with_wrong_values() -> None:
    broken = {(CASES[name].function.__name__, argument) for name in TENSOR_CASES for argument in arguments_of(CASES[name])}
    # Operators with an example in their own module are tested in tests/operators/test_broken_examples.py.
    functions = {case.function for case in CASES.values()}
    declared = {(f.__name__, p.name) for f in functions for p in tensor_parameters(f)}
    assert not declared - broken


@pytest.mark.parametrize("name", TENSOR_CASES)
def test_a_tensor_on_another_device_is_refused(name: str) -> None:
    """A meta tensor among CPU tensors is refused by the call, and by the C++ checks alone."""
    case = CASES[name]
    operator, values = operator_call(case)
    validate = getattr(torch.ops.gdn_cuda, "validate_" + operator.name().split("::")[1]).default
    tensors = [i for i, x in enumerate(values) if isinstance(x, Tensor)]
    public = arguments_of(case)
    for i in tensors if len(tensors) > 1 else []:
        elsewhere = [x.to("meta") if i == j else copied(x) for j, x in enumerate(values)]
        for call in (operator, lambda *args: validate.redispatch(DispatchKeySet(DispatchKey.CPU), *args)):
            with pytest.raises(ValueError) as caught:
                call(*elsewhere)
            found = MESSAGE.fullmatch(str(caught.value))
            assert found and found["function"] == case.function.__name__, str(caught.value)
            assert "the device of" in str(caught.value) or "a CUDA or CPU tensor" in str(caught.value)
    for argument, x in public.items():
        if isinstance(x, Tensor) and len(tensors) > 1 and argument not in UNREAD:
            refuses(case, public | {argument: x.to("meta")})


def changing(**changes: Any) -> Callable[[Arguments], Arguments]:
    return lambda arguments: arguments | changes


def dims(dk: int = DK, dv: int = DV, hv: int = HV) -> Callable[[Arguments], Arguments]:
    """Replaces the tensors of recurrent_forward by ones of these dimensions, all consistent."""

    def change(arguments: Arguments) -> Arguments:
        B, T, Hk = arguments["query"].shape[:3]
        query, value = torch.zeros(B, T, Hk, dk).bfloat16(), torch.zeros(B, T, hv, dv).bfloat16()
        gates = torch.zeros(B, T, hv)
        given = {"query": query, "key": query, "value": value, "out": value.clone(), "beta": gates, "gate": gates}
        return arguments | given | {"state": torch.zeros(B, hv, dv, dk)}

    return change


def heads(query: int, key: int, value: int, others: int) -> Callable[[Arguments], Arguments]:
    """Replaces the tensors of recurrent_forward by ones with these head counts."""

    def change(arguments: Arguments) -> Arguments:
        B, T = arguments["query"].shape[:2]
        given = {name: torch.zeros(B, T, n, DK).bfloat16() for name, n in (("query", query), ("key", key))}
        rows = {name: torch.zeros(B, T, n, DV).bfloat16() for name, n in (("value", value), ("out", others))}
        gates = torch.zeros(B, T, others)
        return arguments | given | rows | {"beta": gates, "gate": gates, "state": torch.zeros(B, others, DV, DK)}

    return change


def expanded(name: str) -> Callable[[Arguments], Arguments]:
    return lambda arguments: arguments | {name: arguments[name][:1].clone().expand(arguments[name].shape)}


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def without(*names: str) -> Callable[[Arguments], Arguments]:
    return lambda arguments: {name: x for name, x in arguments.items() if name not in names}


def slot_gaps(name: str) -> Callable[[Arguments], Arguments]:
    """States whose own elements are not contiguous."""
    return lambda arguments: arguments | {name: arguments[name].mT.contiguous().mT}


STEPS, CHANNEL_SUMMARY = "decode-step-states", "chunked_summary, gates of channels"
WRONG_VALUES: list[tuple[str, str, Callable[[Arguments], Arguments]]] = [
    # head dimensions and heads
    ("recurrent-PREFILL", "query", dims(dk=264)),
    ("recurrent-PREFILL", "query", dims(dk=0)),
    ("recurrent-PREFILL", "value", dims(dv=264)),
    ("recurrent-PREFILL", "value", dims(hv=3)),
    ("recurrent-PREFILL", "value", dims(hv=0)),
    ("recurrent-PREFILL", "value", heads(3, 2, 2, 3)),
    ("recurrent-PREFILL", "value", heads(4, 0, 0, 4)),
    ("recurrent-PREFILL", "key", heads(4, 4, 2, 4)),
    ("recurrent-PREFILL", "key", heads(4, 1, 2, 4)),
    ("recurrent-PREFILL", "out", heads(4, 2, 2, 2)),
    ("recurrent-PREFILL", "query", heads(65536, 1, 1, 65536)),
    ("replay", "value", lambda x: x | {"query": torch.cat([x["query"]] * 4, dim=-2)}),
    # arguments that need, or exclude, one another
    ("recurrent-PREFILL", "cu_seqlens", changing(cu_seqlens=ints(0, 3))),
    ("recurrent-PREFILL-packed", "cu_seqlens", without("cu_seqlens")),
    ("recurrent-PREFILL", "num_accepted_tokens", changing(num_accepted_tokens=ints(1, 1))),
    ("recurrent-accepted", "num_accepted_tokens", changing(state=None)),
    ("recurrent-accepted", "num_accepted_tokens", changing(num_accepted_tokens=ints(1))),
    ("recurrent-accepted", "state", changing(inference_mode=0, num_accepted_tokens=None)),
    ("decode", "cu_seqlens", changing(cu_seqlens=ints(0, 3))),
    ("decode-packed", "cu_seqlens", without("cu_seqlens")),
    ("decode", "num_accepted_tokens", changing(num_accepted_tokens=ints(1, 1))),
    ("decode-no-indices", "num_accepted_tokens", changing(num_accepted_tokens=ints(1, 1))),
    (STEPS, "step_slots", without("step_slots")),
    (STEPS, "step_states", without("step_states")),
    ("chunked", "cu_seqlens", changing(cu_seqlens=ints(0, 3))),
    ("chunked-packed", "cu_seqlens", without("cu_seqlens")),
    ("chunked-pool", "state", without("state")),
    # gates of channels
    *(("decode-channels", "lower_bound", changing(lower_bound=x)) for x in (0.0, 1.0, math.nan, -math.inf, -1e39)),
    ("decode", "lower_bound", changing(lower_bound=-5.0)),
    ("decode", "A_log", changing(A_log=None)),
    ("decode-channels", "A_log", changing(A_log=torch.zeros(HV, DK))),
    ("decode-channels", "dt_bias", changing(dt_bias=torch.zeros(HV))),
    ("decode-channels", "dt_bias", changing(dt_bias=torch.zeros(HV * DK + 1))),
    ("decode-channels-log-decays", "dt_bias", changing(dt_bias=torch.zeros(HV, DK))),
    ("decode-channels", "a", lambda x: x | {"a": x["a"][..., 1:]}),
    ("decode-channels", "a", lambda x: x | {"a": x["a"][..., None]}),
    ("replay-channels", "lower_bound", changing(lower_bound=0.0)),
    ("replay-channels", "decays", lambda x: x | {"decays": x["decays"][..., 0].contiguous()}),
    ("replay", "decays", lambda x: x | {"decays": x["decays"][..., None].repeat(1, 1, 1, 1, DK)}),
    ("replay", "A_log", changing(A_log=None)),
    # gates, states that are written, and the arguments that say so
    ("recurrent-PREFILL", "gate", changing(gate=None, gate_is_linear=True)),
    ("recurrent-by-engine", "gate", changing(gate=None)),
    ("recurrent-by-engine", "beta", changing(beta=None)),
    ("recurrent-by-engine", "gate_is_linear", changing(gate_is_linear=True)),
    ("recurrent-by-engine", "dt_bias", without("A_log")),
    ("chunked-pool-by-engine", "allow_negative_eigenvalues", changing(beta_is_logit=False)),
    ("recurrent-by-engine", "final_state", changing(inference_mode=2)),
    ("recurrent-by-engine", "final_state", changing(final_state=torch.zeros(1, HV, DV, DK))),
    ("recurrent-by-engine", "final_state", expanded("final_state")),
    ("recurrent-by-engine", "has_initial_state", changing(has_initial_state=ints(1, 0))),
    ("decode-by-engine", "write_indices", changing(update_state=False)),
    ("decode-by-engine", "write_indices", without("state_indices")),
    ("decode-tree", "write_indices", changing(write_indices=ints(0, 1))),
    ("decode-verify", "write_indices", changing(write_indices=ints(0, 1))),
    ("decode-steps-and-last", "write_indices", changing(update_state=False)),
    ("decode-verify", "update_state", changing(update_state=False)),
    ("chunked-by-engine", "final_state", changing(output_final_state=False)),
    ("chunked-by-engine", "state_dtype", changing(state_dtype=torch.float32)),
    ("chunked-by-engine", "checkpoints", changing(checkpoint_every=0)),
    ("chunked-by-engine", "states_before", changing(checkpoint_every=0, checkpoints=None)),
    ("chunked-by-engine", "write_indices", changing(write_indices=ints(0, 1, 2))),
    ("chunked-by-engine", "update_state", changing(update_state=False)),
    ("chunked-pool-by-engine", "final_state", lambda x: x | {"final_state": torch.zeros(3, HV, DV, DK)}),
    ("chunked-pool-by-engine", "write_indices", changing(update_state=False)),
    # gates of channels
    ("recurrent-channels", "gate", lambda x: x | {"gate": x["gate"][0, 0]}),
    ("recurrent-channels", "gate", lambda x: x | {"gate": x["gate"][..., :1]}),
    ("recurrent-channels", "gate", lambda x: x | {"gate": x["gate"][..., None]}),
    ("recurrent-channels", "lower_bound", changing(lower_bound=0.0)),
    ("recurrent-channels", "lower_bound", changing(lower_bound=2.0)),
    ("recurrent-channels", "lower_bound", changing(lower_bound=float("nan"))),
    ("recurrent-channels", "lower_bound", changing(lower_bound=float("-inf"))),
    ("recurrent-channels", "lower_bound", changing(lower_bound=-1e39)),
    ("recurrent-PREFILL", "lower_bound", changing(lower_bound=-5.0)),
    ("recurrent-by-engine", "lower_bound", changing(lower_bound=-5.0)),
    ("recurrent-channels", "gate", changing(gate=None, lower_bound=-5.0)),
    ("recurrent-channels-linear", "gate_is_linear", changing(lower_bound=-5.0)),
    ("recurrent-channels-linear", "gate_is_linear", changing(A_log=torch.zeros(HV))),
    ("recurrent-channels-raw", "dt_bias", without("A_log")),
    ("recurrent-channels-raw", "dt_bias", changing(dt_bias=torch.zeros(HV))),
    ("recurrent-channels-raw", "dt_bias", changing(dt_bias=torch.zeros(DK, HV))),
    ("recurrent-channels-bound", "dt_bias", changing(dt_bias=torch.zeros(HV * DK - 1))),
    ("chunked-offsets", "checkpoint_offsets", changing(checkpoint_every=64)),
    ("chunked-offsets", "checkpoint_offsets", lambda x: x | {"checkpoint_offsets": x["checkpoint_offsets"] + 1000}),
    ("chunked-offsets-pool-packed", "checkpoint_offsets", changing(checkpoint_offsets=ints(2, 1, 2))),
    ("chunked-offsets-pool-packed", "checkpoints", without("checkpoint_offsets")),
    ("chunked-offsets", "states_before", changing(states_before=torch.zeros(3, HV, DV, DK))),
    ("chunked-channels", "gate", lambda x: x | {"gate": x["gate"][0, 0]}),
    ("chunked-channels", "gate", lambda x: x | {"gate": x["gate"][..., :1]}),
    ("chunked-channels", "gate", lambda x: x | {"gate": x["gate"][..., None]}),
    *(("chunked-channels", "lower_bound", changing(lower_bound=x)) for x in (0.0, 2.0, math.nan, -math.inf, -1e39)),
    ("chunked", "lower_bound", changing(lower_bound=-5.0)),
    ("chunked-pool", "lower_bound", changing(lower_bound=-5.0)),
    ("chunked-channels", "gate", changing(gate=None, lower_bound=-5.0)),
    ("chunked-channels-linear", "gate_is_linear", changing(lower_bound=-5.0)),
    ("chunked-channels-linear", "gate_is_linear", changing(A_log=torch.zeros(HV))),
    ("chunked-channels-raw", "dt_bias", without("A_log")),
    ("chunked-channels-raw", "dt_bias", changing(dt_bias=torch.zeros(HV))),
    ("chunked-channels-raw", "dt_bias", changing(dt_bias=torch.zeros(DK, HV))),
    ("chunked-channels-pool-packed", "dt_bias", changing(dt_bias=torch.zeros(HV * DK - 1))),
    ("recurrent-channels-raw", "A_log", changing(A_log=torch.zeros(DK))),
    ("recurrent-by-engine", "dt_bias", changing(dt_bias=torch.zeros(HV, DK))),
    ("chunked_summary", "lower_bound", changing(lower_bound=-5.0)),
    *((CHANNEL_SUMMARY, "lower_bound", changing(lower_bound=x)) for x in (0.0, 2.0, math.nan, -math.inf, -1e39)),
    (CHANNEL_SUMMARY, "gate", lambda x: x | {"gate": x["gate"][0, 0]}),
    (CHANNEL_SUMMARY, "gate", lambda x: x | {"gate": x["gate"][..., :1]}),
    (CHANNEL_SUMMARY, "gate", lambda x: x | {"gate": x["gate"][..., None]}),
    (CHANNEL_SUMMARY, "gate", changing(gate=None)),
    (CHANNEL_SUMMARY, "gate_is_linear", changing(gate_is_linear=True)),
    (CHANNEL_SUMMARY, "dt_bias", without("lower_bound")),
    (CHANNEL_SUMMARY, "dt_bias", changing(dt_bias=torch.zeros(4))),
    (CHANNEL_SUMMARY, "dt_bias", lambda x: x | {"dt_bias": x["dt_bias"].mT.contiguous()}),
    (CHANNEL_SUMMARY, "A_log", changing(A_log=torch.zeros(DK))),
    ("decode", "dt_bias", lambda x: x | {"a": x["a"][..., None].expand(*x["a"].shape, DK)}),
    # ranges
    ("recurrent-PREFILL", "inference_mode", changing(inference_mode=3)),
    ("recurrent-PREFILL", "inference_mode", changing(inference_mode=-1)),
    ("recurrent-PREFILL", "scale", changing(scale=float("nan"))),
    ("decode", "scale", changing(scale=float("inf"))),
    ("decode", "null_slot", changing(null_slot=-1)),
    ("decode-no-indices", "state_pool", changing(state_pool=torch.zeros(1, HV, DV, DK))),
    ("decode-verify", "state_indices", changing(state_indices=ints(1, 2)[:, None])),
    (STEPS, "step_states", changing(step_states=torch.zeros(3, 2, HV, DV, DK))),
    (STEPS, "step_states", changing(step_states=torch.zeros(3, 4, HV, DV, DK).bfloat16())),
    ("chunked", "checkpoint_every", changing(checkpoint_every=32)),
    ("chunked", "checkpoint_every", changing(checkpoint_every=-64)),
    ("chunked", "state_dtype", changing(state_dtype=torch.float64)),
    ("chunked-pool", "state_dtype", changing(state_dtype=torch.bfloat16)),
    ("mn-major-fp32", "alignment", changing(alignment=0)),
    ("mn-major-fp32", "alignment", changing(alignment=-16)),
    ("mn-major-fp32", "alignment", changing(alignment=6)),
    ("state-update-packed", "state", changing(state=torch.zeros(1, HV, DV, DK))),
    # dtypes and strides that do not match the other arguments
    ("recurrent-PREFILL", "key", lambda x: x | {"key": x["key"].half()}),
    ("recurrent-PREFILL", "value", lambda x: x | {"value": x["value"].half()}),
    ("recurrent-PREFILL", "out", lambda x: x | {"out": x["out"].float()}),
    ("gating", "b", lambda x: x | {"b": x["b"].float()}),
    ("u-w", "gate", lambda x: x | {"gate": x["gate"].contiguous()}),
    ("u-w", "beta", lambda x: x | {"beta": x["beta"].contiguous()}),
    ("u-w", "k", lambda x: x | {name: x[name].half() for name in ("k", "v", "u", "w")}),
    ("state-update", "state", slot_gaps("state")),
    ("state-update", "final_state", slot_gaps("final_state")),
    # outputs with several elements at one address
    ("recurrent-PREFILL", "out", expanded("out")),
    ("decode", "out", expanded("out")),
    ("decode", "state_pool", expanded("state_pool")),
    (STEPS, "step_states", expanded("step_states")),
    ("chunked-pool", "state", expanded("state")),
    ("cumsum", "output", expanded("output")),
    ("u-w", "u", expanded("u")),
    ("u-w", "w", expanded("w")),
    ("state-update", "u", expanded("u")),
    ("compute-o", "o", expanded("o")),
]
for _packed in ("recurrent-PREFILL-packed", "decode-packed", "chunked-packed", "cumsum-packed", "u-w-packed"):
    for _offsets in ((1, 70, 70, 73), (0, 70, 69, 73), (0, 70, 70, 74), (0, -1, 70, 73)):
        WRONG_VALUES.append((_packed, "cu_seqlens", changing(cu_seqlens=ints(*_offsets))))
        WRONG_VALUES.append((_packed, "cu_seqlens", changing(cu_seqlens=ints(*_offsets).long())))


@pytest.mark.parametrize("i", range(len(WRONG_VALUES)), ids=[f"{i}-{row[0]}-{row[1]}" for i, row in enumerate(WRONG_VALUES)])
def test_a_wrong_value_is_refused_by_name(i: int) -> None:
    name, argument, change = WRONG_VALUES[i]
    assert refuses(CASES[name], change(arguments_of(CASES[name]))) == argument


WRONG_SLOTS: list[tuple[str, str, Arguments]] = [
    ("decode", "state_indices", {"state_indices": ints(0, 8)}),
    ("decode", "state_indices", {"state_indices": ints(2**31 - 1, 0).long() * 2}),
    ("decode", "state_indices", {"state_indices": ints(0, 9), "null_slot": 8}),
    ("decode-verify", "state_indices", {"state_indices": ints(0, 1, 2, 3, 4, 8).view(2, 3)}),
    ("decode-verify", "num_accepted_tokens", {"num_accepted_tokens": ints(1, 4)}),
    (STEPS, "step_slots", {"step_slots": ints(0, 3)}),
    ("decode-step-states-packed", "step_states", {"step_states": torch.zeros(4, 69, HV, DV, DK).bfloat16()}),
    ("decode-verify-packed", "state_indices", {"state_indices": torch.zeros(3, 69, dtype=torch.int32)}),
    ("chunked-pool", "state_indices", {"state_indices": ints(0, 4)}),
    ("recurrent-accepted", "num_accepted_tokens", {"num_accepted_tokens": ints(1, 4)}),
]


@pytest.mark.parametrize("i", range(len(WRONG_SLOTS)), ids=[f"{i}-{row[0]}-{row[1]}" for i, row in enumerate(WRONG_SLOTS)])
def test_a_slot_past_the_pool_is_refused(i: int) -> None:
    """Checked on the CPU only, as a GPU check would wait for the device (tests/gdn/gpu tests what happens there)."""
    name, argument, changes = WRONG_SLOTS[i]
    assert refuses(CASES[name], arguments_of(CASES[name]) | changes, IndexError) == argument


def test_a_refused_decode_writes_nothing_to_out() -> None:
    case = CASES["decode"]
    arguments = arguments_of(case)
    arguments["out"] = poisoned(arguments["out"])
    refuses(case, arguments | {"state_indices": ints(0, 8)}, IndexError)
    assert arguments["out"].isnan().all()


def test_the_error_states_expected_and_actual_shapes() -> None:
    arguments = arguments_of(CASES["recurrent-PREFILL"])
    with pytest.raises(ValueError) as caught:
        gdn_cuda.recurrent_forward(**arguments | {"value": arguments["value"][:, :2]})
    assert str(caught.value) == (
        "recurrent_forward: value: expected (B=2, T=3, Hv, dv) to match query (2, 3, 2, 16), got (2, 2, 4, 8)"
    )


def test_the_texts_name_dtypes_and_strides() -> None:
    arguments = arguments_of(CASES["chunked"])
    for changes, text in (
        ({"query": arguments["query"].short()}, "query: expected float32 or bfloat16 or float16 or float64, got int16"),
        ({"beta": arguments["beta"].bool()}, "beta: expected float32 or bfloat16 or float16, got bool"),
        (
            {"state_dtype": torch.float64},
            "state_dtype: expected float32, bfloat16, float16 or None, or float64 with a float64 query, got float64",
        ),
        (
            {"value": arguments["value"][:, :, :1]},
            "key: expected the shape of query (2, 3, 2, 16) with the 1 of value for heads, got (2, 3, 2, 16)",
        ),
        (
            {"value": arguments["value"][:, :, :3]},
            "value: expected a number of heads that is a multiple of query's 2, or divides it, got 3",
        ),
        ({"out": torch.stack([arguments["out"]] * 2, -1)[..., 0]}, "out: expected a contiguous last dimension, got stride 2"),
    ):
        with pytest.raises(ValueError) as caught:
            gdn_cuda.chunked_forward(**arguments | changes)
        assert str(caught.value) == f"chunked_forward: {text}"


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"scale": "x"}, "scale: expected a number or None, got 'x'"),
        ({"checkpoint_every": 64.0}, "checkpoint_every: expected an integer, got 64.0"),
        ({"deterministic": "yes"}, "deterministic: expected a bool, got 'yes'"),
        ({"state_dtype": "f32"}, "state_dtype: expected a torch.dtype or None, got 'f32'"),
    ],
    ids=["float", "int", "bool", "dtype"],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_a_number_of_the_wrong_type_is_named(mode: Callable[[], Any], changes: Arguments, text: str) -> None:
    with mode(), pytest.raises(ValueError) as caught:
        gdn_cuda.chunked_forward(**arguments_of(CASES["chunked"]) | changes)
    assert str(caught.value) == f"chunked_forward: {text}"


@pytest.mark.parametrize("name", ["state-update", "compute-o"])
@pytest.mark.parametrize("chunk_size", [32, 128, None, "64"])
def test_chunks_have_64_tokens(name: str, chunk_size: Any) -> None:
    case = CASES[name]
    with pytest.raises(ValueError) as caught:
        case.function(**arguments_of(case) | {"chunk_size": chunk_size})
    assert str(caught.value) == f"{case.function.__name__}: chunk_size: expected 64, got {chunk_size}"


def test_more_tokens_than_32_bits_hold_in_whole_chunks_are_refused() -> None:
    """Kernels round the token count up to whole chunks in 32 bits."""
    T = 2**31 - 255
    rows, gates = torch.zeros(8, dtype=torch.bfloat16).expand(1, T, 1, 8), torch.zeros(1).expand(1, T, 1)
    with pytest.raises(ValueError, match=r"chunked_forward: query: expected at most 2147483392 tokens"):
        gdn_cuda.chunked_forward(rows, rows, rows, gates, gates, out=rows)


NO_TENSORS = [
    (name, p.name, "None" in p.annotation and p.name != "out")
    for name in {case.function: name for name, case in reversed(one_of_each().items())}.values()
    for p in tensor_parameters(CASES[name].function)
]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name, argument, optional", NO_TENSORS)
def test_an_argument_that_is_not_a_tensor_is_a_one_line_error(
    name: str, argument: str, optional: bool, grad: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line, without torch's stack trace or schema."""
    case = CASES[name]
    arguments = arguments_of(case)
    wrong = [3, 1.5, [1, 2], "x"] if optional or argument == "out" else [3, 1.5, [1, 2], "x", None]
    for x in wrong:
        with torch.set_grad_enabled(grad), pytest.raises(ValueError) as caught:
            case.function(**arguments | {argument: x})
        got = "None" if x is None else type(x).__name__
        expected = "a tensor or None" if optional else "a tensor"
        assert str(caught.value) == f"{case.function.__name__}: {argument}: expected {expected}, got {got}"
    assert capfd.readouterr() == ("", "")


def test_an_undefined_tensor_passed_to_the_registered_operator_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    operator, arguments = operator_call(CASES["decode"])
    with pytest.raises(ValueError, match="expected a tensor, got None"):
        operator(*arguments[:4], None, *arguments[5:])
    assert capfd.readouterr() == ("", "")


WRITTEN = [(name, argument) for name, case in one_of_each().items() for argument in written_by(case)]


@pytest.mark.parametrize("name, argument", WRITTEN)
def test_a_negative_view_is_refused_as_output(name: str, argument: str) -> None:
    arguments = arguments_of(CASES[name])
    assert refuses(CASES[name], arguments | {argument: torch._neg_view(arguments[argument])}) == argument


@pytest.mark.parametrize("name", ["gating", "recurrent-PREFILL", "decode", "chunked", "cumsum"])
def test_a_negative_view_is_read_with_its_sign(name: str) -> None:
    read = {"gating": "a", "cumsum": "input"}.get(name, "value")
    arguments, plain = arguments_of(CASES[name]), arguments_of(CASES[name])
    arguments[read] = torch._neg_view(arguments[read])
    plain[read] = -plain[read]
    results = [[x for x in tree_leaves((CASES[name].function(**y), y)) if isinstance(x, Tensor)] for y in (arguments, plain)]
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
