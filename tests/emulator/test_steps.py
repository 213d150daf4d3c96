"""The kernels of the single steps in the emulator against their definitions in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import emulated
from guarded import bits
from step_cases import COMPLEX, REAL, check, close, draws, layer_inputs, simplified
from torch import Tensor

from gdn_cuda import selective_state_update, simplified_state_update
from gdn_cuda.scan.simplified_step import _inputs as simplified_inputs

STATES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]


def step(**x: Any) -> Tensor:
    """scan/selective_step and, where it applies, scan/selective_step_direct give the same bits. With 0 multiprocessors,
    heuristics choose as for many sequences."""
    written = [x[name] for name in ("state", "step_states", "out") if name in x]
    before, results = [y.clone() for y in written], []
    for multiprocessors, kernel in ((0, "scan/selective_step{"), (132, "scan/selective_step_direct{")):
        for y, old in zip(written, before, strict=True):
            y.copy_(old)
        with emulated(multiprocessors) as launched:
            out = selective_state_update(**x)
        assert all(each.startswith(kernel) for each in launched())
        results.append([bits(y) for y in (out, *written)])
        if not can_be_direct(x):
            break
    assert all(torch.equal(*both) for both in zip(results[0], results[-1], strict=True))
    return out


def can_be_direct(x: dict[str, Any]) -> bool:
    """One token of few sequences, states in whole 16-byte units, in place."""
    state, slots = x["state"], x.get("state_batch_indices")
    few, one_token = x["x"].shape[0] <= 40, x["x"].dim() < state.dim() or x["x"].shape[1] == 1
    units = (state.shape[-1] * state.itemsize | state.stride(0) * state.itemsize | state.data_ptr()) % 16 == 0
    return few and one_token and units and "step_states" not in x and (slots is None or slots.dim() == 1)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("N", [1, 7, 16, 100, 128, 255, 256])
def test_row_lengths(N: int, state: torch.dtype, seed: int) -> None:
    for more in ({"dim": 1}, {"dim": 9}, {"dim": 5, "tokens": 3}):
        check(draws(seed, N=N, state=state, **more), step)


@pytest.mark.parametrize("name, state", [*((n, s) for n in REAL for s in STATES[:3]), *((n, STATES[3]) for n in COMPLEX)])
def test_discretizations(name: str, state: torch.dtype, seed: int) -> None:
    """One step size for Ā and B̄, and two."""
    check(draws(seed, name, N=16, state=state, heads=4, groups=2), step)
    check(draws(seed, name, N=7, state=state, bare=True), step)
    check(draws(seed, name, N=16, state=state, bare=True, tokens=5), step)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("batch, N, groups", [(1, 16, None), (9, 24, None), (67, 7, None), (70, 16, 6), (300, 16, 6)])
def test_batches(batch: int, N: int, groups: int | None, state: torch.dtype, seed: int) -> None:
    """1 to 32 sequences per block, fewer in the last block; some sequences have no state."""
    x = draws(seed, batch=batch, dim=12, N=N, groups=groups, state=state, io=torch.bfloat16)
    x["state_batch_indices"] = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    if batch > 60:
        x["state_batch_indices"][[0, 9, 31, 60]] = torch.tensor([-1, batch, -(2**63), 2**40])
    check(x, step)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("N", [4, 16, 40, 64, 128, 256])
def test_blocks_of_many_sequences(N: int, state: torch.dtype, seed: int) -> None:
    for name in COMPLEX if state.is_complex else REAL:
        x = draws(seed, name, batch=40, dim=6, N=N, state=state, io=torch.bfloat16)
        if name == "mamba":
            del x["delta_a"]
        step(**x)


@pytest.mark.parametrize("N", [8, 24, 136])
@pytest.mark.parametrize("types", [(torch.float32, torch.bfloat16), (torch.float16, torch.float32), (torch.bfloat16,) * 2])
def test_columns(N: int, types: tuple[torch.dtype, torch.dtype], seed: int) -> None:
    """B and C of two dtypes, aligned to 16 bytes or not; one token of many sequences, and many tokens of one."""
    for state in STATES[:2]:
        for more in ({"batch": 67}, {"batch": 2, "tokens": 9}):
            x = draws(seed, dim=20, N=N, state=state, **more)
            for name, type_of, gap in zip("BC", types, (0, 8), strict=True):
                wide = torch.zeros(*x[name].shape[:-1], N + 16, dtype=type_of)
                x[name] = wide[..., gap : gap + N].copy_(x[name])
            check(x, step)
            x["C"] = torch.zeros(*x["C"].shape[:-1], N + 1, dtype=types[1])[..., :N].copy_(x["C"])
            check(x, step)


@pytest.mark.parametrize("gap", [0, 1, 4])
def test_strides(gap: int, seed: int) -> None:
    """Pools with gaps between slots, also gaps after which rows do not start on 16 bytes, and transposed rows."""
    plain = draws(seed, batch=5, heads=4, groups=2, slots=9)
    strided = {name: y.clone() if isinstance(y, Tensor) else y for name, y in plain.items()}
    pool = torch.full((9, 4 * 5 * 16 + gap), 7.0)
    strided["state"] = pool[:, : 4 * 5 * 16].view(9, 4, 5, 16).copy_(plain["state"])
    for name in ("x", "dt", "z", "B", "C", "A"):
        strided[name] = plain[name].mT.contiguous().mT
    slots = torch.tensor([[8, 0], [3, 0], [0, 0], [-1, 0], [5, 0]])[:, 0]
    check(strided | {"state_batch_indices": slots}, step)
    assert bool((pool[:, 4 * 5 * 16 :] == 7).all())


@pytest.mark.parametrize("tokens", [None, 3])
@pytest.mark.parametrize("N", [7, 16])
def test_hostile_slots(N: int, tokens: int | None, seed: int) -> None:
    """For slots past the pool the output is NaN, for negative ones 0, and no state is touched."""
    x = draws(seed, batch=10, slots=12, N=N, tokens=tokens)
    x["state_batch_indices"] = torch.tensor(HOSTILE * 2)
    x["state_batch_indices"][-1] = 2
    check(x, step)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("state", STATES)
def test_verify_in_slots(state: torch.dtype, index: torch.dtype, seed: int) -> None:
    for tokens in (1, 5):
        x = draws(seed, tokens=tokens, batch=5, slots=40, heads=2, state=state)
        slots = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[: 5 * tokens]
        x["state_batch_indices"] = slots.view(5, tokens).to(index)
        x["state_batch_indices"][2, tokens - 1] = -1  # not written
        x["state_batch_indices"][4] = -7
        x["num_accepted_tokens"] = torch.tensor([0, 1, min(tokens, 4), 1, 2**31 - 1]).to(index)
        check(x, step)


def test_hostile_accepted_counts(seed: int) -> None:
    x = draws(seed, tokens=2, batch=5, slots=10)
    x["state_batch_indices"] = torch.arange(10).view(5, 2)
    accepted = torch.tensor([-(2**63), 2**63 - 1, 2**32, 0, 1])
    expected = x | {"state": x["state"].clone(), "num_accepted_tokens": accepted.clamp(1, 2)}
    assert torch.equal(step(**x, num_accepted_tokens=accepted), step(**expected))
    assert torch.equal(x["state"], expected["state"])


@pytest.mark.parametrize("state", STATES[:3])
@pytest.mark.parametrize("N", [8, 16, 24, 56, 64, 128, 256])
def test_arguments_of_layers(N: int, state: torch.dtype, seed: int) -> None:
    for x in layer_inputs(seed, state, N):
        check(x, step)


@pytest.mark.parametrize("tokens", [1, 6])
def test_verify_in_step_states(tokens: int, seed: int) -> None:
    x = draws(seed, tokens=tokens, batch=5, slots=6, heads=2)
    steps = torch.full((5, tokens + 1, 2, 5, 16), 7.0)
    x |= {"step_states": steps, "step_slots": torch.tensor([4, -1, 0, 2**40, 2])}
    x["state_batch_indices"] = torch.tensor([5, 1, -1, 0, 2])
    before = x["state"].clone()
    check(x, step)
    assert torch.equal(x["state"], before) and bool((steps[:, tokens] == 7).all() & (steps[[0, 1, 3]] == 7).all())


@pytest.mark.parametrize("N", [7, 16, 128])
def test_several_tokens_equal_single_ones(N: int, seed: int) -> None:
    """The same bits."""
    for state in (torch.float32, torch.complex64):
        together, alone = (draws(seed, "zoh", tokens=4, batch=3, N=N, state=state) for _ in range(2))
        out = step(**together)
        rows = ("x", "dt", "z", "delta_a", "B", "C")
        for t in range(4):
            token = {name: y[:, t] if name in rows else y for name, y in alone.items()}
            assert torch.equal(step(**token), out[:, t])
        assert torch.equal(together["state"], alone["state"])


def test_values_that_are_not_finite_stay_in_their_rows(seed: int) -> None:
    for name in REAL:
        clean, spoilt = (draws(seed, name, batch=4, dim=37, bare=True) for _ in range(2))
        spoilt["x"][1, 2], spoilt["dt"][2, 3], spoilt["state"][3, 1, 4] = torch.nan, torch.inf, -torch.inf
        for mine, wanted in zip(*((step(**x), x["state"]) for x in (spoilt, clean)), strict=True):
            same = torch.ones(4, 37, dtype=torch.bool)
            same[1, 2] = same[2, 3] = same[3, 1] = False
            assert torch.equal(mine[same], wanted[same])


@pytest.mark.parametrize("name", ["bilinear", "zoh", "dirac"])
@pytest.mark.parametrize("conj_sym", [False, True])
def test_simplified(name: str, conj_sym: bool, seed: int) -> None:
    for P, H, B in ((7, 5, 3), (1, 1, 64), (64, 33, 5), (3, 4, 0), (0, 4, 2), (4, 0, 2)):
        x = simplified_inputs(B, seed, P, H) | {"discretization": name, "conj_sym": conj_sym}
        rng = torch.Generator().manual_seed(seed)
        D, delta_a = torch.randn(H, H, generator=rng), torch.rand(P, generator=rng)
        forms = ({}, {"D": D.diagonal()}, {"D": D.T, "delta_a": delta_a}, {"dt": delta_a, "A": x["A"][:, None]})
        for more in (*forms, {"x": torch.complex(x["x"], x["x"].flip(0)), "D": D}):
            given = x | more | {"state": x["state"].clone()}
            out, state = simplified(given)
            with emulated():
                found = simplified_state_update(**given)
            close(found, out, 4e-6)
            close(given["state"], state, 2e-6)
