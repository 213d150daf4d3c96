"""The kernels of scans' steps against their definitions in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from devices import Device
from guarded import bits
from step_cases import (
    COMPLEX,
    INVALID_PARENTS,
    REAL,
    check,
    check_resets,
    close,
    draws,
    layer_inputs,
    packed_draws,
    random_parents,
    simplified,
)
from torch import Tensor

from gdn_cuda import selective_state_update, simplified_state_update
from gdn_cuda.scan.simplified_step import _inputs as simplified_inputs

STATES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]
EVERY_STATE = pytest.mark.parametrize("state", STATES)


def step_on(device: Device) -> Callable[..., Tensor]:
    """selective_state_update. In the emulator by scan/selective_step or scan/selective_step_tied and, where it applies, by
    scan/selective_step_direct, which give the same bits: with 0 multiprocessors, heuristics choose as for many sequences."""

    def step(**x: Any) -> Tensor:
        if not device.emulate:
            return selective_state_update(**x)
        if _is_by_tokens(x):
            with device.only("scan/selective_step_tokens"):
                return selective_state_update(**x)
        written = [x[name] for name in ("state", "step_states", "out") if name in x]
        before, results = [y.clone() for y in written], []
        many = "scan/selective_step_tied" if _is_tied(x) else "scan/selective_step"
        for multiprocessors, kernel in ((0, many), (132, "scan/selective_step_direct")):
            for y, old in zip(written, before, strict=True):
                y.copy_(old)
            with device.only(kernel, multiprocessors=multiprocessors):
                out = selective_state_update(**x)
            results.append([bits(y) for y in (out, *written)])
            if not _can_be_direct(x):
                break
        assert all(torch.equal(*both) for both in zip(results[0], results[-1], strict=True))
        return out

    return step


def _is_by_tokens(x: dict[str, Any]) -> bool:
    """Packed or in a tree, or with the last state beside others."""
    return "cu_seqlens" in x or "parents" in x or ("step_states" in x and "write_indices" in x)


def _can_be_direct(x: dict[str, Any]) -> bool:
    """One token of few sequences, states in whole 16-byte units, in place."""
    state, slots = x["state"], x.get("state_batch_indices")
    few, one_token = x["x"].shape[0] <= 40, x["x"].dim() < state.dim() or x["x"].shape[1] == 1
    units = (state.shape[-1] * state.itemsize | state.stride(0) * state.itemsize | state.data_ptr()) % 16 == 0
    return few and one_token and units and "step_states" not in x and (slots is None or slots.dim() == 1)


def _is_tied(x: dict[str, Any]) -> bool:
    """One token, one value of A a row, rows of 64, 128 or 256 states in whole 16-byte units, and more of them in a group than
    the threads of a block compute at once."""
    state, A, N = x["state"], x["A"], x["state"].shape[-1]
    steps = [state, x["step_states"]] if "step_states" in x else [state]
    if x["x"].dim() == state.dim() and x["x"].shape[1] != 1:
        return False
    grouped = x["x"].dim() - state.dim() + 4  # dimensions
    groups = max(x[name].shape[-2] if x[name].dim() == grouped else 1 for name in "BC")
    one_value = A.dim() == 1 or A.stride(-1) == 0
    units = all((y.stride(0) * y.itemsize | y.data_ptr()) % 16 == 0 for y in steps)
    by_step = 128 * (8 if state.itemsize == 2 and N == 64 else 16) // N
    rows = state[0, ..., 0].numel() // groups
    known = x.get("discretization", "mamba") in ("mamba", "dirac") and not state.is_complex()
    return N in (64, 128, 256) and known and one_value and units and rows > by_step


@pytest.fixture
def step(device: Device) -> Callable[..., Tensor]:
    return step_on(device)


@pytest.fixture
def drawn(device: Device) -> Callable[..., dict[str, Any]]:
    return lambda seed, *name, **form: draws(seed, *name, device=device.name, **form)


@pytest.fixture
def on(device: Device) -> Callable[..., Tensor]:
    """A tensor of integers."""
    return lambda values: torch.tensor(values, device=device.name)


@EVERY_STATE
@pytest.mark.parametrize("N", [1, 2, 7, 8, 16, 24, 33, 64, 100, 128, 136, 200, 255, 256])
def test_row_lengths(N: int, state: torch.dtype, drawn: Any, step: Any, device: Device, seed: int) -> None:
    for dim, tokens in device.size(((1, None), (9, None), (5, 3)), ((1, None), (37, None), (1, 5), (37, 5))):
        check(drawn(seed, N=N, state=state, dim=dim, tokens=tokens), step)


@pytest.mark.parametrize("N", [7, 16, 128])
@pytest.mark.parametrize("name, state", [*((n, s) for n in REAL for s in STATES[:3]), *((n, STATES[3]) for n in COMPLEX)])
def test_discretizations(name: str, state: torch.dtype, N: int, drawn: Any, step: Any, device: Device, seed: int) -> None:
    """One step size for Ā and B̄, and two."""
    check(drawn(seed, name, N=N, state=state, heads=4, groups=2), step)
    check(drawn(seed, name, N=N, state=state, bare=True), step)
    check(drawn(seed, name, N=N, state=state, bare=True, tokens=device.size(5, 9)), step)


@EVERY_STATE
@pytest.mark.parametrize("batch, N, groups", [(1, 16, None), (9, 24, None), (67, 7, None), (70, 16, 6), (300, 16, 6)])
def test_batches(batch: int, N: int, groups: int | None, state: torch.dtype, drawn: Any, step: Any, on: Any, seed: int) -> None:
    """1 to 32 sequences per block, fewer in the last block; some sequences have no state."""
    x = drawn(seed, batch=batch, dim=12, N=N, groups=groups, state=state, io=torch.bfloat16)
    slots = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    if batch > 60:
        slots[[0, 9, 31, 60]] = torch.tensor([-1, batch, -(2**63), 2**40])
    x["state_batch_indices"] = on(slots.tolist())
    check(x, step)


@pytest.mark.parametrize("N", [8, 24, 136])
@pytest.mark.parametrize("types", [(torch.float32, torch.bfloat16), (torch.float16, torch.float32), (torch.bfloat16,) * 2])
def test_columns(N: int, types: tuple[torch.dtype, torch.dtype], drawn: Any, step: Any, device: Device, seed: int) -> None:
    """B and C of two dtypes, aligned to 16 bytes or not; one token of many sequences, and many tokens of one."""
    for state in STATES[:2]:
        for more in ({"batch": 67}, {"batch": 2, "tokens": 9}):
            x = drawn(seed, dim=20, N=N, state=state, **more)
            for name, type_of, gap in zip("BC", types, (0, 8), strict=True):
                wide = torch.zeros(*x[name].shape[:-1], N + 16, dtype=type_of, device=device.name)
                x[name] = wide[..., gap : gap + N].copy_(x[name])
            check(x, step)
            wide = torch.zeros(*x["C"].shape[:-1], N + 1, dtype=types[1], device=device.name)
            x["C"] = wide[..., :N].copy_(x["C"])
            check(x, step)


@pytest.mark.parametrize("gap", [0, 1, 4])
def test_strides(gap: int, drawn: Any, step: Any, on: Any, device: Device, seed: int) -> None:
    """Pools with gaps between slots, also gaps after which rows do not start on 16 bytes, and transposed rows."""
    plain = drawn(seed, batch=5, heads=4, groups=2, slots=9)
    strided = {name: y.clone() if isinstance(y, Tensor) else y for name, y in plain.items()}
    pool = torch.full((9, 4 * 5 * 16 + gap), 7.0, device=device.name)
    strided["state"] = pool[:, : 4 * 5 * 16].view(9, 4, 5, 16).copy_(plain["state"])
    for name in ("x", "dt", "z", "B", "C", "A"):
        strided[name] = plain[name].mT.contiguous().mT
    slots = on([[8, 0], [3, 0], [0, 0], [-1, 0], [5, 0]])[:, 0]
    check(strided | {"state_batch_indices": slots}, step)
    assert bool((pool[:, 4 * 5 * 16 :] == 7).all())


@pytest.mark.parametrize("tokens", [None, 3])
@pytest.mark.parametrize("N", [7, 16])
def test_hostile_slots(N: int, tokens: int | None, drawn: Any, step: Any, on: Any, seed: int) -> None:
    """For slots past the pool the output is NaN, for negative ones 0, and no state is touched."""
    x = drawn(seed, batch=10, slots=12, N=N, tokens=tokens)
    x["state_batch_indices"] = on(HOSTILE * 2)
    x["state_batch_indices"][-1] = 2
    out = check(x, step)
    assert out[0].isnan().all() and out[2].isnan().all() and not out[1].any() and not out[3].any()


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@EVERY_STATE
def test_verify_in_slots(state: torch.dtype, index: torch.dtype, drawn: Any, step: Any, on: Any, seed: int) -> None:
    for tokens in (1, 5):
        x = drawn(seed, tokens=tokens, batch=5, slots=40, heads=2, state=state)
        slots = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[: 5 * tokens]
        slots = slots.view(5, tokens)
        slots[2, tokens - 1] = -1  # not written
        slots[4] = -7
        x["state_batch_indices"] = on(slots.tolist()).to(index)
        x["num_accepted_tokens"] = on([0, 1, min(tokens, 4), 1, 2**31 - 1]).to(index)
        check(x, step)


def test_hostile_accepted_counts(drawn: Any, step: Any, on: Any, seed: int) -> None:
    x = drawn(seed, tokens=2, batch=5, slots=10)
    x["state_batch_indices"] = on(list(range(10))).view(5, 2)
    accepted = on([-(2**63), 2**63 - 1, 2**32, 0, 1])
    expected = x | {"state": x["state"].clone(), "num_accepted_tokens": accepted.clamp(1, 2)}
    assert torch.equal(step(**x, num_accepted_tokens=accepted), step(**expected))
    assert torch.equal(x["state"], expected["state"])


@pytest.mark.parametrize("state", STATES[:3])
@pytest.mark.parametrize("N", [8, 16, 24, 56, 64, 128, 256])
def test_arguments_of_layers(N: int, state: torch.dtype, step: Any, device: Device, seed: int) -> None:
    for x in layer_inputs(seed, state, N, device.name):
        check(x, step)


@pytest.mark.parametrize("tokens", [1, 4, 6])
def test_verify_in_step_states(tokens: int, drawn: Any, step: Any, on: Any, device: Device, seed: int) -> None:
    x = drawn(seed, tokens=tokens, batch=5, slots=6, heads=2)
    steps = torch.full((5, tokens + 1, 2, 5, 16), 7.0, device=device.name)
    x |= {"step_states": steps, "step_slots": on([4, -1, 0, 2**40, 2])}
    x["state_batch_indices"] = on([5, 1, -1, 0, 2])
    before = x["state"].clone()
    check(x, step)
    assert torch.equal(x["state"], before) and bool((steps[:, tokens] == 7).all() & (steps[[0, 1, 3]] == 7).all())


@pytest.mark.parametrize("tokens", [None, 3])
@pytest.mark.parametrize("N", [7, 16, 128])
def test_other_slots_and_none(N: int, tokens: int | None, drawn: Any, step: Any, on: Any, device: Device, seed: int) -> None:
    """Slots to write, of which some are invalid, are not read. Slot 3 is padding."""
    for state in STATES:
        x = drawn(seed, tokens=tokens, batch=7, slots=14, N=N, state=state, heads=2)
        x |= {"state_batch_indices": on([6, -1, 3, 0, 5, 2, 4]), "null_slot": 3}
        before = x["state"].clone()
        check(x | {"update_state": False}, step)
        assert torch.equal(x["state"], before)
        x["write_indices"] = on([8, 1, 9, 3, 2**40, -(2**63), 4])
        check(x, step)
        written = torch.zeros(14, dtype=torch.bool)
        written[[8, 4]] = True
        assert torch.equal(x["state"][~written], before[~written])


def test_verify_in_other_slots(drawn: Any, step: Any, on: Any, device: Device, seed: int) -> None:
    for N in (7, 16):
        x = drawn(seed, tokens=3, batch=3, slots=20, N=N)
        x["state_batch_indices"] = on([[6, 5, 4], [0, 1, 2], [9, 8, 7]])
        x |= {"num_accepted_tokens": on([2, 0, 2**40]), "null_slot": 8}
        x["write_indices"] = on([[10, 11, 12, 3], [13, -1, 15, 3], [16, 8, 2**40, 3]])
        check(x, step)


# ---- scan/selective_step_tokens


def by_tokens(lengths: list[int], drawn: dict[str, Any], on: Any) -> dict[str, Any]:
    """With rows for the states of every token; the last sequence has none, nor has the one before it a slot to write."""
    count, rows = len(lengths), max(lengths) + 1
    steps = torch.full((count + 1, rows, *drawn["state"].shape[1:]), 7.0).to(drawn["state"].dtype)
    slots = list(range(count))
    return drawn | {
        "state_batch_indices": on([2 * n for n in slots]),
        "write_indices": on([2 * n + 1 for n in slots[:-2]] + [-1, 2 * count - 1]),
        "step_states": steps.to(drawn["x"].device),
        "step_slots": on([*reversed(slots[1:]), -1]),
    }


LENGTHS = [5, 0, 1, 9, 2]


@EVERY_STATE
@pytest.mark.parametrize("N", [7, 16, 24, 136])
def test_packed(N: int, state: torch.dtype, step: Any, on: Any, device: Device, seed: int) -> None:
    """In place; in slots of every token; and in step states, with the last states in slots."""
    form: dict[str, Any] = {
        "dim": device.size(9, 37),
        "N": N,
        "state": state,
        "device": device.name,
        "slots": 10 * len(LENGTHS),
    }
    for more in ({}, {"heads": 4, "groups": 2, "io": torch.bfloat16}):
        x = packed_draws(seed, LENGTHS, after=2, **form | more)
        check(x, step)
        table = on(list(range(9 * len(LENGTHS)))).view(-1, 9) + 1
        check(x | {"state_batch_indices": table, "num_accepted_tokens": on([2, 9, 0, 2**40, -1]), "null_slot": 12}, step)
        check(by_tokens(LENGTHS, x, on), step)


@pytest.mark.parametrize("name", REAL)
def test_packed_discretizations(name: str, step: Any, on: Any, device: Device, seed: int) -> None:
    for state in (torch.float32, torch.complex64):
        if name in (COMPLEX if state.is_complex else REAL):
            x = packed_draws(seed, LENGTHS, name=name, state=state, device=device.name, slots=10, heads=4, groups=2)
            check(by_tokens(LENGTHS, x, on), step)


def test_packed_sequences_without_a_slot(step: Any, on: Any, device: Device, seed: int) -> None:
    x = packed_draws(seed, LENGTHS, after=3, device=device.name, slots=10)
    slots = on([3, -1, 2**31 - 1, -(2**63), 2**40])
    check(x | {"state_batch_indices": slots}, step)
    check(by_tokens(LENGTHS, x, on) | {"state_batch_indices": slots, "step_slots": on([0, 1, 2, 3, 4])}, step)
    check(x | {"state_batch_indices": slots, "update_state": False}, step)


def test_hostile_offsets(step: Any, on: Any, device: Device, seed: int) -> None:
    """Offsets that the host cannot check on a GPU are clamped: nothing outside of the tensors is read or written."""
    total = sum(LENGTHS)

    def result(offsets: list[int]) -> tuple[Tensor, Tensor]:
        x = packed_draws(seed, LENGTHS, device=device.name)
        out = step(**x | {"cu_seqlens": on(offsets), "out": torch.zeros_like(x["x"])})
        return out, x["state"]

    for hostile, clamped in (
        ([-(2**63), 3, 2**40, 2**63 - 1, 2**62, total + 1], [0, 3, *[total] * 4]),
        ([9, 3, 1, 0, -1, -(2**63)], [0] * 6),
        ([1, -5, 1, total, 2**32, 2**32 + 4], [1, 0, 1, *[total] * 3]),
    ):
        assert all(torch.equal(*both) for both in zip(result(hostile), result(clamped), strict=True))


@pytest.mark.parametrize("tokens", [0, 1, 6])
def test_every_state_and_the_last(tokens: int, drawn: Any, step: Any, on: Any, seed: int) -> None:
    for state, N in ((torch.float32, 16), (torch.bfloat16, 7)):
        x = drawn(seed, tokens=tokens, batch=4, slots=9, heads=2, N=N, state=state, io=torch.bfloat16)
        check(by_tokens([tokens] * 4, x, on), step)


@pytest.mark.parametrize("tokens", [1, 6, 20])
@pytest.mark.parametrize("N", [7, 16, 128])
def test_trees(N: int, tokens: int, drawn: Any, step: Any, on: Any, device: Device, seed: int) -> None:
    for state in (torch.float32, torch.complex64, torch.bfloat16):
        x = drawn(seed, tokens=tokens, batch=4, slots=8, N=N, state=state, io=torch.bfloat16)
        x = by_tokens([tokens] * 4, x, on) | {"step_slots": on([4, 0, 2, 1])}
        del x["write_indices"]
        before = x["state"].clone()
        check(x | {"parents": random_parents(seed, 4, tokens).to(device.name)}, step)
        assert torch.equal(x["state"], before)


def test_invalid_parents_give_nan_and_store_nothing(drawn: Any, step: Any, on: Any, device: Device, seed: int) -> None:
    for N in (7, 16):
        x = by_tokens([6] * 4, drawn(seed, tokens=6, batch=4, slots=8, N=N), on)
        del x["write_indices"]
        check(x | {"parents": INVALID_PARENTS.to(device.name)}, step)


def test_packed_trees_and_sequences_longer_than_their_parents(step: Any, on: Any, device: Device, seed: int) -> None:
    lengths = [3, 0, 5]
    x = by_tokens(lengths, packed_draws(seed, lengths, after=1, device=device.name, slots=6), on)
    del x["write_indices"]
    check(x | {"parents": random_parents(seed, 3, 4).to(device.name)}, step)


@pytest.mark.parametrize("N", [7, 16, 128])
def test_packed_equals_padded(N: int, drawn: Any, step: Any, on: Any, seed: int) -> None:
    """The same bits by both kernels."""
    for state in STATES:
        padded, packed = (drawn(seed, tokens=6, batch=3, N=N, state=state) for _ in range(2))
        for name in ("x", "dt", "z", "delta_a", "B", "C"):
            packed[name] = packed[name].flatten(0, 1)
        out = step(**padded)
        assert torch.equal(step(**packed, cu_seqlens=on([0, 6, 12, 18])), out.flatten(0, 1))
        assert torch.equal(padded["state"], packed["state"])


@pytest.mark.parametrize("N", [16, 128])
def test_one_value_per_head(N: int, drawn: Any, step: Any, device: Device, seed: int) -> None:
    for state in STATES:
        for tokens in (None, 3):
            x = drawn(seed, tokens=tokens, heads=4, dim=8, groups=2, N=N, state=state, io=torch.bfloat16)
            x |= {name: x[name][..., 0].contiguous() for name in ("dt", "dt_bias", "D", "delta_a")}
            x["A"] = x["A"][:, 0, 0].contiguous()
            check(x, step)
            del x["delta_a"]
            check(x, step)


@pytest.mark.parametrize("N", [64, 128, 256])
@pytest.mark.parametrize("state", STATES[:3])
def test_rows_with_one_value_of_A(
    state: torch.dtype, N: int, drawn: Any, step: Any, on: Any, device: Device, seed: int
) -> None:
    """Slots to read and to write; states of a step; B and C at any address; with the same bits as with a value of A for each
    element."""
    form = {"heads": 6, "dim": device.size(11, 37), "N": N, "groups": 2, "state": state, "batch": 4, "slots": 9}
    slots = {"state_batch_indices": on([8, -1, 3, 2**40]), "write_indices": on([1, 2, -1, 4])}
    wide = {name: torch.empty(4, 2, N + 1, device=device.name)[..., :N] for name in "BC"}
    steps = {
        "step_states": torch.zeros(3, 1, 6, form["dim"], N, dtype=state, device=device.name),
        "step_slots": on([2, 0, 1, -1]),
    }
    for io, name, more in (
        (torch.bfloat16, "mamba", slots),
        (torch.float16, "dirac", slots | {"null_slot": 8}),
        (torch.float32, "mamba", {"update_state": False}),
        (torch.float32, "mamba", wide),
        (torch.bfloat16, "mamba", {"z": None, "D": None, "dt_bias": None, "delta_a": None, "dt_softplus": False}),
    ):
        x = drawn(seed, name, io=io, **form)
        x |= {key: y.copy_(x[key]) if key in wide and more is wide else y for key, y in more.items()}
        x["A"] = x["A"][:, :, :1].expand_as(x["A"])
        own = x | {"state": x["state"].clone()}
        check(own, step)
        spread = x | {"A": x["A"].contiguous(), "state": x["state"].clone()}
        assert torch.equal(bits(step(**spread)), bits(step(**x)))
        assert torch.equal(bits(spread["state"]), bits(x["state"]))
    one = drawn(seed, tokens=1, io=torch.bfloat16, **form) | steps
    one["A"] = one["A"][:, :, :1].expand_as(one["A"])
    check(one, step)


@pytest.mark.parametrize("N", [16, 64, 128])
@pytest.mark.parametrize("tokens", [None, 2])
def test_a_decay_of_zero_that_a_row_shares_is_an_exact_reset(
    tokens: int | None, N: int, step: Any, device: Device, seed: int
) -> None:
    for state in STATES[:3]:
        check_resets(seed, step, tokens=tokens, N=N, state=state, device=device.name)


@pytest.mark.parametrize("N", [7, 16, 128, 256])
def test_several_tokens_equal_single_ones(N: int, drawn: Any, step: Any, device: Device, seed: int) -> None:
    """The same bits."""
    tokens = device.size(4, 7)
    for state in (torch.float32, torch.complex64):
        together, alone = (drawn(seed, "zoh", tokens=tokens, batch=3, N=N, state=state) for _ in range(2))
        out = step(**together)
        rows = ("x", "dt", "z", "delta_a", "B", "C")
        for t in range(tokens):
            token = {name: y[:, t] if name in rows else y for name, y in alone.items()}
            assert torch.equal(step(**token), out[:, t])
        assert torch.equal(together["state"], alone["state"])


def test_values_that_are_not_finite_stay_in_their_rows(drawn: Any, step: Any, seed: int) -> None:
    for name in REAL:
        clean, spoilt = (drawn(seed, name, batch=4, dim=37, bare=True) for _ in range(2))
        spoilt["x"][1, 2], spoilt["dt"][2, 3], spoilt["state"][3, 1, 4] = torch.nan, torch.inf, -torch.inf
        for mine, wanted in zip(*((step(**x), x["state"]) for x in (spoilt, clean)), strict=True):
            same = torch.ones(4, 37, dtype=torch.bool)
            same[1, 2] = same[2, 3] = same[3, 1] = False
            assert torch.equal(mine[same], wanted[same])


@pytest.mark.parametrize("name", ["bilinear", "zoh", "dirac"])
@pytest.mark.parametrize("conj_sym", [False, True])
def test_simplified(conj_sym: bool, name: str, device: Device, seed: int) -> None:
    # A single value may be the result of a cancellation, so (1, 1) has 64.
    large = device.size(((64, 33, 5),), ((512, 1024, 1), (256, 300, 65)))
    for P, H, B in ((7, 5, 3), (1, 1, 64), *large, (3, 4, 0), (0, 4, 2), (4, 0, 2)):
        x = {key: y.to(device.name) for key, y in simplified_inputs(B, seed, P, H).items()}
        x |= {"discretization": name, "conj_sym": conj_sym}
        rng = torch.Generator().manual_seed(seed)
        D, delta_a = torch.randn(H, H, generator=rng).to(device.name), torch.rand(P, generator=rng).to(device.name)
        forms = ({}, {"D": D.diagonal()}, {"D": D.T, "delta_a": delta_a}, {"dt": delta_a, "A": x["A"][:, None]})
        conjugate = {key: x[key].conj() for key in "ABC"}
        for more in (*forms, conjugate, {"x": torch.complex(x["x"], x["x"].flip(0)), "D": D}):
            given = x | more | {"state": x["state"].clone()}
            out, state = simplified(given)
            with device.kernels():
                found = simplified_state_update(**given)
            close(found, out, device.size(4e-6, 3e-6))
            close(given["state"], state, device.size(2e-6, 3e-6))
