"""selective_state_update and simplified_state_update on CPU tensors against the definition and against the scan."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from selective_inputs import selective_inputs
from step_cases import (
    COMPLEX,
    INVALID_PARENTS,
    REAL,
    check,
    check_resets,
    close,
    draws,
    packed_draws,
    random_parents,
    selective,
    simplified,
)

import gdn_cuda
from gdn_cuda import selective_state_update, simplified_state_update
from gdn_cuda.scan.simplified_step import _inputs as simplified_inputs

FORMS: dict[str, dict[str, Any]] = {
    "one token": {},
    "tokens and groups": {"tokens": 3, "groups": 5},
    "heads": {"heads": 4, "groups": 2, "io": torch.bfloat16},
    "heads and tokens": {"heads": 2, "tokens": 2, "state": torch.bfloat16, "N": 7},
    "one of everything": {"batch": 1, "tokens": 1, "heads": 1, "dim": 1, "groups": 1, "N": 1},
    "no sequences": {"batch": 0},
    "no tokens": {"tokens": 0},
    "no channels": {"dim": 0},
    "long rows": {"N": 256, "state": torch.float16, "io": torch.float16},
    "bare": {"bare": True, "N": 64},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", REAL)
def test_the_definition(name: str, form: str, seed: int) -> None:
    check(draws(seed, name, **FORMS[form]), selective_state_update)


@pytest.mark.parametrize("tokens", [None, 2])
def test_a_decay_of_zero_that_a_row_shares_is_an_exact_reset(tokens: int | None, seed: int) -> None:
    check_resets(seed, selective_state_update, tokens=tokens)


@pytest.mark.parametrize("form", ["one token", "tokens and groups", "heads", "one of everything"])
@pytest.mark.parametrize("name", COMPLEX)
def test_the_definition_with_complex_states(name: str, form: str, seed: int) -> None:
    check(draws(seed, name, **FORMS[form] | {"state": torch.complex64}), selective_state_update)


@pytest.mark.parametrize("name, is_complex", [*((name, False) for name in REAL), *((name, True) for name in COMPLEX)])
def test_steps_equal_the_scan(name: str, is_complex: bool, seed: int) -> None:
    """Token by token, and all in one call, against the oracle of selective_scan."""
    x = selective_inputs(seed, name, length=9, dim=4, groups=2, is_complex=is_complex)
    expected, last = oracle.selective_scan(**x)
    rows = {ours: x.get(theirs) for ours, theirs in (("x", "u"), ("dt", "delta"), ("z", "z"), ("delta_a", "delta_a"))}
    columns = {each: x[each].permute(0, 3, 1, 2) for each in "BC"}
    tokens = {each: y.permute(0, 2, 1) for each, y in rows.items() if y is not None} | columns
    shared = {"A": x["A"], "D": x["D"], "dt_bias": x["delta_bias"], "dt_softplus": True, "discretization": name}
    states = [x["initial_state"].clone() for _ in range(2)]
    together = selective_state_update(states[0], **tokens, **shared)
    alone = [selective_state_update(states[1], **{k: y[:, t] for k, y in tokens.items()}, **shared) for t in range(9)]
    for out, state in zip((together, torch.stack(alone, 1)), states, strict=True):
        assert oracle.relative_rms(out.permute(0, 2, 1), expected) < 1e-6
        assert oracle.relative_rms(state, last) < 1e-6


@pytest.mark.parametrize("name", REAL)
def test_extreme_poles_and_steps(name: str, seed: int) -> None:
    for state in (torch.float32, torch.complex64):
        if state.is_complex and name not in COMPLEX:
            continue
        x = draws(seed, name, batch=6, dim=4, state=state, bare=True)
        x["dt"][:] = torch.tensor([0, 1e-6, 1e-3, 1, 20, 100.0])[:, None]
        sizes = torch.logspace(-6, 3, 16)
        rates = torch.exp(-sizes) if name == "rglru" else -sizes
        x["A"] = torch.complex(rates, 100 * rates).expand(4, 16) if state.is_complex else rates.expand(4, 16)
        check(x, selective_state_update)


def test_the_limits_of_zoh_and_rglru() -> None:
    x = draws(0, "zoh", N=3, bare=True)
    x["A"][:] = torch.tensor([0.0, -1e-30, -1e-12])
    check(x, selective_state_update)
    x = draws(0, "rglru", N=3, bare=True)
    x["A"][:] = torch.tensor([0.0, 1.0, 0.5])
    x["dt"][0] = 0  # 0⁰ is 1
    check(x, selective_state_update)


def test_infinities_and_nans_stay_in_their_row(seed: int) -> None:
    for name in REAL:
        clean, spoilt = (draws(seed, name, batch=4, dim=5, bare=True) for _ in range(2))
        spoilt["x"][1, 2], spoilt["dt"][2, 3], spoilt["state"][3, 1, 4] = torch.nan, torch.inf, -torch.inf
        results = [(selective_state_update(**x), x["state"]) for x in (clean, spoilt)]
        touched = torch.zeros(4, 5, dtype=torch.bool)
        touched[1, 2] = touched[2, 3] = touched[3, 1] = True
        assert torch.equal(results[0][0][~touched], results[1][0][~touched])
        assert torch.equal(results[0][1][~touched], results[1][1][~touched])


# ---- Slots


def verify_inputs(seed: int, index: torch.dtype, **more: Any) -> dict[str, Any]:
    x = draws(seed, tokens=3, batch=4, slots=14, **more)
    x["state_batch_indices"] = torch.randperm(14, generator=torch.Generator().manual_seed(seed))[:12].view(4, 3).to(index)
    x["num_accepted_tokens"] = torch.tensor([0, 1, 3, 2], dtype=index)
    return x


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16, torch.complex64])
def test_slots(state: torch.dtype, index: torch.dtype, seed: int) -> None:
    x = draws(seed, batch=4, slots=9, state=state)
    x["state_batch_indices"] = torch.tensor([7, -1, 0, -5], dtype=index)
    out = check(x, selective_state_update)
    assert not out[1].any() and not out[3].any()


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_verify_in_slots(index: torch.dtype, seed: int) -> None:
    x = verify_inputs(seed, index)
    x["state_batch_indices"][2, 1] = -1  # not written
    x["state_batch_indices"][1] = -1  # skipped
    check(x, selective_state_update)
    without = verify_inputs(seed, index, heads=2)
    del without["num_accepted_tokens"]
    check(without, selective_state_update)


def test_verify_in_step_states(seed: int) -> None:
    x = draws(seed, tokens=3, batch=4, slots=6, heads=2)
    x |= {"step_states": torch.ones(5, 4, 2, 5, 16), "step_slots": torch.tensor([4, -1, 0, 2])}
    x["state_batch_indices"] = torch.tensor([5, 1, -1, 0])
    before = x["state"].clone()
    check(x, selective_state_update)
    assert torch.equal(x["state"], before)
    assert bool((x["step_states"][:, 3] == 1).all() & (x["step_states"][[0, 1, 3]] == 1).all())


def write_inputs(seed: int, index: torch.dtype = torch.int64, **more: Any) -> dict[str, Any]:
    """From slot to slot; slot 3 is padding. Not read: sequences 1 and 2. Not written: sequences 3 and 4."""
    x = draws(seed, batch=6, slots=12, **more)
    x["state_batch_indices"] = torch.tensor([7, -1, 3, 0, 10, 5], dtype=index)
    return x | {"write_indices": torch.tensor([8, 1, 2, 3, -1, 5], dtype=index), "null_slot": 3}


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", [None, 1, 3])
def test_states_go_to_other_slots(tokens: int | None, index: torch.dtype, seed: int) -> None:
    for state in (torch.float32, torch.float16, torch.complex64):
        x = write_inputs(seed, index, tokens=tokens, state=state)
        before = x["state"].clone()
        out = check(x, selective_state_update)
        assert not out[1:3].any() and out[3:].any(1 if tokens is None else 2).all()
        kept = [n for n in range(12) if n not in (8, 5)]
        assert torch.equal(x["state"][kept], before[kept])


@pytest.mark.parametrize("tokens", [None, 3])
def test_states_that_are_only_read(tokens: int | None, seed: int) -> None:
    x = draws(seed, tokens=tokens, heads=2) | {"update_state": False}
    before = x["state"].clone()
    check(x, selective_state_update)
    assert torch.equal(x["state"], before)


def test_verify_into_other_slots(seed: int) -> None:
    x = verify_inputs(seed, torch.int64)
    x["write_indices"] = (x["state_batch_indices"].flip(0) + 1) % 14
    x |= {"null_slot": int(x["write_indices"][0, 1])}
    x["write_indices"][1, 0] = -1
    check(x, selective_state_update)


@pytest.mark.parametrize("form", [{}, {"tokens": 3}, {"state": torch.complex64}, {"tokens": 1, "heads": 1, "dim": 1}])
@pytest.mark.parametrize("names", ["dt", "A", "D", "dt_bias", "delta_a", "dt A D dt_bias", "dt A D dt_bias delta_a"])
def test_one_value_per_head(names: str, form: dict[str, Any], seed: int) -> None:
    """The definition, and the bits of the same values expanded."""
    x = draws(seed, **{"heads": 4, "groups": 2 if "heads" not in form else 1} | form)
    expanded = dict(x)
    for name in names.split():
        x[name] = x[name][..., 0, 0].contiguous() if name == "A" else x[name][..., 0].contiguous()
        wide = x[name][..., None, None] if name == "A" else x[name][..., None]
        expanded[name] = wide.expand(expanded[name].shape)
    expanded["state"] = x["state"].clone()
    out = check(x, selective_state_update)
    assert torch.equal(selective_state_update(**expanded), out) and torch.equal(x["state"], expanded["state"])


@pytest.mark.parametrize("argument", ["state_batch_indices", "step_slots", "write_indices"])
def test_a_slot_past_the_pool_is_refused(argument: str, seed: int) -> None:
    x = draws(seed, tokens=2, batch=2)
    steps = torch.zeros(2, 2, 5, 16)
    if argument == "step_slots":
        x |= {"step_states": steps, "step_slots": torch.tensor([0, 1])}
    x["state_batch_indices"] = torch.tensor([0, 1])
    x[argument] = torch.tensor([0, 2])
    before = x["state"].clone()
    with pytest.raises(IndexError, match=rf"^selective_state_update: {argument}: expected < 2, got 2$"):
        selective_state_update(**x)
    assert torch.equal(x["state"], before) and not steps.any()


def step_states_of(x: dict[str, Any], rows: int, tokens: int) -> dict[str, Any]:
    """Step states for the call, in reverse order of the sequences; one row is negative."""
    sequences = len(x["cu_seqlens"]) - 1 if "cu_seqlens" in x else len(x["x"])
    slots = torch.arange(sequences).flip(0)
    slots[1:2] = -1
    return {"step_states": torch.ones(rows, tokens, *x["state"].shape[1:], dtype=x["state"].dtype), "step_slots": slots}


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_every_state_and_the_last(tokens: int, seed: int) -> None:
    x = draws(seed, tokens=tokens, batch=4, slots=9, heads=2)
    x |= step_states_of(x, 5, tokens + 1)
    x |= {"state_batch_indices": torch.tensor([5, 1, -1, 0]), "write_indices": torch.tensor([6, 7, 8, -1])}
    before = x["state"].clone()
    check(x, selective_state_update)
    kept = [n for n in range(9) if n not in (6, 7)]
    assert torch.equal(x["state"][kept], before[kept]) and not torch.equal(x["state"][6], before[6])
    assert tokens > 0 or torch.equal(x["state"][[6, 7]], before[[5, 1]])


@pytest.mark.parametrize("form", [{}, {"heads": 4, "groups": 2, "state": torch.bfloat16, "io": torch.bfloat16, "N": 7}])
@pytest.mark.parametrize("lengths", [[3, 0, 1, 5], [1, 1, 1], [0, 0], [], [4]])
@pytest.mark.parametrize("after", [0, 2])
def test_packed(lengths: list[int], after: int, form: dict[str, Any], seed: int) -> None:
    count, most = len(lengths), max([*lengths, 1])
    x = packed_draws(seed, lengths, after=after, slots=count * most + 2, **form)
    check(dict(x), selective_state_update)
    slots = torch.arange(count) + 1
    check(x | {"state_batch_indices": slots, "null_slot": 2, "update_state": False}, selective_state_update)
    check(x | {"state_batch_indices": slots, "write_indices": slots.flip(0)}, selective_state_update)
    table = torch.arange(count * most).view(count, most) + 1
    counts = torch.arange(count) % (most + 1)
    verify = x | {"state_batch_indices": table, "num_accepted_tokens": counts, "cu_seqlens": x["cu_seqlens"].int()}
    check(verify, selective_state_update)
    check(verify | {"write_indices": table.flip(0)}, selective_state_update)
    steps = x | step_states_of(x, count + 1, most + 1)
    check(steps, selective_state_update)
    check(steps | {"state_batch_indices": slots, "write_indices": slots.flip(0)}, selective_state_update)


def test_packed_sequences_equal_those_alone(seed: int) -> None:
    lengths = [3, 0, 1, 5]
    x = packed_draws(seed, lengths, heads=2)
    alone, first = x["state"].clone(), 0
    out = check(x, selective_state_update)
    rows = ("x", "dt", "z", "delta_a", "B", "C")
    for n, length in enumerate(lengths):
        part = {name: y[None, first : first + length] if name in rows else y for name, y in x.items() if name != "cu_seqlens"}
        found = selective_state_update(**part | {"state": alone[n : n + 1]})
        assert torch.equal(found[0], out[first : first + length])
        first += length
    assert torch.equal(alone, x["state"])


@pytest.mark.parametrize("state", [torch.float32, torch.complex64])
@pytest.mark.parametrize("tokens", [1, 6, 20])
def test_trees(tokens: int, state: torch.dtype, seed: int) -> None:
    x = draws(seed, tokens=tokens, batch=4, slots=5, state=state)
    x |= step_states_of(x, 5, tokens + 1) | {"state_batch_indices": torch.tensor([4, 1, 0, 2])}
    before = x["state"].clone()
    check(x | {"parents": random_parents(seed, 4, tokens)}, selective_state_update)
    assert torch.equal(x["state"], before)


def test_invalid_parents_give_nan_and_store_nothing(seed: int) -> None:
    for form in ({}, {"heads": 2, "groups": 2}):
        x = draws(seed, tokens=6, batch=4, **form)
        x |= step_states_of(x, 4, 6) | {"parents": INVALID_PARENTS}
        out = check(x, selective_state_update)
        assert bool(out.isnan().any())


def test_packed_trees_and_sequences_longer_than_their_parents(seed: int) -> None:
    lengths = [3, 0, 5]
    x = packed_draws(seed, lengths, after=1)
    x |= step_states_of(x, 3, 6) | {"parents": random_parents(seed, 3, 4)}
    out = check(x, selective_state_update)
    assert bool(out[7].isnan().all()) and not out[8].any()


@pytest.mark.parametrize("argument", ["step_states", "state_batch_indices", "write_indices"])
def test_packed_sequences_longer_than_their_slots_are_refused(argument: str, seed: int) -> None:
    x = packed_draws(seed, [1, 3], slots=8) | {"state_batch_indices": torch.arange(2)}
    if argument == "step_states":
        x |= {"step_states": torch.zeros(2, 2, 5, 16), "step_slots": torch.arange(2)}
    else:
        x |= {"state_batch_indices": torch.arange(4).view(2, 2)}
        x |= {"write_indices": torch.arange(4).view(2, 2)} if argument == "write_indices" else {}
    with pytest.raises(IndexError, match=rf"^selective_state_update: {argument}: expected room for 3 tokens, got 2$"):
        selective_state_update(**x)


# ---- Strides


def test_strides(seed: int) -> None:
    """Pools with room between slots, transposed rows, and what Mamba-2 expands: the same bits as contiguous tensors."""
    plain = draws(seed, batch=3, heads=4, groups=2)
    strided = {name: y.clone() if isinstance(y, torch.Tensor) else y for name, y in plain.items()}
    strided["state"] = torch.zeros(3, 2, 4, 5, 16)[:, 1].copy_(plain["state"])
    for name in ("x", "dt", "z", "B", "C", "A"):
        strided[name] = plain[name].mT.contiguous().mT
    outs = [selective_state_update(**x) for x in (plain, strided)]
    assert torch.equal(*outs) and torch.equal(plain["state"], strided["state"])
    tied = {"A": plain["A"][:, :1, :1], "dt": plain["dt"][..., :1], "dt_bias": plain["dt_bias"][:, :1], "D": plain["D"][:, :1]}
    expanded = plain | {name: y.expand_as(plain[name]) for name, y in tied.items()}
    check(expanded, selective_state_update)


def test_several_tokens_keep_the_state_unrounded_between_them(seed: int) -> None:
    x = draws(seed, tokens=64, batch=2, state=torch.bfloat16, bare=True)
    x["A"][:] = -1e-4  # one by one, the state would not move
    x["dt"][:] = 0.5
    check(x, selective_state_update)


# ---- Simplified


@pytest.mark.parametrize("name", ["bilinear", "zoh", "dirac"])
@pytest.mark.parametrize("conj_sym", [False, True])
def test_simplified(name: str, conj_sym: bool, seed: int) -> None:
    for P, H, B in ((7, 5, 3), (1, 1, 1), (64, 33, 2), (3, 4, 0), (0, 4, 2), (4, 0, 2)):
        x = simplified_inputs(B, seed, P, H) | {"discretization": name, "conj_sym": conj_sym}
        D, delta_a = torch.randn(H, H), torch.rand(P)
        forms = ({}, {"D": D.diagonal()}, {"D": D.T, "delta_a": delta_a}, {"dt": delta_a, "A": x["A"][:, None]})
        for more in (*forms, {"x": torch.complex(x["x"], x["x"].flip(0)), "D": D}):
            given = x | more | {"state": x["state"].clone()}
            out, state = simplified(given)
            found = simplified_state_update(**given)
            assert found.dtype == torch.float32
            close(found, out, 1e-6)
            close(given["state"], state, 1e-6)


def test_simplified_equals_a_recurrence_of_many_steps(seed: int) -> None:
    x = simplified_inputs(2, seed)
    state = x["state"].to(torch.complex128)
    half = 0.5 * x["dt"].double() * x["A"].to(torch.complex128)
    for _ in range(50):
        drive = x["x"].to(torch.complex128) @ x["B"].to(torch.complex128).T
        state = (1 + half) / (1 - half) * state + x["dt"].double() / (1 - half) * drive
        out = simplified_state_update(**x)
    close(x["state"], state.numpy(), 2e-6)
    close(out, 2 * (state @ x["C"].to(torch.complex128).T).real.numpy(), 4e-6)


def test_simplified_writes_states_of_any_stride(seed: int) -> None:
    x = simplified_inputs(3, seed)
    expected = simplified(x)
    wide = torch.zeros(7, 6, dtype=torch.complex64)
    state = wide.T[::2].copy_(x["state"])
    close(simplified_state_update(**x | {"state": state}), expected[0], 1e-6)
    close(state, expected[1], 1e-6)
    assert not wide.T[1::2].any()


# ---- In-place operators


def test_fp64_references() -> None:
    x = draws(0, tokens=4, heads=2, groups=1)
    double = {name: y.double() if isinstance(y, torch.Tensor) else y for name, y in x.items()}
    out, state, _ = selective(double)
    found = gdn_cuda.reference.selective_state_update(**double)
    assert found.dtype == torch.float64
    close(found, out, 1e-13)
    close(double["state"], state, 1e-13)


def test_no_gradient_is_computed(seed: int) -> None:
    for function, x in (
        (selective_state_update, draws(seed)),
        (simplified_state_update, simplified_inputs(2, seed)),
    ):
        x["x"].requires_grad_()
        out = function(**x)
        with pytest.raises(RuntimeError, match="no gradient is computed"):
            out.sum().backward()


def test_compiled_steps_equal_eager_ones(seed: int) -> None:
    x, eager = draws(seed, heads=2), draws(seed, heads=2)
    step = torch.compile(partial(selective_state_update, dt_softplus=True), fullgraph=True, backend="aot_eager")
    del x["dt_softplus"], x["discretization"]
    assert torch.equal(step(**x), selective_state_update(**eager))
    assert torch.equal(x["state"], eager["state"])


def test_out_is_written_and_returned(seed: int) -> None:
    x = draws(seed)
    room = torch.full((3, 2, 5), torch.nan)
    expected = selective_state_update(**x | {"state": x["state"].clone()})
    out = selective_state_update(**x, out=room[:, 1])
    assert out.data_ptr() == room[:, 1].data_ptr() and torch.equal(out, expected) and bool(room[:, 0].isnan().all())
    assert np.isfinite(expected.numpy()).all()
