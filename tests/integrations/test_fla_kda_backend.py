"""FLA's dispatch of Kimi Delta Attention with gdn_cuda.integrations.fla: counted calls, compared with the recurrence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from engine_calls import channel_gates, l2norm, recurrence
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import integrations
from gdn_cuda.integrations import fla as integration

if not integration.available()[0]:
    pytest.skip(integration.available()[1], allow_module_level=True)

import fla.ops.kda as theirs
import fla.ops.kda.chunk as chunk_module
import fla.ops.kda.fused_recurrent as recurrent_module

T, H, HV, K, V = 70, 2, 4, 64, 32
OFFSETS = [0, 33, 33, 70]
FUNCTIONS = ["chunk_kda", "fused_recurrent_kda"]
RAW = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
OPTIONS = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    integration.install(cpu=True)
    integrations.reset_calls()
    yield
    integration.uninstall()


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of FLA's own functions that were called, which need a GPU."""
    names: list[str] = []
    fake = type("Fake", (), {"apply": staticmethod(lambda *args: (names.append("chunk_kda"), None))})
    monkeypatch.setattr(chunk_module, "ChunkKDAFunction", fake)

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return lambda **given: names.append("fused_recurrent_kda")

    monkeypatch.setattr(recurrent_module, "fused_recurrent_kda_fwd_kernel", Kernel())
    return names


def counts() -> dict[str, dict[str, int]]:
    return {name.partition(".")[2]: count for name, count in integrations.calls("fla").items()}


def inputs(rng: torch.Generator, device: str, rows: int = 1) -> dict[str, Tensor]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    x = {"q": draw(1, T, H, K).bfloat16(), "k": draw(1, T, H, K).bfloat16(), "v": draw(1, T, HV, V).bfloat16()}
    x |= {"g": draw(1, T, HV, K), "beta": draw(1, T, HV), "initial_state": draw(rows, HV, K, V)}
    x |= {"A_log": draw(HV) / 4, "dt_bias": draw(HV * K)}
    return {name: y.to(device) for name, y in x.items()}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("v_first", [False, True])
def test_the_call_of_flas_layer(name: str, bound: float | None, v_first: bool, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, len(OFFSETS) - 1)
    given = x | {"initial_state": x["initial_state"].mT.contiguous()} if v_first else x
    options: dict[str, Any] = OPTIONS | RAW | {"lower_bound": bound, "state_v_first": v_first}
    options |= {"safe_gate": bound is not None} if name == "chunk_kda" else {}
    output, state = getattr(theirs, name)(**given, **options, cu_seqlens=torch.tensor(OFFSETS, device=device))
    assert counts() == {name: {"gdn_cuda": 1}} and output.dtype == torch.bfloat16 and state.dtype == torch.float32
    g, beta = channel_gates(x["g"], x["A_log"], x["dt_bias"], bound), x["beta"].double().sigmoid()
    state = state if v_first else state.mT
    for n, (start, end) in enumerate(pairwise(OFFSETS)):
        if start == end:
            assert torch.equal(state[n], x["initial_state"][n].mT)
            continue
        rows = (y[0, start:end] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], g, beta))
        expected, states = recurrence(*rows, x["initial_state"][n].mT)
        assert rel_rms(output[0, start:end], expected) < 5e-3
        assert rel_rms(state[n], states[-1]) < (5e-3 if device == "cuda" and name == "chunk_kda" else 1e-5)


def test_gradients(device: str, rng: torch.Generator) -> None:
    """Gradients of the layer's call, compared with autograd's through the recurrence in fp64."""
    x = inputs(rng, device)
    leaves = {name: y.clone().requires_grad_() for name, y in x.items()}
    output, state = theirs.chunk_kda(**leaves, **OPTIONS, **RAW)
    assert counts() == {"chunk_kda": {"gdn_cuda": 1}}
    weights = [torch.randn(y.shape, generator=rng).to(device) for y in (output, state)]

    def gradients(leaves: dict[str, Tensor], *results: Tensor) -> tuple[Tensor, ...]:
        loss = sum((y * w.to(y.dtype)).sum() for y, w in zip(results, weights, strict=True))
        return torch.autograd.grad(loss, list(leaves.values()))

    wide = {name: y.double().requires_grad_() for name, y in x.items()}
    g, beta = channel_gates(wide["g"], wide["A_log"], wide["dt_bias"], None), wide["beta"].sigmoid()
    rows = (y[0] for y in (l2norm(wide["q"]), l2norm(wide["k"]), wide["v"], g, beta))
    expected, states = recurrence(*rows, wide["initial_state"][0].mT)
    wanted = gradients(wide, expected[None], states[-1].mT[None])
    for (name, leaf), found, each in zip(leaves.items(), gradients(leaves, output, state), wanted, strict=True):
        assert found.dtype == leaf.dtype and rel_rms(found, each) < 1e-2, name


@torch.inference_mode()
def test_states_between_chunks(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device)
    output, state, between = theirs.chunk_kda(**x, **OPTIONS, **RAW, return_intermediate_states=True)
    assert counts() == {"chunk_kda": {"gdn_cuda": 1}} and between.shape == (1, 2, HV, K, V) and output.shape == x["v"].shape
    assert between.dtype == torch.bfloat16 and rel_rms(between[:, 0], x["initial_state"]) < 4e-3 and state is not None


def test_the_forward_by_position(device: str, rng: torch.Generator) -> None:
    """FLA's fused_recurrent_kda_fwd has the state before the scale."""
    x = inputs(rng, device)
    q, k, v, g, beta, state, A_log, dt_bias = x.values()
    found = recurrent_module.fused_recurrent_kda_fwd(
        q, k, v, g, beta, A_log, dt_bias, state, 0.5, True, False, use_gate_in_kernel=True
    )
    assert counts() == {"fused_recurrent_kda": {"gdn_cuda": 1}}
    expected = theirs.fused_recurrent_kda(
        q, k, v, g, beta, A_log, dt_bias, 0.5, state, output_final_state=True, use_gate_in_kernel=True
    )
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cp_context": object()}, "cp_context is given"),
        ({"use_gate_in_kernel": True, "A_log": None}, "use_gate_in_kernel is given without A_log and lower_bound"),
        (
            {"q": torch.zeros(1, T, H, K, requires_grad=True), "return_intermediate_states": True},
            "chunk_kda: return_intermediate_states: expected False where an input requires a gradient",
        ),
        ({"return_intermediate_states": True, "chunk_size": 32}, "chunk_kda: return_intermediate_states: expected False with"),
        ({"k": torch.zeros(1, T, H, K, dtype=torch.float16)}, "chunk_kda: k: expected"),
    ],
)
def test_declined_calls_reach_triton(change: dict[str, Any], reason: str, reached: list[str], rng: torch.Generator) -> None:
    try:
        theirs.chunk_kda(**(inputs(rng, "cpu") | {"use_gate_in_kernel": True} | change))
    except (AssertionError, AttributeError, ValueError):  # FLA's own function raises it about its arguments
        reached.append("chunk_kda")
    assert reached == ["chunk_kda"]
    (found,) = counts()["chunk_kda"]
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ssm_state_indices": torch.zeros(1, dtype=torch.int32)}, "ssm_state_indices is given"),
        ({"num_accepted_tokens": torch.ones(1, dtype=torch.int32)}, "num_accepted_tokens is given"),
        ({"out": torch.zeros(1, T, HV, V).bfloat16()}, "out is given"),
        ({"inplace_final_state": True}, "the initial state is written"),
    ],
)
def test_declined_forwards_reach_triton(change: dict[str, Any], reason: str, reached: list[str], rng: torch.Generator) -> None:
    recurrent_module.fused_recurrent_kda_fwd(**inputs(rng, "cpu"), **{"inplace_final_state": False} | change)
    assert reached == ["fused_recurrent_kda"] and counts() == {"fused_recurrent_kda": {reason: 1}}


def test_cpu_tensors_are_taken_only_when_asked(reached: list[str], rng: torch.Generator) -> None:
    integration.install()
    for name in FUNCTIONS:
        getattr(theirs, name)(**inputs(rng, "cpu"))
    assert reached == FUNCTIONS and counts() == {name: {"tensors are on cpu": 1} for name in FUNCTIONS}


def test_uninstall_gives_everything_back(reached: list[str], rng: torch.Generator) -> None:
    integration.uninstall()
    for name in FUNCTIONS:
        getattr(theirs, name)(**inputs(rng, "cpu"))
    assert reached == FUNCTIONS and not counts()
