"""FlashInfer's recurrent_kda by gdn_cuda.integrations.flashinfer, compared with the recurrence; and what it declines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from engine_calls import OUTPUT, STATE, channel_gates, l2norm, poison, prefill_state, recurrence, untouched
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.integrations import flashinfer as integration

H, HV, K = 2, 4, 16
OFFSETS = [0, 130, 130, 194, 199]


@pytest.fixture
def device() -> str:
    return "cpu"


def inputs(rng: torch.Generator, device: str, B: int, T: int, raw: bool = True, heads: int = H) -> dict[str, Any]:
    """Arguments with raw gates and logits, or computed ones. Gates have the parameters of query heads."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    x: dict[str, Any] = {"q": draw(B, T, heads, K), "k": draw(B, T, heads, K), "v": draw(B, T, HV, K), "g": draw(B, T, HV, K)}
    x = {name: y.bfloat16() for name, y in x.items()} | {"beta": draw(B, T, HV).bfloat16()}
    if raw:
        x |= {"A_log": draw(heads) / 4, "dt_bias": draw(heads * K)}
        x = {name: y.to(device) for name, y in x.items()}
        return x | {"use_gate_in_kernel": True, "beta_is_logit": True, "lower_bound": -5.0}
    x |= {"g": -x["g"].exp(), "beta": x["beta"].sigmoid()}
    return {name: y.to(device) for name, y in x.items()}


def expected(x: dict[str, Any], span: slice, row: int, start: Tensor) -> tuple[Tensor, Tensor]:
    g, beta = x["g"].double(), x["beta"].double()
    if "A_log" in x:
        groups = HV // x["q"].shape[2]
        A_log, bias = x["A_log"].repeat_interleave(groups), x["dt_bias"].view(-1, K).repeat_interleave(groups, 0)
        g, beta = channel_gates(x["g"], A_log, bias, x["lower_bound"]), beta.sigmoid()
    given = (y[row, span] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], g, beta))
    return recurrence(*given, start)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("heads", [H, HV])
def test_prefill_in_place(raw: bool, heads: int, device: str, rng: torch.Generator) -> None:
    x, states = inputs(rng, device, 1, OFFSETS[-1], raw, heads), torch.randn(4, HV, K, K, generator=rng).to(device)
    before, output = states.clone(), torch.empty_like(x["v"])
    offsets = torch.tensor(OFFSETS, device=device)
    found, last = integration.recurrent_kda(
        **x, initial_state=states, cu_seqlens=offsets, output=output, output_final_state=True
    )
    assert last is states and found.data_ptr() == output.data_ptr()
    for n, (start, end) in enumerate(pairwise(OFFSETS)):
        if start == end:
            assert torch.equal(states[n], before[n])
            continue
        wanted, after = expected(x, slice(start, end), 0, before[n])
        assert rel_rms(found[0, start:end], wanted) < OUTPUT
        assert rel_rms(states[n], after[-1]) < prefill_state(torch.float32, device)


def test_prefill_of_a_pool_with_checkpoints(device: str, rng: torch.Generator) -> None:
    """The states before every 64 tokens; the pool is bf16, and a sequence is padding."""
    x, pool = inputs(rng, device, 1, OFFSETS[-1]), torch.randn(7, HV, K, K, generator=rng).bfloat16().to(device)
    slots = [6, 2, -1, 0]
    poison(pool, [slot for slot in slots if slot >= 0])
    before, rows = pool.clone(), torch.full((5, HV, K, K), float("nan"), device=device)  # 3, 0, 1 and 1 of the sequences
    call = {"initial_state": pool, "cu_seqlens": torch.tensor(OFFSETS, device=device)}
    call |= {"ssm_state_indices": torch.tensor(slots, dtype=torch.int32, device=device), "state_checkpoints": rows}
    call |= {"checkpoint_cu_starts": torch.tensor([0, 3, 3, 4, 5], device=device), "checkpoint_every_n_tokens": 64}
    output, last, found = integration.recurrent_kda(**x, **call)
    assert last is None and found is rows and untouched(before, pool, [6, 0])
    assert not output[0, 130:194].any()
    for n, first in ((0, 0), (3, 4)):
        start, end = OFFSETS[n], OFFSETS[n + 1]
        wanted, after = expected(x, slice(start, end), 0, before[slots[n]])
        starts = torch.cat([before[slots[n]][None].double(), after])[: end - start : 64]
        assert rel_rms(output[0, start:end], wanted) < OUTPUT
        assert rel_rms(rows[first : first + len(starts)], starts) < prefill_state(torch.float32, device)
        assert rel_rms(pool[slots[n]], after[-1]) < 5e-3


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_a_token_of_every_sequence(raw: bool, packed: bool, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, *((1, 3) if packed else (3, 1)), raw)
    pool, slots = torch.randn(6, HV, K, K, generator=rng).to(device), [4, -1, 0]
    poison(pool, [4, 0])
    before, indices = pool.clone(), torch.tensor(slots, dtype=torch.int32, device=device)
    offsets = torch.arange(4, dtype=torch.int32, device=device) if packed else None
    call = {"initial_state": pool, "ssm_state_indices": indices, "cu_seqlens": offsets, "output_final_state": True}
    output, last = integration.recurrent_kda(**x, **call)
    assert torch.equal(last[[0, 2]], pool[[4, 0]]) and output.shape == x["v"].shape and untouched(before, pool, [4, 0])
    for n, slot in enumerate(slots):
        row, token = (0, n) if packed else (n, 0)
        if slot < 0:
            assert not output[row, token].any()
            continue
        wanted, after = expected(x, slice(token, token + 1), row, before[slot])
        assert rel_rms(output[row, token], wanted[0]) < OUTPUT
        assert rel_rms(pool[slot], after[-1]) < STATE[torch.float32]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(("table", "packed"), [(False, False), (True, False), (True, True)])
def test_drafts(table: bool, packed: bool, raw: bool, device: str, rng: torch.Generator) -> None:
    """A slot for the state after each token; without a table, which packed drafts have, those of a sequence follow each
    other."""
    x = inputs(rng, device, *((1, 6) if packed else (2, 3)), raw)
    if not raw:
        x["beta"] = 2 * x["beta"].float()
        x["beta"][0, :3] = torch.tensor([0.0, 1.0, 2.0], device=device)[:, None]
    slots = [[5, 1, 3], [0, 6, 2]] if table else [[0, 1, 2], [3, 4, 5]]
    pool, accepted = torch.randn(7, HV, K, K, generator=rng).to(device), [2, 1] if table else [1, 1]
    before = pool.clone()
    call: dict[str, Any] = {"initial_state": pool, "num_spec_tokens": 2}
    if table:
        call["ssm_state_indices"] = torch.tensor(slots, dtype=torch.int32, device=device)
        call["num_accepted_tokens"] = torch.tensor(accepted, dtype=torch.int32, device=device)
    if packed:
        call |= {"cu_seqlens": torch.tensor([0, 3, 6], dtype=torch.int32, device=device), "output": torch.empty_like(x["v"])}
    output, last = integration.recurrent_kda(**x, **call, output_final_state=not packed)
    assert output.shape == x["v"].shape and (last is None if packed else last is pool)
    for n in range(2):
        row, span = (0, slice(3 * n, 3 * n + 3)) if packed else (n, slice(None))
        wanted, after = expected(x, span, row, before[slots[n][accepted[n] - 1]])
        assert rel_rms(output[row, span], wanted) < OUTPUT and rel_rms(pool[slots[n]], after) < STATE[torch.float32]


def test_the_older_function(device: str, rng: torch.Generator) -> None:
    x, pool = inputs(rng, device, 2, 1), torch.randn(2, HV, K, K, generator=rng).to(device)
    again = pool.clone()
    expected = integration.recurrent_kda(**x, initial_state=pool, output_final_state=True)[0]
    found, last = integration.flashinfer_kda.recurrent_kda_of_decode(**x, initial_state=again, output_final_state=True)
    assert torch.equal(found, expected) and last is again and torch.equal(again, pool)
    with pytest.raises(ValueError, match="backend cake"):
        integration.flashinfer_kda.recurrent_kda_of_decode(**x, initial_state=again, backend="cake")


def test_states_that_are_only_read(device: str, rng: torch.Generator) -> None:
    x, pool = inputs(rng, device, 2, 3), torch.randn(5, HV, K, K, generator=rng).bfloat16().to(device)
    before, slots = pool.clone(), torch.tensor([3, 1], dtype=torch.int32, device=device)
    for call in (
        {"initial_state": pool, "ssm_state_indices": slots},
        {"initial_state_source": pool, "initial_state_indices": slots},
    ):
        output, last = integration.recurrent_kda(**x, **call, disable_state_update=True)
        assert last is None and torch.equal(pool, before)
        for n, slot in enumerate(slots.tolist()):
            assert rel_rms(output[n], expected(x, slice(None), n, before[slot])[0]) < OUTPUT


def test_no_state(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, 2, 70)
    output, last = integration.recurrent_kda(**x)
    assert last is None
    for n in range(2):
        wanted, _ = expected(x, slice(None), n, torch.zeros(HV, K, K, device=device))
        assert rel_rms(output[n], wanted) < OUTPUT


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"backend": "cudnn"}, "backend cudnn"),
        ({"correction_cache": torch.zeros(1)}, "caches of a verify are given"),
        ({"num_spec_tokens": 2}, "drafts without a pool"),
        ({"initial_state_source": torch.zeros(1)}, "initial_state_source or num_accepted_tokens is given"),
        ({"output_final_state": True}, "a final state without an initial state"),
        ({"checkpoint_every_n_tokens": 64}, "checkpoints without a tensor for them"),
        ({"use_gate_in_kernel": True, "A_log": None}, "use_gate_in_kernel is given without A_log"),
        ({"lower_bound": 1.0}, "chunked_forward: lower_bound: expected"),
    ],
)
def test_declined(change: dict[str, Any], reason: str, rng: torch.Generator) -> None:
    with pytest.raises(ValueError, match=reason):
        integration.recurrent_kda(**(inputs(rng, "cpu", 2, 3) | change))
