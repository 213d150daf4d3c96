"""float64 CPU tensors: operators compute in float64 throughout, like the literal recurrence; on CUDA tensors they refuse it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import layer_oracle
import pytest
import torch
from gdn_cases import CASES
from helpers import rel_rms
from operator_cases import operator_call
from replay_cases import Server, literal
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

import gdn_cuda
from gdn_cuda.gdn.inputs import make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.layers.decode_layer import by_operators, layer_arguments
from gdn_cuda.operators.examples import Arguments, Case

F64 = torch.float64
BOUND = 1e-13  # rounding errors of a sum of some hundred products
# All operators except those with bf16 in their names, and those that prepare gates for these.
IN_F64 = (
    gdn_cuda.fused_gdn_gating,
    gdn_cuda.recurrent_forward,
    gdn_cuda.fused_decode,
    gdn_cuda.replay_decode,
    gdn_cuda.ring_decode,
    gdn_cuda.chunked_forward,
    gdn_cuda.chunked_summary,
)
F64_CASES = {name: case for name, case in CASES.items() if case.function in IN_F64 and name != "ring-int8"}
EVERY_CASE = pytest.mark.parametrize("case", F64_CASES.values(), ids=F64_CASES.keys())


def in_f64(arguments: Arguments) -> Arguments:
    return {
        name: x.double()
        if isinstance(x, Tensor) and x.is_floating_point()
        else F64
        if isinstance(x, torch.dtype)
        else gdn_cuda.ReplayBuffers(*(y.double() for y in x[:3]), x[3])
        if isinstance(x, gdn_cuda.ReplayBuffers)
        else x
        for name, x in arguments.items()
    } | ({"banks": arguments["banks"]} if "banks" in arguments else {})


def made(case: Case, seed: int) -> Arguments:
    return in_f64(case.make(2, 3, seed))


# ---- Every example


@EVERY_CASE
def test_results_and_new_states_are_float64(case: Case, seed: int) -> None:
    x = made(case, seed)
    results = case.function(**x)
    for y in results if isinstance(results, tuple) else (results,):
        assert y is None or y.dtype == F64 or any(y is x.get(name) for name in ("state", "final_state"))  # of int8


@EVERY_CASE
def test_opcheck(case: Case, seed: int) -> None:
    x = made(case, seed)
    operator, arguments = operator_call(Case(case.name, case.function, lambda B, T, seed: x))
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


def faked(x: Arguments, device: str) -> Arguments:
    with FakeTensorMode() as mode:
        return tree_map_only(Tensor, lambda y: mode.from_tensor(y).to(device), x)


@EVERY_CASE
def test_a_trace_on_cuda_refuses_it_and_one_on_the_cpu_does_not(case: Case, seed: int) -> None:
    x = made(case, seed)
    case.function(**faked(x, "cpu"))
    case.function(**tree_map_only(Tensor, lambda y: y.to("meta"), x))
    with pytest.raises(
        ValueError, match=rf"^{case.function.__name__}: \w+: expected .* on CUDA, as float64 is for CPU tensors, got"
    ):
        case.function(**faked(x, "cuda"))


@EVERY_CASE
def test_a_call_on_cuda_refuses_it(case: Case, seed: int) -> None:
    with pytest.raises(
        ValueError, match=rf"^{case.function.__name__}: \w+: expected .* on CUDA, as float64 is for CPU tensors, got"
    ):
        gdn_cuda.explain(case.function, **made(case, seed))


def test_layers_refuse_it_on_cuda(seed: int) -> None:
    layer = layer_arguments(2, 3, seed, "qwen3_5", io=F64, state=F64)
    for function in (gdn_cuda.gdn_decode_layer, gdn_cuda.gdn_prefill_layer):
        with pytest.raises(ValueError, match=r"on CUDA, as float64 is for CPU tensors, got float64$"):
            gdn_cuda.explain(function, **layer)


MIXED: list[tuple[str, Any, Arguments]] = [
    ("value", gdn_cuda.recurrent_forward, {"value": torch.float32}),
    ("gate", gdn_cuda.recurrent_forward, {"query": torch.float32, "key": torch.float32, "value": torch.float32}),
    ("state", gdn_cuda.chunked_forward, dict.fromkeys(("query", "key", "value", "beta", "gate"), torch.float32)),
]


@pytest.mark.parametrize("argument, function, dtypes", MIXED, ids=[argument for argument, *_ in MIXED])
def test_float64_beside_float32_rows_is_refused(argument: str, function: Any, dtypes: Arguments) -> None:
    x = make_gdn_inputs(1, 3, 2, 2, 4, 4)
    x = {name: y.to(dtypes.get(name, F64)) for name, y in x.items()}
    if argument == "gate":
        x["beta"] = x["beta"].float()
    with pytest.raises(ValueError, match=rf"^{function.__name__}: {argument}: expected .*, got float"):
        function(**x)


# ---- The literal recurrence, token by token and head by head


def run(x: dict[str, Any], state: Tensor, tokens: range, scale: float, norm: bool) -> tuple[Tensor, list[Tensor]]:
    """The output (T, Hv, dv) of some tokens of x's first sequence, or of packed tokens; the states before and after each."""
    rows = {name: x[name] if x[name].dim() == rank else x[name][0] for name, rank in RANKS.items()}
    S, outputs, states = state.clone(), [], [state.clone()]
    for t in tokens:
        o = []
        for h in range(S.shape[0]):
            q, k = (rows[name][t, h // (S.shape[0] // rows[name].shape[1])] for name in ("query", "key"))
            if norm:
                q, k = q / math.sqrt(float(q @ q) + 1e-6), k / math.sqrt(float(k @ k) + 1e-6)
            S[h] = math.exp(rows["gate"][t, h]) * S[h]
            S[h] = S[h] + torch.outer(rows["beta"][t, h] * (rows["value"][t, h] - S[h] @ k), k)
            o.append(scale * (S[h] @ q))
        outputs.append(torch.stack(o))
        states.append(S.clone())
    return torch.stack(outputs) if outputs else rows["value"][:0], states


RANKS = {"query": 3, "key": 3, "value": 3, "beta": 2, "gate": 2}
CHUNKED = {"use_qk_l2norm": True, "scale": 0.3}


def close(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == F64
    assert rel_rms(got, expected) <= BOUND


@pytest.mark.parametrize(
    "function, options", [(gdn_cuda.recurrent_forward, {"is_qk_norm": True, "scale": 0.3}), (gdn_cuda.chunked_forward, CHUNKED)]
)
def test_prefill_is_the_literal_recurrence(function: Callable[..., Any], options: Arguments, seed: int) -> None:
    lengths = [70, 0, 3]
    x = make_packed_gdn_inputs(lengths, Hk=2, Hv=4, dk=6, dv=5, seed=seed, gate_range=(-2.0, 0.0))
    output, final = function(**x, **options)
    first = 0
    for n, length in enumerate(lengths):
        expected, states = run(x, x["state"][n], range(first, first + length), 0.3, True)
        if length:
            close(output[first : first + length], expected)
        close(final[n], states[-1])
        first += length


def test_checkpoints_and_states_before_blocks_are_float64(seed: int) -> None:
    x = make_gdn_inputs(1, 130, 2, 2, 4, 3, seed=seed, gate_range=(-1.0, 0.0))
    before = torch.full((3, 2, 3, 4), torch.nan, dtype=F64)
    _, _, checkpoints = gdn_cuda.chunked_forward(**x, checkpoint_every=64, states_before=before)
    _, states = run(x, x["state"][0], range(130), 0.5, False)
    close(checkpoints, torch.stack([states[64], states[128]]))
    close(before, torch.stack([states[0], states[64], states[128]]))


def test_a_given_state_of_fp32_is_rounded_only_where_it_is_stored(seed: int) -> None:
    x = make_gdn_inputs(1, 9, 1, 2, 4, 3, seed=seed, gate_range=(-1.0, 0.0))
    x["state"] = x["state"].float()
    output, final = gdn_cuda.recurrent_forward(**x)
    expected, states = run(x, x["state"][0].double(), range(9), 0.5, False)
    close(output[0], expected)
    assert torch.equal(final[0], states[-1].float())


def test_a_summary_is_that_of_the_literal_recurrence(seed: int) -> None:
    x = make_gdn_inputs(1, 70, 2, 4, 6, 5, seed=seed, gate_range=(-0.5, 0.0))
    state = x.pop("state")[0]
    query = x.pop("query")
    addition, transition = gdn_cuda.chunked_summary(**x)[0].split([5, 6], dim=-2)
    _, states = run(x | {"query": query}, state, range(70), 1.0, False)
    close(state @ transition + addition, states[-1])


@pytest.mark.parametrize("factor", [1, 2])
def test_decode_is_the_literal_recurrence(factor: int, seed: int) -> None:
    x = in_f64(CASES["decode"].make(2, 3, seed)) | {"allow_negative_eigenvalues": factor == 2}
    x["dt_bias"] = x["dt_bias"].bfloat16()  # a narrower dtype, converted to fp64
    pool, slots = x["state_pool"].clone(), x["state_indices"].tolist()
    output = gdn_cuda.fused_decode(**x)
    for n, slot in enumerate(slots):
        state, heads = pool[slot], {name: x[name] for name in ("A_log", "dt_bias")}
        for t in range(3):
            token = {name: x[name][n, t] for name in ("query", "key", "value", "a", "b")}
            expected, state = literal(state, token, heads, 16**-0.5, True, factor)
            close(output[n, t], expected)
        close(x["state_pool"][slot], state)


def test_gates_narrower_than_the_rows_are_computed_in_float64(seed: int) -> None:
    x = in_f64(CASES["chunked"].make(1, 3, seed))
    raw = {"A_log": torch.randn(4), "dt_bias": torch.randn(4).bfloat16(), "beta_is_logit": True}
    given = x | raw | {"gate": x["gate"].float(), "beta": x["beta"].float()}
    softplus = torch.log1p(torch.exp(given["gate"].double() + raw["dt_bias"].double()))
    exact = x | {"gate": -raw["A_log"].double().exp() * softplus, "beta": 1 / (1 + torch.exp(-given["beta"].double()))}
    for got, expected in zip(gdn_cuda.chunked_forward(**given), gdn_cuda.chunked_forward(**exact), strict=True):
        close(got, expected)


@pytest.mark.parametrize("packed", [False, True])
def test_replay_is_the_literal_recurrence(packed: bool, seed: int) -> None:
    server = Server(seed, dk=8, dv=16, io=F64, state=F64, allow_negative_eigenvalues=True)
    assert {x.dtype for x in server.buffers[:3]} == {F64}
    server.verify(gdn_cuda.replay_decode, [3, 1, 2] if packed else [3, 3, 3], packed)
    server.accept([2, 1, 0])
    server.verify(gdn_cuda.replay_decode, [2, 0, 4] if packed else [4, 4, 4], packed)
    server.accept([1, 0, 3])
    server.commit()


# ---- Layers


@pytest.mark.parametrize("layout", ["qwen3_next", "qwen3_5", "split"])
def test_a_layers_step_is_its_definition(layout: str, seed: int) -> None:
    x = layer_arguments(2, 3, seed, layout, io=F64, state=F64)
    layer_oracle.check(x, gdn_cuda.gdn_decode_layer)


def test_prompts_of_a_layer_are_its_steps(seed: int) -> None:
    x = layer_arguments(2, 7, seed, "qwen3_5", io=F64, state=F64)
    pools = {name: x[name].clone() for name in ("conv_pool", "state_pool")}
    by_steps, steps = {name: y.clone() for name, y in pools.items()}, []
    expected, _ = layer_oracle.step(x)
    prompt = gdn_cuda.gdn_prefill_layer(**x | pools)
    for t in range(7):
        token = {name: x[name][:, t : t + 1] for name in ("qkvz", "ba")}
        steps.append(by_operators(**x | token | by_steps))
    for got in (prompt, torch.cat(steps, 1)):
        close(got, torch.from_numpy(expected))
    for name, y in pools.items():
        close(y, by_steps[name])
