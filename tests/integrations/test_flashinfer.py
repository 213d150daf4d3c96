"""The functions of gdn_cuda.integrations.flashinfer, compared with the recurrence in fp64, and installed in FlashInfer's
place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import fake_hosts
import pytest
import torch
from engine_calls import OUTPUT, gates, l2norm, prefill_state, recurrence, untouched
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import integrations
from gdn_cuda.integrations import Refused
from gdn_cuda.integrations import flashinfer as integration

H, HV, K, V = 2, 4, 16, 24
STATE = 1e-5  # the error of decode's states
OFFSETS = [0, 130, 130, 194, 199]


@pytest.fixture
def device() -> str:
    return "cpu"


def prompts(rng: torch.Generator, device: str = "cpu", heads: tuple[int, int, int] | None = None) -> dict[str, Any]:
    """Arguments of a prefill. `heads`: those of q, k and v; default: values with more heads than queries and keys."""
    T = OFFSETS[-1]
    sizes = [(name, own, size) for (name, _, size), own in zip(_SIZES, heads or (H, H, HV), strict=True)]
    x: dict[str, Any] = {name: torch.randn(T, own, size, generator=rng).bfloat16() for name, own, size in sizes}
    x["g"], x["beta"] = torch.rand(T, HV, generator=rng), torch.rand(T, HV, generator=rng)
    x["g"][20] = 0  # a reset
    x["cu_seqlens"] = torch.tensor(OFFSETS)
    return {name: y.to(device) for name, y in x.items()} | {"use_qk_l2norm_in_kernel": True, "output_final_state": True}


_SIZES = (("q", H, K), ("k", H, K), ("v", HV, V))


def check_prompts(x: dict[str, Any], start: Tensor, output: Tensor, final: Tensor) -> list[Tensor]:
    """Compares with the recurrence; returns the states after every token."""
    every = []
    for n, (first, end) in enumerate(pairwise(OFFSETS)):
        given = (y[first:end] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], x["g"].double().log(), x["beta"]))
        expected, states = recurrence(*given, start[n])
        every.append(states)
        if first < end:
            assert rel_rms(output[first:end], expected) < OUTPUT
        assert rel_rms(final[n], states[-1] if first < end else start[n]) < prefill_state(torch.float32, output.device.type)
    return every


def test_prefill_of_decays(device: str, rng: torch.Generator) -> None:
    x, start = prompts(rng, device), torch.randn(4, HV, V, K, generator=rng).to(device)
    output, final = integration.chunk_gated_delta_rule(**x, initial_state=start)
    assert final.dtype == torch.float32
    check_prompts(x, start, output, final)
    assert torch.equal(integration.chunk_gated_delta_rule(**x | {"output_final_state": False}, initial_state=start), output)


def test_prefill_of_grouped_queries(device: str, rng: torch.Generator) -> None:
    """More heads of q than of k and v; gates, states and outputs have those of q."""
    x, start = prompts(rng, device, (HV, 2, 2)), torch.randn(4, HV, V, K, generator=rng).to(device)
    output, final = integration.chunk_gated_delta_rule(**x, initial_state=start)
    assert output.shape == (OFFSETS[-1], HV, V)
    check_prompts(x, start, output, final)


def test_prefill_into_the_callers_tensors(device: str, rng: torch.Generator) -> None:
    x, start = prompts(rng, device), torch.randn(4, HV, V, K, generator=rng).to(device)
    given: dict[str, Any] = {
        "output": torch.full((OFFSETS[-1], HV, V), float("nan"), dtype=torch.bfloat16),
        "output_state": torch.full((4, HV, V, K), float("nan")),
        "state_checkpoints": torch.full((3, HV, V, K), float("nan")),
        "checkpoint_cu_starts": torch.tensor([0, 2, 2, 3, 3]),
    }
    given = {name: y.to(device) for name, y in given.items()} | {"checkpoint_every_n_tokens": 64}
    output, final = integration.chunk_gated_delta_rule(**x, initial_state=start, **given)
    assert output is given["output"] and final is given["output_state"]
    every = check_prompts(x, start, output, final)
    expected = torch.stack([every[0][63], every[0][127], every[2][63]])
    assert rel_rms(given["state_checkpoints"], expected) < prefill_state(torch.float32, device)


def test_prefill_of_states_in_place(device: str, rng: torch.Generator) -> None:
    x, states = prompts(rng, device), torch.randn(4, HV, V, K, generator=rng).to(device)
    start = states.clone()
    output, final = integration.chunk_gated_delta_rule(**x, initial_state=states, output_state=states)
    assert final is states
    check_prompts(x, start, output, final)


def test_prefill_of_a_pool(device: str, rng: torch.Generator) -> None:
    x, pool = prompts(rng, device), torch.randn(9, HV, V, K, generator=rng).to(device)
    slots = torch.tensor([3, 0, 8, 5], device=device)
    before = pool.clone()
    alone = {"initial_state": pool, "state_indices": slots, "output_final_state": False}
    output = integration.chunk_gated_delta_rule(**x | alone)
    assert torch.equal(pool, before)
    again, final = integration.chunk_gated_delta_rule(**x, initial_state=pool, output_state=pool, state_indices=slots)
    assert final is pool and torch.equal(again, output) and untouched(before, pool, [3, 8, 5])
    check_prompts(x, before[slots], output, pool[slots])


def test_no_decays_no_betas(device: str, rng: torch.Generator) -> None:
    x = prompts(rng, device)
    zeros = torch.zeros(4, HV, V, K, device=device)
    x["g"], x["beta"] = (torch.ones(OFFSETS[-1], HV, device=device) for _ in range(2))
    output, final = integration.chunk_gated_delta_rule(**x | {"g": None, "beta": None})
    check_prompts(x, zeros, output, final)


def test_decays_above_one_are_refused(rng: torch.Generator) -> None:
    x = prompts(rng)
    x["g"][3, 1] = 1.5
    with pytest.raises(ValueError, match=r"g: expected decays of at most 1, got 1\.5"):
        integration.chunk_gated_delta_rule(**x)


# ---- Decode


def step(rng: torch.Generator, B: int, T: int, device: str = "cpu") -> dict[str, Any]:
    x: dict[str, Any] = {name: torch.randn(B, T, heads, size, generator=rng).bfloat16() for name, heads, size in _SIZES}
    x |= {name: torch.randn(B, T, HV, generator=rng).bfloat16() for name in "ab"}
    x |= {"A_log": torch.randn(HV, generator=rng) / 4, "dt_bias": torch.randn(HV, generator=rng)}
    return {name: y.to(device) for name, y in x.items()}


def expected_step(x: dict[str, Any], n: int, start: Tensor) -> tuple[Tensor, Tensor]:
    g, beta = gates(x)
    return recurrence(l2norm(x["q"][n]), l2norm(x["k"][n]), x["v"][n], g[n], beta[n], start)


def test_decode_of_a_batch(device: str, rng: torch.Generator) -> None:
    x, state = step(rng, 3, 1, device), torch.randn(3, HV, V, K, generator=rng).to(device)
    before = state.clone()
    output, after = integration.gated_delta_rule_decode_pretranspose(**x, state=state)
    assert after is state
    for n in range(3):
        expected, states = expected_step(x, n, before[n])
        assert rel_rms(output[n], expected) < OUTPUT and rel_rms(state[n], states[-1]) < STATE


def test_decode_of_states_with_keys_first(device: str, rng: torch.Generator) -> None:
    """States (B, HV, K, V) are updated in place."""
    x, state = step(rng, 3, 1, device), torch.randn(3, HV, K, V, generator=rng).to(device)
    before = state.mT.clone()
    output, after = integration.gated_delta_rule_decode(**x, state=state, scale=0.3, use_qk_l2norm=False)
    assert after is state
    for n in range(3):
        g, beta = gates(x)
        expected, states = recurrence(x["q"][n], x["k"][n], x["v"][n], g[n], beta[n], before[n], 0.3)
        assert rel_rms(output[n], expected) < OUTPUT and rel_rms(state.mT[n], states[-1]) < STATE


@pytest.mark.parametrize("name", ["gated_delta_rule_decode_pretranspose", "gated_delta_rule_mtp"])
@pytest.mark.parametrize("steps", [False, True])
def test_decode_of_a_pool(name: str, steps: bool, device: str, rng: torch.Generator) -> None:
    """A batch with a padding row; states after every token go to the buffer, and the pool is unchanged."""
    x, pool = step(rng, 3, 2, device), torch.randn(6, HV, V, K, generator=rng).to(device)
    slots = torch.tensor([4, -1, 1], device=device)
    before, buffer = pool.clone(), torch.full((3, 3, HV, V, K), float("nan"), device=device)
    x |= {"initial_state": pool, "initial_state_indices": slots, "disable_state_update": steps}
    x |= {"state": None} if "pretranspose" in name else {}
    x["output"] = torch.full((3, 2, HV, V), float("nan"), dtype=torch.bfloat16, device=device)
    output, after = getattr(integration, name)(**x, intermediate_states_buffer=buffer if steps else None)
    assert output is x["output"] and after is pool and not output[1].any()
    assert untouched(before, pool, [] if steps else [4, 1]) and buffer[1].isnan().all()
    for n, slot in ((0, 4), (2, 1)):
        expected, states = expected_step(x, n, before[slot])
        assert rel_rms(output[n], expected) < OUTPUT
        if steps:
            assert rel_rms(buffer[n, :2], states) < STATE and buffer[n, 2:].isnan().all()
        else:
            assert rel_rms(pool[slot], states[-1]) < STATE


@pytest.mark.parametrize("name", ["gated_delta_rule_decode_pretranspose", "gated_delta_rule_mtp", "states of a batch"])
@pytest.mark.parametrize("others", [False, True])
def test_decode_to_a_buffer_and_to_the_pool(name: str, others: bool, device: str, rng: torch.Generator) -> None:
    """States after every token go to the buffer, and the last one to its slot or to another one, except for a padding row."""
    x, pool = step(rng, 3, 2, device), torch.randn(6, HV, V, K, generator=rng).to(device)
    read, written = [4, -1, 1], [0, 5, -1] if others else [4, -1, 1]
    before, buffer = pool.clone(), torch.full((3, 3, HV, V, K), float("nan"), device=device)
    x |= {"intermediate_states_buffer": buffer, "disable_state_update": False}
    if name == "states of a batch":
        name, read, written = "gated_delta_rule_decode_pretranspose", [0, 1, 2], [0, 5, -1] if others else [0, 1, 2]
        x["state"] = pool[:3] if not others else pool
    else:
        x |= {"initial_state": pool, "initial_state_indices": torch.tensor(read, device=device)}
        x |= {"state": None} if "pretranspose" in name else {}
    x["output_state_indices"] = torch.tensor(written, device=device) if others else None
    output, _ = getattr(integration, name)(**x)
    active = [n for n, slot in enumerate(read) if slot >= 0]
    assert untouched(before, pool, [written[n] for n in active if written[n] >= 0])
    for n in range(3):
        if n not in active:
            assert not output[n].any() and buffer[n].isnan().all()
            continue
        expected, states = expected_step(x, n, before[read[n]])
        assert rel_rms(output[n], expected) < OUTPUT and rel_rms(buffer[n, :2], states) < STATE
        if written[n] >= 0:
            assert rel_rms(pool[written[n]], states[-1]) < STATE


@pytest.mark.parametrize("name", ["gated_delta_rule_decode_pretranspose", "gated_delta_rule_mtp"])
def test_decode_from_slots_to_others_and_to_none(name: str, device: str, rng: torch.Generator) -> None:
    x, pool = step(rng, 2, 2, device), torch.randn(6, HV, V, K, generator=rng).to(device)
    before, given = pool.clone(), {"initial_state": pool, "initial_state_indices": torch.tensor([4, 1], device=device)}
    given |= {"state": None} if "pretranspose" in name else {}
    output, _ = getattr(integration, name)(**x, **given, disable_state_update=True)
    assert torch.equal(pool, before)
    to = torch.tensor([0, 5], device=device)
    again, _ = getattr(integration, name)(**x, **given, disable_state_update=False, output_state_indices=to)
    assert torch.equal(again, output) and untouched(before, pool, [0, 5])
    for n, (slot, written) in enumerate(((4, 0), (1, 5))):
        expected, states = expected_step(x, n, before[slot])
        assert rel_rms(output[n], expected) < OUTPUT and rel_rms(pool[written], states[-1]) < STATE


@pytest.mark.parametrize("name", ["gated_delta_rule_decode_pretranspose", "gated_delta_rule_mtp"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_states_of_every_step_and_the_last_one_to_the_pool(
    name: str, elsewhere: bool, device: str, rng: torch.Generator
) -> None:
    x, pool = step(rng, 3, 2, device), torch.randn(6, HV, V, K, generator=rng).to(device)
    slots, to = torch.tensor([4, -1, 1], device=device), torch.tensor([0, 2, 5], device=device)
    before, buffer = pool.clone(), torch.full((3, 2, HV, V, K), float("nan"), device=device)
    x |= {"initial_state": pool, "initial_state_indices": slots, "intermediate_states_buffer": buffer}
    x |= {"state": None} if "pretranspose" in name else {}
    x |= {"output_state_indices": to} if elsewhere else {}
    output, _ = getattr(integration, name)(**x, disable_state_update=False)
    assert untouched(before, pool, [0, 5] if elsewhere else [4, 1]) and buffer[1].isnan().all()
    for n, slot in ((0, 4), (2, 1)):
        expected, states = expected_step(x, n, before[slot])
        assert rel_rms(output[n], expected) < OUTPUT and rel_rms(buffer[n], states) < STATE
        assert torch.equal(pool[to[n] if elsewhere else slot], buffer[n, 1])


def test_states_of_every_step_and_the_last_one_without_slots(device: str, rng: torch.Generator) -> None:
    x, states = step(rng, 3, 2, device), torch.randn(3, HV, V, K, generator=rng).to(device)
    before, buffer = states.clone(), torch.full((3, 2, HV, V, K), float("nan"), device=device)
    integration.gated_delta_rule_decode_pretranspose(**x, state=states, intermediate_states_buffer=buffer)
    for n in range(3):
        assert rel_rms(states[n], expected_step(x, n, before[n])[1][-1]) < STATE and torch.equal(states[n], buffer[n, 1])


# ---- In place of FlashInfer's functions


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """FlashInfer with functions of these signatures."""
    modules = fake_hosts.make(monkeypatch, integration.HOST)
    root = sys.modules["flashinfer"]
    for target in integration.HOST.targets:
        module, _, name = target.partition(":")
        setattr(root, name, getattr(modules[module], name))
    integrations.reset_calls()
    yield root
    integration.uninstall()


def test_install_and_uninstall(host: Any, rng: torch.Generator) -> None:
    before = dict(vars(host))
    replaced = integration.install()
    assert len(replaced) == 13 and integration.install() == replaced
    assert host.chunk_gated_delta_rule(**prompts(rng) | {"output_final_state": False}).shape == (OFFSETS[-1], HV, V)
    assert integrations.calls() == {"flashinfer.chunk_gated_delta_rule": {"gdn_cuda": 1}}
    integration.uninstall()
    assert vars(host) == before


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("chunk_gated_delta_rule", {"backend": "cudnn"}, "backend cudnn"),
        ("chunk_gated_delta_rule", {"cu_seqlens": None}, "no cu_seqlens"),
        ("gated_delta_rule_mtp", {"cache_replayssm": True}, "ReplaySSM"),
        ("gated_delta_rule_mtp", {"ssm_state_indices": torch.zeros(2, 2)}, "ssm_state_indices is given"),
    ],
)
def test_declined_calls_reach_flashinfer(name: str, more: dict[str, Any], reason: str, host: Any, rng: torch.Generator) -> None:
    integration.install()
    pool = {"initial_state": torch.zeros(2, HV, V, K), "initial_state_indices": torch.arange(2)}
    x = prompts(rng) if name == "chunk_gated_delta_rule" else step(rng, 2, 2) | pool
    assert getattr(host, name)(**x | more) == "host"
    assert integrations.calls() == {f"flashinfer.{name}": {reason: 1}}


def test_a_changed_function_is_refused(host: Any) -> None:
    sys.modules["flashinfer.gdn_decode"].gated_delta_rule_mtp = lambda q: None  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=r"gated_delta_rule_mtp: expected \(q, k, .*\), got \(q\)"):
        integration.install()
    assert not integration._replaced.names()
