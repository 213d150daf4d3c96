"""The step of engines' Mamba layers: recorded calls (engine_calls), through the class that has it as a method, against the
definition in fp64; and calls that the engine's own kernel runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import fake_hosts
import pytest
import torch
from engine_calls import Call, calls, identity, poison
from step_cases import OUT_BOUND, STATE_BOUND, close, selective

from gdn_cuda import integrations
from gdn_cuda.integrations import sglang, vllm

STEP = "selective_state_update"
VLLM = [each for each in calls("vllm") if each.call == STEP]
SGLANG = [each for each in calls("sglang") if each.call == STEP]


@pytest.fixture
def device() -> str:
    return "cpu"


def backend_of(integration: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An object of the fake class, as the engine makes it before or after `install`."""
    fake = fake_hosts.make(monkeypatch, integration.HOST)[integration._STEP_MODULE].TritonSSUBackend
    integrations.reset_calls()
    backend = fake()
    backend.reached = fake.__call__.reached
    integration.install()
    yield backend
    integration.uninstall()


@pytest.fixture
def vllm_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for backend in backend_of(vllm, monkeypatch):
        backend._mamba_config = SimpleNamespace(enable_stochastic_rounding=False)
        yield backend


@pytest.fixture
def sglang_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for backend in backend_of(sglang, monkeypatch):
        backend._enable_stochastic_rounding = False
        yield backend


def check(backend: Any, engine: str, given: dict[str, Any], ours: dict[str, Any], read: list[int]) -> None:
    """Calls the backend; `ours`: the same call for the definition; `read`: the slots that may be read."""
    poison(given["state"], read)
    given["out"].fill_(float("nan"))
    out, state, steps = selective({"state": given["state"], **ours})
    assert backend(**given) is None
    assert integrations.calls() == {f"{engine}.{STEP}": {"gdn_cuda": 1}} and not backend.reached
    bound = STATE_BOUND[given["state"].dtype]
    close(
        given["out"], out, max(OUT_BOUND[given["out"].dtype], bound if "parents" in ours else 0)
    )  # branches start from rounded states
    close(given["state"], state, bound)
    if steps is not None:
        close(given["intermediate_states_buffer"], steps, 2 * bound)


SAME = ("x", "dt", "A", "B", "C", "D", "dt_bias", "z", "dt_softplus")


@pytest.mark.parametrize("call", VLLM, ids=identity)
def test_vllm(call: Call, vllm_step: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    x.setdefault("dst_state_batch_indices", x["state_batch_indices"])
    accepted, offsets = x.get("num_accepted_tokens"), x.get("cu_seqlens")
    sequences = len(x["x"]) if offsets is None else len(offsets) - 1
    tables = {"state_batch_indices": x["state_batch_indices"], "write_indices": x["dst_state_batch_indices"]}
    for name, table in tables.items():
        tables[name] = table[:sequences] if accepted is not None or table.dim() == 1 else table[:sequences, 0]
    rows = tables["state_batch_indices"]
    columns = [0] * sequences if accepted is None else [max(int(count), 1) - 1 for count in accepted]
    read = [int(slots[column] if slots.dim() else slots) for slots, column in zip(rows, columns, strict=True)]
    ours = {name: x.get(name) for name in SAME} | tables
    ours |= {"null_slot": 0, "num_accepted_tokens": accepted, "cu_seqlens": offsets}
    check(vllm_step, "vllm", x, ours, [slot for slot in read if slot > 0])


@pytest.mark.parametrize("call", SGLANG, ids=identity)
def test_sglang(call: Call, sglang_step: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    ours = {name: x.get(name) for name in (*SAME, "state_batch_indices")}
    if "intermediate_states_buffer" in x:
        ours["step_states"] = x["intermediate_states_buffer"]
        ours["step_slots"] = x["intermediate_state_indices"][: len(x["x"])]
        if x["retrieve_parent_token"] is not None:
            ours["parents"] = x["retrieve_parent_token"]
    check(sglang_step, "sglang", x, ours, [slot for slot in x["state_batch_indices"].tolist() if slot >= 0])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_without_slots_every_request_is_computed(engine: str, request: pytest.FixtureRequest, rng: torch.Generator) -> None:
    """The first one too, whose state is in slot 0."""
    backend = request.getfixturevalue(f"{engine}_step")
    x = next(each for each in (VLLM if engine == "vllm" else SGLANG) if "state_batch_indices" in each.tensors).arguments(rng)
    x["state"] = x["state"][: len(x["x"])].contiguous()
    for name in ("state_batch_indices", "dst_state_batch_indices"):
        x.pop(name, None)
    x |= {"null_block_id": 0} if engine == "vllm" else {"pad_slot_id": 0}
    check(backend, engine, x, {name: x.get(name) for name in SAME}, list(range(len(x["x"]))))


def test_sglang_stores_drafts_and_the_last_state(sglang_step: Any, rng: torch.Generator) -> None:
    call = next(each for each in SGLANG if "drafts" in each.name)
    x = call.arguments(rng) | {"disable_state_update": False}
    ours = {name: x.get(name) for name in (*SAME, "state_batch_indices")} | {"write_indices": x["state_batch_indices"]}
    ours |= {"step_states": x["intermediate_states_buffer"], "step_slots": x["intermediate_state_indices"][:3]}
    check(sglang_step, "sglang", x, ours, [3, 8])


# ---- What the engine's own kernels run


def declined(backend: Any, engine: str, given: dict[str, Any], reason: str) -> None:
    before = given["state"].clone()
    assert backend(**given) == "host" and backend.reached == ["__call__"]
    (found,) = integrations.calls()[f"{engine}.{STEP}"]
    assert reason in found and torch.equal(given["state"], before)


def test_vllm_rounds_stochastically_itself(vllm_step: Any, rng: torch.Generator) -> None:
    vllm_step._mamba_config.enable_stochastic_rounding = True
    declined(vllm_step, "vllm", VLLM[0].arguments(rng), "stochastic rounding")


def test_vllm_runs_states_of_other_dtypes_itself(vllm_step: Any, rng: torch.Generator) -> None:
    x = VLLM[0].arguments(rng)
    x["state"] = torch.zeros(x["state"].shape, dtype=torch.uint8)
    declined(vllm_step, "vllm", x, "state: expected float32")


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"pad_slot_id": -7}, "another slot of padding"),
        ({"cache_steps": 2}, "a buffer of another number of drafts"),
        ({"intermediate_state_indices": None, "state_batch_indices": None}, "no rows for states of drafts"),
        ({"disable_state_update": False, "retrieve_parent_token": torch.zeros(3, 3).int()}, "write_indices: expected None"),
    ],
)
def test_sglang_runs_other_drafts_itself(change: dict[str, Any], reason: str, sglang_step: Any, rng: torch.Generator) -> None:
    x = next(each for each in SGLANG if "drafts" in each.name).arguments(rng)
    declined(sglang_step, "sglang", x | change, reason)


def test_sglang_rounds_stochastically_itself(sglang_step: Any, rng: torch.Generator) -> None:
    sglang_step._enable_stochastic_rounding = True
    declined(sglang_step, "sglang", SGLANG[0].arguments(rng), "stochastic rounding")
