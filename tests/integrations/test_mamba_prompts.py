"""The scan of prompts in engines' Mamba-2 layers: recorded calls (engine_calls), through the module that calls it by name,
against the recurrence in fp64; and calls that the engine's own function runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from engine_calls import OUTPUT, Call, calls, identity, untouched
from helpers import rel_rms
from literal_mamba2 import after, prompts
from mamba_mixers import SGLANG, VLLM, close, mixer_of

import gdn_cuda
from gdn_cuda import integrations
from gdn_cuda.integrations import sglang, vllm

VLLM_CALLS = [each for each in calls("vllm") if each.call == VLLM]
SGLANG_CALLS = [each for each in calls("sglang") if each.call == SGLANG]


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def vllm_mixer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from mixer_of(vllm, monkeypatch)


@pytest.fixture
def sglang_mixer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from mixer_of(sglang, monkeypatch)


def arguments(call: Call, rng: torch.Generator, device: str) -> dict[str, Any]:
    x = call.arguments(rng, device)
    if x["state_dtype"] is not None:
        x["state_dtype"] = getattr(torch, x["state_dtype"])
    x["out"].fill_(float("nan"))
    return x


# ---- vLLM


@pytest.mark.parametrize("call", VLLM_CALLS, ids=identity)
def test_vllm(call: Call, vllm_mixer: Any, device: str, rng: torch.Generator) -> None:
    x = arguments(call, rng, device)
    pool = x.get("final_states_out")
    if pool is not None:
        pool.fill_(float("nan"))  # no state is read from a slot
    kept = {name: x[name].clone() for name in ("x", "dt", "B", "C", "initial_states") if name in x}
    before = None if pool is None else pool.clone()
    found = getattr(vllm_mixer, VLLM)(**x)
    assert integrations.calls() == {f"vllm.{VLLM}": {"gdn_cuda": 1}}
    assert all(torch.equal(x[name], y) for name, y in kept.items())
    outputs, states = prompts(x)
    assert rel_rms(x["out"], outputs) < OUTPUT
    if pool is not None:
        slots = x["final_state_indices"].tolist()
        assert found is None and untouched(before, pool, slots)
        for n, slot in enumerate(slots):
            close(pool[slot], states[n][-1], device)
        return
    assert found.dtype == (x["C"].dtype if x["state_dtype"] is None else x["state_dtype"])
    if not x["return_intermediate_states"]:
        close(found, torch.stack([each[-1] for each in states]), device)
        return
    offsets = x["cu_seqlens"].tolist()
    ends = x["cu_chunk_seqlens"].tolist()[1:]
    assert found.shape[0] == len(ends)
    for row, end in enumerate(ends):
        close(found[row], after(offsets, states, end), device)
    for n, row in enumerate(x["last_chunk_indices"].tolist()):
        close(found[row], states[n][-1], device)


def vllm_call(name: str) -> dict[str, Any]:
    (call,) = (each for each in VLLM_CALLS if name in each.name)
    return arguments(call, torch.Generator().manual_seed(0), "cpu")


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"return_intermediate_states": True}, "slots for last states beside all states"),
        ({"final_state_indices": None}, "slots for last states beside all states, or without their indices"),
        ({"final_state_indices": torch.tensor([1, 2]).int()}, "ssd_scan: write_indices: expected (sequences,) = (3,)"),
        ({"final_states_out": torch.zeros(7, 4, 16, 24).to(torch.float8_e5m2)}, "ssd_scan: last_state: expected float32"),
        ({"final_states_out": torch.zeros(7, 4, 24, 16).mT}, "ssd_scan: last_state: expected"),
        ({"x": torch.zeros(199, 16, 4).bfloat16().mT}, "ssd_scan: x: expected a contiguous last dimension"),
        ({"out": torch.zeros(199, 4, 16)}, "ssd_scan: out: expected bfloat16"),
        ({"dt_limit": (1.0, 0.5)}, "ssd_scan: dt_limit: expected a lower bound"),
        ({"cu_seqlens": torch.tensor([0, 130, 194])}, "ssd_scan: write_indices: expected (sequences,) = (2,)"),
    ],
)
def test_vllm_runs_other_calls_itself(change: dict[str, Any], reason: str, vllm_mixer: Any) -> None:
    """With nothing written."""
    x = vllm_call("slots of a page") | change
    written = {name: x[name].clone() for name in ("out", "final_states_out")}
    assert getattr(vllm_mixer, VLLM)(**x) == "host"
    (found,) = integrations.calls()[f"vllm.{VLLM}"]
    assert found.startswith(reason)
    for name, y in written.items():
        assert torch.equal(x[name].float().nan_to_num(7.0), y.float().nan_to_num(7.0))


def test_vllm_needs_every_prompts_end_among_the_chunks(vllm_mixer: Any) -> None:
    x = vllm_call("chunks at absolute positions")
    x["cu_chunk_seqlens"] = x["cu_chunk_seqlens"] // 2
    assert getattr(vllm_mixer, VLLM)(**x) == "host" and x["out"].isnan().all()
    (found,) = integrations.calls()[f"vllm.{VLLM}"]
    assert found == "ssd_scan: boundaries: expected the end of every sequence"


def test_parameters_that_could_have_gradients(vllm_mixer: Any, sglang_mixer: Any) -> None:
    """Engines keep A, D and dt_bias as parameters, and run without gradients."""
    x = vllm_call("slots of a page")
    x["A"] = torch.nn.Parameter(x["A"])
    with torch.no_grad():
        assert getattr(vllm_mixer, VLLM)(**x) is None
    assert getattr(vllm_mixer, VLLM)(**x) == "host"
    (_, found) = integrations.calls()[f"vllm.{VLLM}"]
    assert "expected None where an input requires a gradient" in found


# ---- SGLang


@pytest.mark.parametrize("call", SGLANG_CALLS, ids=identity)
def test_sglang(call: Call, sglang_mixer: Any, device: str, rng: torch.Generator) -> None:
    x = arguments(call, rng, device)
    found = getattr(sglang_mixer, SGLANG)(**x)
    assert integrations.calls() == {f"sglang.{SGLANG}": {"gdn_cuda": 1}}
    outputs, states = prompts(x | {name: x[name][0] for name in ("x", "dt", "B", "C")})
    assert rel_rms(x["out"][0], outputs) < OUTPUT
    if not (x["return_track_states"] or x.get("return_intermediate_states")):
        found = None, found, None
    before, last, tracked = found if len(found) == 3 else (*found, None)
    dtype = x["C"].dtype if x["state_dtype"] is None else x["state_dtype"]
    assert last.dtype == dtype
    close(last, torch.stack([each[-1] for each in states]), device)
    offsets, chunk = x["cu_seqlens"].tolist(), x["chunk_size"]
    if before is not None:
        assert before.shape[:2] == (1, -(-offsets[-1] // chunk)) and before.dtype == dtype
        close(before[0, 0], states[0][0], device)
        for row in range(1, before.shape[1]):
            close(before[0, row], after(offsets, states, row * chunk), device)
    if x["track_seq_idx"] is None:
        assert tracked is None
        return
    assert tracked.dtype == dtype and tracked.shape[:2] == (1, len(x["track_end_locs"]))
    for row, (n, end) in enumerate(zip(x["track_seq_idx"].tolist(), x["track_end_locs"].tolist(), strict=True)):
        close(tracked[0, row], states[n][end - offsets[n]], device)


def rows_of(rng: torch.Generator, tokens: int) -> dict[str, Any]:
    """A batch of two rows, with z."""
    draw = lambda *sizes: torch.randn(*sizes, generator=rng)  # noqa: E731
    x = {name: draw(2, tokens, 4, 16).bfloat16() for name in ("x", "z", "out")}
    x |= {"B": draw(2, tokens, 2, 24).bfloat16(), "C": draw(2, tokens, 2, 24).bfloat16(), "dt": draw(2, tokens, 4)}
    return x | {"A": -draw(4).exp(), "D": draw(4), "dt_bias": draw(4), "dt_softplus": True, "chunk_size": 64}


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("intermediate", [False, True])
@pytest.mark.parametrize("initial", [False, True])
def test_sglang_rows(initial: bool, intermediate: bool, final: bool, sglang_mixer: Any, rng: torch.Generator) -> None:
    """Without packed prompts: last states in fp32, states before chunks in the dtype of C."""
    x = rows_of(rng, 100) | {"return_final_states": final, "return_intermediate_states": intermediate}
    if initial:
        x["initial_states"] = torch.randn(2, 4, 16, 24, generator=rng)
    found = getattr(sglang_mixer, SGLANG)(**x)
    packed = {name: x[name].flatten(0, 1) for name in ("x", "z", "B", "C", "dt")}
    outputs, states = prompts(x | packed | {"cu_seqlens": torch.tensor([0, 100, 200])})
    assert rel_rms(x["out"].flatten(0, 1), outputs) < OUTPUT
    before, last = found if intermediate and final else (found, None) if intermediate else (None, found)
    if final:
        assert last.dtype == torch.float32
        close(last, torch.stack([each[-1] for each in states]), "cpu")
    if intermediate:
        assert before.dtype == torch.bfloat16
        close(before, torch.stack([each[:100:64] for each in states]), "cpu")
    assert final or intermediate or found is None


def test_sglang_numbered_sequences_in_rows(sglang_mixer: Any, rng: torch.Generator) -> None:
    x = rows_of(rng, 60)
    x["seq_idx"] = torch.tensor([[0] * 25 + [1] * 35, [0] * 60]).int()
    last = getattr(sglang_mixer, SGLANG)(**x, return_final_states=True)
    packed = {name: x[name].flatten(0, 1) for name in ("x", "z", "B", "C", "dt")}
    outputs, states = prompts(x | packed | {"cu_seqlens": torch.tensor([0, 25, 60, 120])})
    assert rel_rms(x["out"].flatten(0, 1), outputs) < OUTPUT
    close(last, torch.stack([states[1][-1], states[2][-1]]), "cpu")


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"out": None}, "no output"),
        ({"cu_seqlens": None}, "packed prompts without offsets or numbers"),
        ({"seq_idx": None}, "packed prompts without offsets or numbers"),
        ({"return_final_states": True}, "packed prompts without offsets or numbers, or the state of the last chunk"),
        ({"return_varlen_states": False}, "no output, or tracked states of rows"),
        ({"state_dtype": torch.int8}, "ssd_scan: state_dtype: expected"),
        ({"track_end_locs": torch.tensor([202])}, "ssd_scan: boundaries: expected offsets that never decrease"),
    ],
)
def test_sglang_runs_other_calls_itself(change: dict[str, Any], reason: str, sglang_mixer: Any, rng: torch.Generator) -> None:
    call = next(each for each in SGLANG_CALLS if "off the grid" in each.name)
    x = arguments(call, rng, "cpu")
    x |= {"track_seq_idx": torch.tensor([2]), "track_end_locs": torch.tensor([199])} | change
    assert getattr(sglang_mixer, SGLANG)(**x) == "host"
    (found,) = integrations.calls()[f"sglang.{SGLANG}"]
    assert found.startswith(reason) and (x["out"] is None or x["out"].isnan().all())


@pytest.mark.parametrize("change", [{"initial_states": torch.zeros(2, 4, 16, 24)}, {"return_intermediate_states": True}])
def test_sglang_runs_numbered_sequences_with_states_itself(
    change: dict[str, Any], sglang_mixer: Any, rng: torch.Generator
) -> None:
    x = rows_of(rng, 60) | {"seq_idx": torch.zeros(2, 60).int()} | change
    assert getattr(sglang_mixer, SGLANG)(**x) == "host"


def test_sglang_deterministic_inference(sglang_mixer: Any, monkeypatch: pytest.MonkeyPatch, rng: torch.Generator) -> None:
    asked: list[bool] = []
    run = gdn_cuda.ssd_scan
    monkeypatch.setattr(gdn_cuda, "ssd_scan", lambda *args, **more: asked.append(more["deterministic"]) or run(*args, **more))
    for flag in (False, True):
        context: Any = ModuleType("sglang.srt.runtime_context")
        enabled = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=flag))
        context.get_exec = lambda enabled=enabled: enabled
        monkeypatch.setitem(sys.modules, context.__name__, context)
        getattr(sglang_mixer, SGLANG)(**arguments(SGLANG_CALLS[0], rng, "cpu"))
    assert asked == [False, True]
