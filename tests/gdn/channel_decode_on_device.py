"""fused_decode with a gate for every channel of the key against the recurrence in fp64: gdn/decode, gdn/verify, gdn/recurrent,
and gdn/recurrent_any for what they have no code for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from channel_gates_on_device import agrees
from devices import Device
from helpers import rel_rms
from kda_cases import BETAS, GATES, KEYS, decays, drawn_keys, literal, log_decays
from torch import Tensor

import gdn_cuda

OUTPUT_BOUND = {torch.bfloat16: 3e-3, torch.float16: 4e-4}
STATE_BOUND = {torch.float32: 1e-5, torch.bfloat16: 3e-3, torch.float16: 4e-4}
Call = dict[str, Any]


def drawn(
    rng: torch.Generator,
    B: int = 2,
    T: int = 1,
    heads: tuple[int, int] = (1, 2),
    dk: int = 64,
    dv: int = 24,
    io: torch.dtype = torch.bfloat16,
    state: torch.dtype = torch.float32,
    gates: str = "bounded",
    keys: str = "random",
    beta: float | None = None,
) -> Call:
    """Arguments whose a is the logarithm of the decay; slots are in another order than sequences. beta: that of all tokens."""
    Hk, Hv = heads
    logit = {None: 0.0, 0.0: -math.inf, 1.0: math.inf, 2.0: math.inf}[beta]
    return {
        "query": torch.randn(B, T, Hk, dk, generator=rng).to(io),
        "key": drawn_keys(keys, (B, T, Hk, dk), rng).to(io),
        "value": torch.randn(B, T, Hv, dv, generator=rng).to(io),
        "a": log_decays(gates, (B, T, Hv, dk), rng),
        "b": torch.randn(B, T, Hv, generator=rng) if beta is None else torch.full((B, T, Hv), logit),
        "A_log": None,
        "dt_bias": None,
        "state_pool": torch.randn(B + 2, Hv, dv, dk, generator=rng).to(state),
        "state_indices": torch.arange(B).flip(0) + 1,
        "allow_negative_eigenvalues": beta == 2,
    }


def moved(x: Any, device: Device) -> Any:
    if isinstance(x, dict):
        return {name: moved(y, device) for name, y in x.items()}
    return x.to(device.name) if isinstance(x, Tensor) else x


def decode(device: Device, x: Call, *kernels: str, multiprocessors: int = 132) -> tuple[Tensor, Call]:
    """The output, and the arguments after the call, all on the CPU; x stays as it is."""
    there = moved({name: y.clone() if isinstance(y, Tensor) else y for name, y in x.items()}, device)
    out = torch.full(x["value"].shape, torch.nan, dtype=x["value"].dtype, device=device.name)
    with device.only(*kernels, multiprocessors=multiprocessors):
        gdn_cuda.fused_decode(**there, out=out)
    return out.cpu(), {name: y.cpu() if isinstance(y, Tensor) else y for name, y in there.items()}


def expected_of(x: Call, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(output, the state after every token) in fp64; every sequence starts from `start`, or from its slot."""
    names = ("A_log", "dt_bias")
    decay = decays(x["a"], *(x[name] for name in names), x.get("lower_bound"))
    beta = x["b"].double().sigmoid() * (2 if x["allow_negative_eigenvalues"] else 1)
    start = x["state_pool"][x["state_indices"]] if start is None else start
    options = {"scale": x.get("scale"), "norm": x.get("use_qk_l2norm", True)}
    return literal(x["query"], x["key"], x["value"], beta, decay, start, **options)


def check(device: Device, x: Call, *kernels: str, multiprocessors: int = 132) -> None:
    """One slot for each sequence; the others stay."""
    output, after = decode(device, x, *kernels, multiprocessors=multiprocessors)
    expected, states = expected_of(x)
    pool, before, slots = after["state_pool"], x["state_pool"], x["state_indices"]
    assert agrees(output, expected, OUTPUT_BOUND[output.dtype])
    assert agrees(pool[slots], states[:, -1], STATE_BOUND[pool.dtype])
    others = torch.ones(pool.shape[0], dtype=torch.bool).index_fill(0, slots, False)
    assert torch.equal(pool[others], before[others])


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/decode"), (5, "gdn/verify")])
def test_hostile_values(
    tokens: int, kernel: str, gates: str, keys: str, beta: float, device: Device, rng: torch.Generator
) -> None:
    B, dk, dv = device.size((1, 64, 16), (3, 128, 128))
    check(device, drawn(rng, B, tokens, dk=dk, dv=dv, gates=gates, keys=keys, beta=beta), kernel)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dk", [64, 96, 128, 192, 256])
def test_sizes(dk: int, state: torch.dtype, device: Device, rng: torch.Generator) -> None:
    """Rows that are a block's steps or blocks of their own; more tokens than are loaded at once."""
    B, dv, tokens = device.size((1, 40, (1, 6)), (40, 136, (1, 2, 6, 16)))
    for io in (torch.bfloat16, torch.float16):
        for T in tokens:
            x = drawn(rng, B, T, (1, 3), dk, dv, io, state, "heavy")
            for multiprocessors in device.size((132, 0), (132,)):
                check(device, x, "gdn/decode" if T == 1 else "gdn/verify", multiprocessors=multiprocessors)


@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/decode"), (3, "gdn/verify")])
@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("rate", ["A_log", "no A_log"])
def test_raw_gates(
    rate: str, lower_bound: float | None, tokens: int, kernel: str, device: Device, rng: torch.Generator
) -> None:
    if rate == "no A_log" and lower_bound is None:
        pytest.skip("not raw")
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        x = drawn(rng, T=tokens) | {"lower_bound": lower_bound}
        heads, dk = x["a"].shape[-2:]
        x["a"] = (2 * torch.randn(x["a"].shape, generator=rng)).to(dtype)
        if rate == "A_log":
            x["A_log"] = torch.randn(heads, generator=rng).to(dtype)
        bias = torch.randn(heads, 2 * dk, generator=rng).to(dtype)[:, :dk]
        for x["dt_bias"] in (None, bias, bias.flatten()):
            check(device, x, kernel)


def with_strides(x: Tensor, device: Device) -> Tensor:
    """On the device with the same strides, which `to` would not keep where there are gaps."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    gaps = torch.full((elements,), torch.nan if x.is_floating_point() else -1, dtype=x.dtype, device=device.name)
    return gaps.as_strided(x.shape, x.stride()).copy_(x)


@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/decode"), (3, "gdn/verify")])
def test_strided_views(tokens: int, kernel: str, device: Device, rng: torch.Generator) -> None:
    """Slices of wider rows, gates whose channels are not contiguous, slots with gaps; no l2 norm, another scale."""
    x = drawn(rng, 2, tokens, io=torch.float16) | {"use_qk_l2norm": False, "scale": 0.3}
    x["key"] /= 8
    for name in ("query", "key", "value", "b"):
        wide = torch.full((*x[name].shape[:-1], x[name].shape[-1] + 16), torch.nan, dtype=x[name].dtype)
        x[name] = wide[..., : x[name].shape[-1]].copy_(x[name])
    x["a"] = x["a"].transpose(1, 3).contiguous().transpose(1, 3)
    pool = x["state_pool"]
    x["state_pool"] = torch.stack([pool, torch.full_like(pool, torch.nan)], 1)[:, 0]
    there = {name: with_strides(y, device) if isinstance(y, Tensor) else y for name, y in x.items()}
    with device.only(kernel):
        output = gdn_cuda.fused_decode(**there)
    expected, states = expected_of(x | {"state_pool": pool})
    assert agrees(output.cpu(), expected, 4e-4)
    assert agrees(there["state_pool"].cpu()[x["state_indices"]], states[:, -1], 1e-5)


def untouched(after: Tensor, before: Tensor, but: list[int]) -> bool:
    kept = [slot for slot in range(before.shape[0]) if slot not in but]
    return torch.equal(after[kept], before[kept])


@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/decode"), (3, "gdn/verify")])
def test_hostile_slots(tokens: int, kernel: str, device: Device, rng: torch.Generator) -> None:
    x = drawn(rng, 6, tokens) | {"null_slot": 3}
    x["state_indices"] = torch.tensor([-1, 3, 2, -(2**63), 2**40, 5])
    if device.name == "cpu":  # as int32 past the pool, which the host would see in a CPU tensor
        x["state_indices"][4] = -7
    output, after = decode(device, x, kernel)
    expected, states = expected_of(x, x["state_pool"][x["state_indices"].clamp(0, 7)])
    for n, slot in ((2, 2), (5, 5)):
        assert agrees(output[n], expected[n], 3e-3) and agrees(after["state_pool"][slot], states[n, -1], 1e-5)
    assert not output[[0, 1, 3]].any() and untouched(after["state_pool"], x["state_pool"], [2, 5])
    assert device.name == "cpu" or bool(output[4].isnan().all())


def test_other_slots_to_write_and_sequences_that_start_from_zeros(device: Device, rng: torch.Generator) -> None:
    x = drawn(rng, 4) | {
        "write_indices": torch.tensor([0, -1, 5, 1]),
        "has_initial_state": torch.tensor([True, True, False, True]),
    }
    x["state_indices"] = torch.tensor([2, 3, 4, 1])
    x["state_pool"][4] = torch.nan
    output, after = decode(device, x, "gdn/verify")
    start = x["state_pool"][x["state_indices"]]
    start[2] = 0
    expected, states = expected_of(x, start)
    assert agrees(output, expected, 3e-3)
    for n, slot in ((0, 0), (2, 5), (3, 1)):
        assert agrees(after["state_pool"][slot], states[n, -1], 1e-5)
    assert untouched(after["state_pool"].nan_to_num(7), x["state_pool"].nan_to_num(7), [0, 5, 1])


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("multiprocessors", [132, 0])
@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/decode"), (4, "gdn/verify")])
def test_nothing_before_a_reset_shows_in_its_column(
    tokens: int, kernel: str, multiprocessors: int, state: torch.dtype, device: Device, rng: torch.Generator
) -> None:
    """Infinities and NaN of the state: columns that the first token resets, one by −∞ and one by a decay that is 0 in fp32."""
    x = drawn(rng, 1, tokens, dv=40, state=state, gates="init")
    x["a"][:, 0, 0, 5], x["a"][:, 0, 1, 63] = -torch.inf, -1e8
    clean = decode(device, x, kernel, multiprocessors=multiprocessors)
    for poison in (torch.inf, torch.nan):
        bad = x | {"state_pool": x["state_pool"].clone()}
        bad["state_pool"][:, 0, :, 5] = poison
        bad["state_pool"][:, 1, :, 63] = poison
        output, after = decode(device, bad, kernel, multiprocessors=multiprocessors)
        assert torch.equal(output, clean[0]) and bool(output.isfinite().all())
        assert torch.equal(after["state_pool"][x["state_indices"]], clean[1]["state_pool"][x["state_indices"]])


def test_a_reset_in_the_middle(device: Device, rng: torch.Generator) -> None:
    """A token that resets all channels: infinities of values and states before it do not show."""
    x = drawn(rng, 1, 5, gates="init")
    x["a"][:, 2] = -torch.inf
    clean = decode(device, x, "gdn/verify")
    bad = x | {"state_pool": torch.full_like(x["state_pool"], torch.nan), "value": x["value"].clone()}
    bad["value"][:, 1] = torch.inf
    output, after = decode(device, bad, "gdn/verify")
    assert torch.equal(output[:, 2:], clean[0][:, 2:]) and not output[:, :2].isfinite().any()
    assert torch.equal(after["state_pool"][x["state_indices"]], clean[1]["state_pool"][x["state_indices"]])


@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/decode"), (4, "gdn/verify")])
def test_equal_channels_are_a_gate_for_each_head(tokens: int, kernel: str, device: Device, rng: torch.Generator) -> None:
    x = drawn(rng, 2, tokens, dk=128) | {"A_log": torch.tensor([0.5, -1.0]), "dt_bias": torch.tensor([0.1, -0.3])}
    x["a"] = torch.randn(x["b"].shape, generator=rng)
    expected, kept = decode(device, x, kernel)
    dk = x["key"].shape[-1]
    each = x | {"a": x["a"][..., None].expand(-1, -1, -1, dk), "dt_bias": x["dt_bias"][:, None].repeat(1, dk)}
    output, after = decode(device, each, kernel)
    assert rel_rms(output, expected) < 1e-3 and rel_rms(after["state_pool"], kept["state_pool"]) < 1e-6


# ---- Verify: a state for every token


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16, torch.float16])
def test_a_slot_for_every_token(state: torch.dtype, device: Device, rng: torch.Generator) -> None:
    kernel = "gdn/recurrent_any" if state == torch.float16 else "gdn/verify"
    B, T = 3, 4
    x = drawn(rng, B, T, state=state, gates="heavy")
    pool = torch.randn(B * T + 2, *x["state_pool"].shape[1:], generator=rng).to(state)
    slots = torch.randperm(B * T, generator=rng).view(B, T) + 1
    slots[1, 2] = -1
    x |= {"state_pool": pool, "state_indices": slots, "num_accepted_tokens": torch.tensor([1, 4, -3])}
    output, after = decode(device, x, kernel)
    expected, states = expected_of(x, pool[slots[torch.arange(B), torch.tensor([0, 3, 0])]])
    assert agrees(output, expected, 3e-3)
    for n, t in ((n, t) for n in range(B) for t in range(T) if slots[n, t] >= 0):
        assert agrees(after["state_pool"][slots[n, t]], states[n, t], STATE_BOUND[state])
    assert untouched(after["state_pool"], pool, slots.flatten().tolist())


def test_step_states(device: Device, rng: torch.Generator) -> None:
    B, T = 2, 3
    x = drawn(rng, B, T, gates="channel reset")
    steps = torch.full((B + 1, T + 1, *x["state_pool"].shape[1:]), 7.0)
    x |= {"step_states": steps, "step_slots": torch.tensor([2, 0])}
    output, after = decode(device, x, "gdn/verify")
    expected, states = expected_of(x)
    assert agrees(output, expected, 3e-3) and agrees(after["step_states"][[2, 0], :T], states, 1e-5)
    assert torch.equal(after["state_pool"], x["state_pool"])
    assert bool((after["step_states"][1] == 7).all()) and bool((after["step_states"][:, T] == 7).all())


def test_a_tree(device: Device, rng: torch.Generator) -> None:
    B, T = 2, 5
    x = drawn(rng, B, T, gates="heavy")
    parents = torch.tensor([[-1, 0, 0, 1, -1], [-1, -1, 1, 2, 0]])
    steps = torch.full((B, T, *x["state_pool"].shape[1:]), 7.0)
    x |= {"step_states": steps, "step_slots": torch.arange(B), "parents": parents}
    output, after = decode(device, x, "gdn/recurrent")
    tokens = ("query", "key", "value", "a", "b")
    for n in range(B):
        for t in range(T):
            parent = int(parents[n, t])
            start = x["state_pool"][x["state_indices"][n]] if parent < 0 else after["step_states"][n, parent]
            alone = x | {name: x[name][n : n + 1, t : t + 1] for name in tokens}
            expected, states = expected_of(alone, start[None])
            assert agrees(output[n, t], expected[0, 0], 3e-3)
            assert agrees(after["step_states"][n, t], states[0, 0], 1e-5)


def test_packed_sequences(device: Device, rng: torch.Generator) -> None:
    offsets = [0, 2, 2, 3, 7]
    x = drawn(rng, 1, 8, gates="heavy")
    tokens = ("query", "key", "value", "a", "b")
    for packed in ({name: x[name][0] for name in tokens}, {}):  # (N, …) and (1, N, …)
        call = x | packed | {"cu_seqlens": torch.tensor(offsets), "state_indices": torch.tensor([2, 0, 1, -1])}
        call["state_pool"] = torch.randn(4, *x["state_pool"].shape[1:], generator=rng)
        output, after = decode(device, call, "gdn/recurrent")
        output = output.view(x["value"].shape)
        for first, last, slot in ((0, 2, 2), (2, 3, 1)):
            alone = x | {name: x[name][:, first:last] for name in tokens}
            expected, states = expected_of(alone, call["state_pool"][slot][None])
            assert agrees(output[:, first:last], expected, 3e-3)
            assert agrees(after["state_pool"][slot], states[0, -1], 1e-5)
        assert not output[:, 3:].any() and untouched(after["state_pool"], call["state_pool"], [2, 1])
