"""States of int8 codes against fp64: convert_states, fused_decode and chunked_forward by their kernels. The recurrence runs in
fp64 from the states that the codes are, and what a call stores is within half a step of the expected state."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import agrees, decays, literal
from torch import Tensor

import gdn_cuda
from gdn_cuda.gdn.state_codes import LARGEST_SCALE, SMALLEST_SCALE
from gdn_cuda.layers.decode_layer import layer_arguments
from gdn_cuda.layers.kda_decode_layer import layer_arguments as kda_arguments

GROUP = 32
OUTPUT_BOUND = {torch.bfloat16: 3e-3, torch.float16: 4e-4, torch.float32: 1e-5}
Call = dict[str, Any]


def read(codes: Tensor, scales: Tensor) -> Tensor:
    """The states in fp64, from the definition."""
    groups = codes.double().reshape(*codes.shape[:-1], -1, GROUP)
    return (groups * scales.double()[..., None]).reshape(codes.shape)


def coded(states: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of finite states, of which none is tiny, from the definition."""
    groups = states.double().reshape(*states.shape[:-1], -1, GROUP)
    scales = (groups.abs().amax(-1) / 127).float()
    step = torch.where(scales == 0, 1, scales).double()
    return (groups / step[..., None]).round().to(torch.int8).reshape(states.shape), scales


def is_rounded(codes: Tensor, scales: Tensor, expected: Tensor, *, pairs: bool = False) -> bool:
    """Whether codes and scales are those of `expected` within fp32's errors: half a step, scales of the largest. `pairs`:
    within those of an update in pairs of fp16. The sum, and the key and the factor of an update that is up to twice as large,
    are rounded by 2^-11 each: 5 of these, 0.31 of a step, and 6 for a scale, whose inverse is rounded too."""
    groups = expected.double().reshape(*expected.shape[:-1], -1, GROUP)
    wanted = groups.abs().amax(-1) / 127
    error = (read(codes, scales) - expected).abs().reshape(groups.shape)
    near = bool((error <= (0.82 if pairs else 0.51) * wanted[..., None] + 1e-35).all())
    of_scale = 3e-3 if pairs else 1e-3
    return near and bool(((scales - wanted).abs() <= of_scale * wanted + 1e-35).all()) and int(codes.min()) >= -127


# ---- convert_states


@pytest.mark.parametrize("dk", [32, 96, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_conversions(dtype: torch.dtype, dk: int, device: Device, rng: torch.Generator) -> None:
    """To int8 and back, with every strides of states; rows that are no multiple of a tile."""
    states = torch.randn(3, 2, 40, dk, generator=rng).to(dtype)
    states[0, 0, 3], states[1, 1, 5, 3:] = 0, 0
    for given in (states, states.mT.contiguous().mT):
        with device.only("gdn/convert_rows", *["gdn/move_states"] * (given is not states)):
            codes, scales = gdn_cuda.convert_states(given.to(device.name), torch.int8)
            back, none = gdn_cuda.convert_states(codes, dtype, scales)
            assert scales is not None and none is None
            wide, _ = gdn_cuda.convert_states(codes, torch.float32, scales)
        assert codes.dtype == torch.int8 and scales.dtype == torch.float32 and scales.shape == (3, 2, 40, dk // 32)
        codes, scales = codes.cpu(), scales.cpu()
        assert is_rounded(codes, scales, states.double())
        assert not codes[0, 0, 3].any() and not scales[0, 0, 3].any()
        assert rel_rms(wide, read(codes, scales)) < 1e-7
        assert torch.equal(back.cpu(), wide.cpu().to(dtype))


def test_ties_go_to_even(device: Device) -> None:
    states = torch.zeros(1, 1, 1, 32)
    states[..., :6] = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -3.5])
    with device.only("gdn/convert_rows", "gdn/move_states"):
        codes, scales = gdn_cuda.convert_states(states.to(device.name), torch.int8)
    assert scales is not None and scales.item() == 1.0
    assert codes.flatten()[:6].tolist() == [127, 0, 2, 2, 0, -4]


def test_states_at_the_ends_of_fp32(device: Device) -> None:
    """Finite states give finite ones; infinities saturate, and NaN keeps to its group."""
    inf, nan, most = torch.inf, torch.nan, torch.finfo(torch.float32).max
    rows = [[most, -most, 1.0], [most / 2, 1e30, 0], [1e-45, 1e-40, -1e-38], [1.4e-36, 0, 0], [1.6e-36, 1e-38, -1.6e-36]]
    rows += [[inf, most, 1.0], [-inf, inf, -3.0], [nan, 1.0, inf], [nan, 0, 0], [0.0, -0.0, 0]]
    states = torch.zeros(1, 1, len(rows), 64)
    states[0, 0, :, :3] = torch.tensor(rows)
    states[..., 32:] = 3
    with device.only("gdn/convert_rows"):
        codes, scales = gdn_cuda.convert_states(states.to(device.name), torch.int8)
        back, _ = gdn_cuda.convert_states(codes, torch.float32, scales)
    assert scales is not None
    back, found, first = back[0, 0, :, :32].cpu(), scales[0, 0, :, 0].cpu(), codes[0, 0, :, :3].tolist()
    assert bool((scales[..., 1].cpu() * 127 - 3).abs().max() < 1e-5)  # the other group
    finite = [i for i, row in enumerate(rows) if nan not in row]
    assert bool(back[finite].isfinite().all()) and bool(back[7:9].isnan().all())
    assert bool(found[7:9].isnan().all()) and bool((found[finite] <= LARGEST_SCALE).all())
    assert first[0] == [127, -127, 0] and first[5][:2] == [127, 127] and first[6] == [-127, 127, 0]
    assert not found[[2, 3, 9]].any() and found[4] >= SMALLEST_SCALE and first[4] == [127, 1, -127]
    assert bool((back[0, :2].abs() >= 0.999 * most).all()) and float(back[5, 0]) >= 0.999 * most


@pytest.mark.parametrize("to", [torch.int8, torch.float32])
@pytest.mark.parametrize("coded_states", [False, True])
def test_slots(coded_states: bool, to: torch.dtype, device: Device, rng: torch.Generator) -> None:
    """Gathered, and scattered to a pool: padding is skipped, and other slots stay."""
    states = torch.randn(6, 2, 8, 64, generator=rng)
    given = coded(states) if coded_states else (states, None)
    exact = read(*given) if given[1] is not None else states.double()
    there = [None if x is None else x.to(device.name) for x in given]
    read_slots = torch.tensor([4, -1, 0, 2, 5])
    with device.only("gdn/convert_rows"):
        found, scales = gdn_cuda.convert_states(there[0], to, there[1], state_indices=read_slots.to(device.name), null_slot=2)
    found, scales = found.cpu(), None if scales is None else scales.cpu()
    assert not found[[1, 3]].any()
    for n, slot in ((0, 4), (2, 0), (4, 5)):
        if scales is None:
            assert rel_rms(found[n], exact[slot]) < 1e-7
        elif coded_states:
            assert torch.equal(found[n], given[0][slot]) and torch.equal(scales[n], given[1][slot])
        else:
            assert is_rounded(found[n], scales[n], exact[slot])

    pool = coded(torch.randn(7, 2, 8, 64, generator=rng)) if to == torch.int8 else (torch.full((7, 2, 8, 64), 9.0), None)
    out = [None if x is None else x.to(device.name) for x in pool]
    written = torch.tensor([6, 0, -3, 1, 3], dtype=torch.int32)
    with device.only("gdn/convert_rows"):
        same, same_scales = gdn_cuda.convert_states(
            there[0],
            to,
            there[1],
            state_indices=read_slots.to(device.name),
            write_indices=written.to(device.name),
            null_slot=2,
            out=out[0],
            out_scales=out[1],
        )
    assert same is out[0] and same_scales is out[1]
    after = [None if x is None else x.cpu() for x in out]
    for slot in (0, 1, 2, 4, 5):
        assert torch.equal(after[0][slot], pool[0][slot]) and (pool[1] is None or torch.equal(after[1][slot], pool[1][slot]))
    for slot, start in ((6, 4), (3, 5)):
        if after[1] is None:
            assert rel_rms(after[0][slot], exact[start]) < 1e-7
        else:
            assert is_rounded(after[0][slot], after[1][slot], exact[start])


# ---- fused_decode


def drawn(
    rng: torch.Generator,
    B: int = 2,
    T: int = 1,
    heads: tuple[int, int] = (1, 2),
    dk: int = 64,
    dv: int = 24,
    io: torch.dtype = torch.bfloat16,
    channels: bool = False,
) -> Call:
    """Slots are in another order than sequences; their states differ in size by row."""
    Hk, Hv = heads
    sizes = torch.exp(2 * torch.randn(B + 2, Hv, dv, 1, generator=rng))
    codes, scales = coded(torch.randn(B + 2, Hv, dv, dk, generator=rng) * sizes)
    return {
        "query": torch.randn(B, T, Hk, dk, generator=rng).to(io),
        "key": torch.randn(B, T, Hk, dk, generator=rng).to(io),
        "value": torch.randn(B, T, Hv, dv, generator=rng).to(io),
        "a": torch.randn(B, T, Hv, *([dk] if channels else []), generator=rng).to(io),
        "b": torch.randn(B, T, Hv, generator=rng).to(io),
        "A_log": torch.randn(Hv, generator=rng) - 2,
        "dt_bias": torch.randn(Hv, *([dk] if channels else []), generator=rng),
        "state_pool": codes,
        "state_scales": scales,
        "state_indices": torch.arange(B).flip(0) + 1,
    }


def moved(x: Any, device: Device) -> Any:
    return x.to(device.name, copy=True) if isinstance(x, Tensor) else x


def decode(device: Device, x: Call, *kernels: str, multiprocessors: int = 132) -> tuple[Tensor, Call]:
    """The output, and the arguments after the call, all on the CPU; x stays as it is."""
    there = {name: moved(y, device) for name, y in x.items()}
    with device.only(*kernels, multiprocessors=multiprocessors):
        out = gdn_cuda.fused_decode(**there)
    return out.cpu(), {name: y.cpu() if isinstance(y, Tensor) else y for name, y in there.items()}


def starts(x: Call) -> Tensor:
    slots = x["state_indices"]
    return read(x["state_pool"], x["state_scales"])[slots if slots.dim() == 1 else slots[:, 0]]


def expected_of(x: Call, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(output, the state after every token) in fp64."""
    gate, bias = x["a"], x["dt_bias"]
    dk, heads = x["key"].shape[-1], x["a"].shape[2]
    if gate.dim() == 3:
        gate, bias = gate[..., None].expand(*gate.shape, dk), bias[:, None].expand(heads, dk)
    decay = decays(gate, x["A_log"], bias)
    beta = x["b"].double().sigmoid()
    return literal(x["query"], x["key"], x["value"], beta, decay, starts(x) if start is None else start, norm=True)


def others_stay(after: Call, before: Call, written: list[int]) -> bool:
    kept = [slot for slot in range(before["state_pool"].shape[0]) if slot not in written]
    return all(torch.equal(after[name][kept], before[name][kept]) for name in ("state_pool", "state_scales"))


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("dk", [64, 96, 128, 192, 256])
def test_a_token(dk: int, channels: bool, device: Device, rng: torch.Generator) -> None:
    """In place; rows of a block's steps, or one step a block; a last step that is not full."""
    B, dv = device.size((1, 40), (40, 136))
    for io in device.size((torch.bfloat16, torch.float16), (torch.bfloat16,)):
        x = drawn(rng, B, 1, (1, 3), dk, dv, io, channels)
        expected, states = expected_of(x)
        for multiprocessors in device.size((132, 0), (132,)):
            output, after = decode(device, x, "gdn/decode", multiprocessors=multiprocessors)
            assert rel_rms(output, expected) < OUTPUT_BOUND[io]
            slots = x["state_indices"]
            assert is_rounded(after["state_pool"][slots], after["state_scales"][slots], states[:, 0])
            assert others_stay(after, x, slots.tolist())


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("dk", [64, 96, 128, 192, 256])
def test_slots_for_every_token(dk: int, channels: bool, device: Device, rng: torch.Generator) -> None:
    """Verify by rows of slots; what the next call starts from is a column."""
    B, dv, T = device.size((1, 24, 3), (20, 136, 5))
    for io, multiprocessors in product(*device.size(((torch.bfloat16, torch.float16), (132, 0)), ((torch.bfloat16,), (132,)))):
        x = drawn(rng, B * T, T, (1, 3), dk, dv, io, channels)
        x |= {name: x[name][:B] for name in ("query", "key", "value", "a", "b")}
        x["state_indices"] = (torch.arange(B * T).flip(0) + 1).view(B, T)
        expected, states = expected_of(x)
        output, after = decode(device, x, "gdn/verify", multiprocessors=multiprocessors)
        assert rel_rms(output, expected) < 3e-3
        slots = x["state_indices"]
        assert is_rounded(after["state_pool"][slots], after["state_scales"][slots], states)
        assert others_stay(after, x, slots.flatten().tolist())
        after |= {"num_accepted_tokens": torch.full((B,), 2), "state_indices": slots}
        second, _ = decode(device, after, "gdn/verify", multiprocessors=multiprocessors)
        start = read(after["state_pool"], after["state_scales"])[slots[:, 1]]
        assert rel_rms(second, expected_of(x, start)[0]) < 3e-3


def with_steps(x: Call, rows: int, tokens: int, device: Device) -> Call:
    codes, scales = x["state_pool"], x["state_scales"]
    sequences = x["state_indices"].shape[0]
    return x | {
        "step_states": codes.new_full((rows, tokens, *codes.shape[1:]), 7),
        "step_scales": scales.new_full((rows, tokens, *scales.shape[1:]), 7.0),
        "step_slots": torch.arange(sequences).flip(0) + 1,
    }


@pytest.mark.parametrize("tokens, kernel", [(4, "gdn/verify"), (18, "gdn/recurrent")])
def test_states_after_every_token_beside_the_pool(tokens: int, kernel: str, device: Device, rng: torch.Generator) -> None:
    x = with_steps(drawn(rng, 2, tokens), 4, tokens + 1, device)
    expected, states = expected_of(x)
    for last in (False, True):
        call = x | ({"write_indices": torch.tensor([0, -1])} if last else {})
        output, after = decode(device, call, kernel)
        assert rel_rms(output, expected) < 3e-3 and others_stay(after, x, [0] if last else [])
        rows = x["step_slots"]
        assert is_rounded(after["step_states"][rows, :tokens], after["step_scales"][rows, :tokens], states)
        assert bool((after["step_states"][[0, 3]] == 7).all()) and bool((after["step_states"][:, tokens] == 7).all())
        if last:
            assert is_rounded(after["state_pool"][0], after["state_scales"][0], states[0, -1])


def test_a_tree(device: Device, rng: torch.Generator) -> None:
    """Branches start from stored codes, which were rounded."""
    parents = torch.tensor([[-1, 0, 0, 1, -1, 4], [-1, 0, 1, 0, 3, 3]])
    x = with_steps(drawn(rng, 2, 6), 4, 6, device) | {"parents": parents}
    output, after = decode(device, x, "gdn/recurrent")
    assert others_stay(after, x, [])
    for n in range(2):
        row, latest = int(x["step_slots"][n]), -1
        state = starts(x)[n : n + 1]
        for t, parent in enumerate(parents[n].tolist()):
            if parent != latest:
                state = starts(x)[n : n + 1]
                if parent >= 0:
                    state = read(after["step_states"][row, parent], after["step_scales"][row, parent])[None]
            token = {name: x[name][n : n + 1, t : t + 1] for name in ("query", "key", "value", "a", "b")}
            expected, states = expected_of(x | token, state)
            state, latest = states[:, 0], t
            assert rel_rms(output[n, t], expected[0, 0]) < 3e-3
            assert is_rounded(after["step_states"][row, t], after["step_scales"][row, t], state[0])


@pytest.mark.parametrize("dk", [32, 64, 96, 128, 160, 192, 256])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
def test_packed_sequences(io: torch.dtype, channels: bool, dk: int, device: Device, rng: torch.Generator) -> None:
    """One without tokens, which stays; key dimensions that run masked; codes that start at odd addresses."""
    x = drawn(rng, 3, 3, dk=dk, io=io, channels=channels)
    expected, states = expected_of(x)
    lengths = (2, 0, 3)
    offsets = torch.tensor([0, 2, 2, 5])
    pack = {
        name: torch.cat([x[name][n, :length] for n, length in enumerate(lengths)])
        for name in ("query", "key", "value", "a", "b")
    }
    for shift, multiprocessors in ((0, 132), (0, 0), (3, 132)):
        memory = torch.zeros(x["state_pool"].numel() + shift, dtype=torch.int8, device=device.name)
        pool = memory[shift:].view(x["state_pool"].shape).copy_(x["state_pool"])
        there = {name: moved(y, device) for name, y in (x | pack | {"cu_seqlens": offsets}).items()} | {"state_pool": pool}
        with device.only("gdn/recurrent", multiprocessors=multiprocessors):
            output = gdn_cuda.fused_decode(**there).cpu()
        after = {name: there[name].cpu() for name in ("state_pool", "state_scales")}
        for n, (first, length) in enumerate(((0, 2), (2, 0), (2, 3))):
            slot = int(x["state_indices"][n])
            if length:
                assert rel_rms(output[first : first + length], expected[n, :length]) < 3e-3
                assert is_rounded(after["state_pool"][slot], after["state_scales"][slot], states[n, length - 1])
        assert others_stay(after, x, [int(x["state_indices"][n]) for n in (0, 2)])


@pytest.mark.parametrize("tokens", [1, 3])
def test_float32_rows_and_more_queries_than_values(tokens: int, device: Device, rng: torch.Generator) -> None:
    for channels, dk in device.size(tuple(product((False, True), (32, 96, 256))), ((False, 96), (True, 128))):
        x = drawn(rng, 2, tokens, (4, 4), dk=dk, dv=21, io=torch.float32, channels=channels)
        x["key"], x["value"] = x["key"][:, :, :2], x["value"][:, :, :2]
        wide = x | {"key": x["key"].repeat_interleave(2, 2), "value": x["value"].repeat_interleave(2, 2)}
        expected, states = expected_of(wide)
        output, after = decode(device, x, "gdn/recurrent_any")
        assert rel_rms(output, expected) < 1e-5
        slots = x["state_indices"]
        assert is_rounded(after["state_pool"][slots], after["state_scales"][slots], states[:, -1])


def test_slots_with_gaps_between_them(device: Device, rng: torch.Generator) -> None:
    """Codes and scales of a slot in one page of memory, with a convolution's states after them."""
    for tokens, kernel in ((1, "gdn/decode"), (3, "gdn/verify")):
        x = drawn(rng, 3, tokens, dk=128, dv=32)
        codes, scales = x["state_pool"], x["state_scales"]
        bytes_of_codes, bytes_of_scales = codes[0].numel(), 4 * scales[0].numel()
        pages = torch.full((codes.shape[0], bytes_of_codes + bytes_of_scales + 64), 99, dtype=torch.int8, device=device.name)
        pool = pages[:, :bytes_of_codes].view(codes.shape)
        beside = pages[:, bytes_of_codes : bytes_of_codes + bytes_of_scales].view(torch.float32).view(scales.shape)
        pool.copy_(codes), beside.copy_(scales)
        there = {name: moved(y, device) for name, y in x.items()} | {"state_pool": pool, "state_scales": beside}
        with device.only(kernel):
            output = gdn_cuda.fused_decode(**there)
        expected, states = expected_of(x)
        assert rel_rms(output, expected) < 3e-3 and bool((pages[:, bytes_of_codes + bytes_of_scales :] == 99).all())
        slots = x["state_indices"]
        assert is_rounded(pool.cpu()[slots], beside.cpu()[slots], states[:, -1])


@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/decode"), (3, "gdn/verify")])
def test_hostile_states_and_slots(tokens: int, kernel: str, device: Device, rng: torch.Generator) -> None:
    """Scales of 0 and near fp32's largest, NaN, infinite values; slots that are padding, or past the pool."""
    for multiprocessors in (132, 0):
        x = drawn(rng, 6, tokens, dk=64) | {"null_slot": 3}
        x["state_indices"] = torch.tensor([-1, 3, 2, -(2**63), 2**40, 5])
        if device.name == "cpu":  # the host sees slots past the pool of CPU tensors
            x["state_indices"][4] = -7
        x["state_scales"][2, 0, :4, 0] = 0
        x["state_scales"][5, 0, 4] = LARGEST_SCALE / 1e3
        x["state_scales"][5, 1, 3, 1] = torch.nan
        x["value"][2, 0, 1, 7], x["value"][5, 0, 0, 2] = torch.inf, -torch.inf
        output, after = decode(device, x, kernel, multiprocessors=multiprocessors)
        expected, states = expected_of(x, read(x["state_pool"], x["state_scales"])[x["state_indices"].clamp(0, 7)])
        for n, slot in ((2, 2), (5, 5)):
            wrong = ~expected[n].isfinite()
            assert torch.equal(~output[n].isfinite() & ~wrong, torch.zeros_like(wrong))
            good = states[n, -1].isfinite().all(-1)
            assert good.sum() >= good.numel() - 2
            assert is_rounded(after["state_pool"][slot][good], after["state_scales"][slot][good], states[n, -1][good])
        assert agrees(output[2, :, 0], expected[2, :, 0], 3e-3)
        assert not output[[0, 1, 3]].any() and others_stay(after, x, [2, 5])
        assert device.name == "cpu" or bool(output[4].isnan().all())


@pytest.mark.parametrize("channels", [False, True])
def test_a_reset_clears_a_state_that_is_nan(channels: bool, device: Device, rng: torch.Generator) -> None:
    for (tokens, kernel), multiprocessors in (((1, "gdn/decode"), 132), ((1, "gdn/decode"), 0), ((3, "gdn/verify"), 132)):
        x = drawn(rng, 2, tokens, channels=channels)
        x["state_scales"][x["state_indices"]] = torch.nan
        x["a"][:, 0] = torch.inf
        expected, states = expected_of(x, torch.zeros(()).expand(2, 2, 24, 64))
        output, after = decode(device, x, kernel, multiprocessors=multiprocessors)
        assert rel_rms(output, expected) < 3e-3
        slots = x["state_indices"]
        assert is_rounded(after["state_pool"][slots], after["state_scales"][slots], states[:, -1])


def test_kernels_agree_bitwise(device: Device, rng: torch.Generator) -> None:
    """A token by gdn/decode, gdn/verify and gdn/recurrent."""
    for dk in (96, 128):
        x = drawn(rng, 2, 1, dk=dk)
        found = [decode(device, x, "gdn/decode", multiprocessors=m) for m in (132, 0)]
        found.append(decode(device, x | {"has_initial_state": torch.tensor([True, True])}, "gdn/verify"))
        packed = {name: x[name][:, 0] for name in ("query", "key", "value", "a", "b")}
        output, after = decode(device, x | packed | {"cu_seqlens": torch.tensor([0, 1, 2])}, "gdn/recurrent")
        found.append((output[:, None], after))
        for output, after in found[1:]:
            assert torch.equal(output, found[0][0])
            assert all(torch.equal(after[name], found[0][1][name]) for name in ("state_pool", "state_scales"))


@pytest.mark.parametrize("tokens, separate", [(1, False), (3, False), (0, False), (0, True)])
def test_a_layers_step(tokens: int, separate: bool, device: Device, seed: int) -> None:
    """Beside the one with fp32 states, from the same states; one sequence is padding. 0: a token of Kimi Delta Attention."""
    function = gdn_cuda.gdn_decode_layer if tokens else gdn_cuda.kda_decode_layer
    x = layer_arguments(3, tokens, seed) if tokens else kda_arguments(3, seed, separate=separate)
    x |= {"state_indices": torch.tensor([2, -1, 4])}
    codes, scales = coded(x["state_pool"])
    conv = [name for name in x if name.endswith("conv_pool")]
    pools = {name: x[name].clone() for name in conv} | {"state_pool": read(codes, scales).float()}
    there, wide = ({name: moved(y, device) for name, y in (x | more).items()} for more in ({}, pools))
    there |= {"state_pool": codes.to(device.name, copy=True), "state_scales": scales.to(device.name, copy=True)}
    out = torch.full((3, tokens, 16) if tokens else (3, 16), torch.nan, dtype=torch.bfloat16, device=device.name)
    with device.kernels():
        assert function(**there, out=out) is out
        expected = function(**wide)
    assert rel_rms(out, expected) < 8e-3 and not out[1].any()
    assert all(torch.equal(there[name].cpu(), wide[name].cpu()) for name in conv)
    after = {"state_pool": there["state_pool"].cpu(), "state_scales": there["state_scales"].cpu()}
    assert is_rounded(*(after[name][[2, 4]] for name in after), wide["state_pool"].cpu()[[2, 4]].double())
    assert others_stay(after, {"state_pool": codes, "state_scales": scales}, [2, 4])


# ---- recurrent_forward


def recurrence(x: Call) -> Call:
    """The call of recurrent_forward that computes what fused_decode does."""
    slots, rates = x["state_indices"], x["A_log"].exp()
    raw = torch.nn.functional.softplus(x["a"].float() + x["dt_bias"])
    gate = -(rates[:, None] if raw.dim() == 4 else rates) * raw
    found = {name: x[name] for name in ("query", "key", "value")} | {"beta": x["b"].float().sigmoid(), "gate": gate}
    return found | {"state": x["state_pool"][slots], "state_scales": x["state_scales"][slots], "is_qk_norm": True}


def literal_of(x: Call, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(output, the state after every token) of recurrent_forward in fp64."""
    decay, dk = x["gate"].double().exp(), x["key"].shape[-1]
    wide = decay if decay.dim() == 4 else decay[..., None].expand(*decay.shape, dk)
    start = read(x["state"], x["state_scales"]) if start is None else start
    return literal(*(x[name] for name in ("query", "key", "value", "beta")), wide, start, norm=True)


def last_states(x: Call, to: torch.dtype | None) -> Call:
    """Buffers for the last states, none or of a dtype."""
    shape = (x["value"].shape[0], *x["value"].shape[2:], x["key"].shape[-1])
    if to is None:
        return {}
    if to == torch.int8:
        return {"final_state": torch.full(shape, 7, dtype=to), "final_scales": torch.full((*shape[:-1], shape[-1] // 32), 7.0)}
    return {"final_state": torch.full(shape, torch.nan, dtype=to)}


def recur(device: Device, x: Call, *kernels: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """(output, new state, its scales) on the CPU."""
    there = {name: moved(y, device) for name, y in x.items()}
    with device.only(*kernels) if kernels else device.kernels():
        output, last = gdn_cuda.recurrent_forward(**there)
    assert "final_state" not in x or last is there["final_state"]
    scales = there.get("final_scales")
    return output.cpu(), last.cpu(), None if scales is None else scales.cpu()


def is_last(states: Tensor, scales: Tensor | None, expected: Tensor) -> bool:
    if scales is not None:
        return is_rounded(states, scales, expected)
    return rel_rms(states, expected) < {torch.float32: 1e-5, torch.bfloat16: 3.9e-3, torch.float16: 5e-4}[states.dtype]


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/verify"), (3, "gdn/verify"), (18, "gdn/recurrent")])
def test_the_recurrence(tokens: int, kernel: str, channels: bool, device: Device, rng: torch.Generator) -> None:
    """From codes to codes without a workspace; to other states, and from these to codes."""
    for dk in device.size((96,), (64, 96, 128)):
        x = recurrence(drawn(rng, 3, tokens, dk=dk, channels=channels))
        expected, states = literal_of(x)
        for to in (torch.int8, None, torch.float32, torch.bfloat16):
            kernels = ["gdn/decode" if channels and tokens == 1 else kernel] if to == torch.int8 else []
            output, last, scales = recur(device, x | last_states(x, to), *kernels)
            assert last.dtype == (to or torch.float32)
            assert rel_rms(output, expected) < 3e-3 and is_last(last, scales, states[:, -1])
        for dtype in (torch.float32, torch.bfloat16, None):
            start = None if dtype is None else read(x["state"], x["state_scales"]).to(dtype)
            exact = torch.zeros_like(states[:, 0]) if start is None else start.double()
            expected_then, after = literal_of(x, exact)
            given = x | last_states(x, torch.int8) | {"state": start, "state_scales": None}
            output, last, scales = recur(device, given)
            assert rel_rms(output, expected_then) < 3e-3 and is_last(last, scales, after[:, -1])


def test_the_recurrence_has_the_bits_of_fused_decode(device: Device, rng: torch.Generator) -> None:
    """With the same gates, which are the call's own: raw ones."""
    for tokens in (1, 3):
        x = drawn(rng, 3, tokens, dk=64)
        output, after = decode(device, x, "gdn/decode", "gdn/verify")
        raw = {"gate": x["a"], "beta": x["b"], "beta_is_logit": True, "A_log": x["A_log"], "dt_bias": x["dt_bias"]}
        given = recurrence(x) | raw
        mine, last, scales = recur(device, given | last_states(given, torch.int8))
        slots = x["state_indices"]
        assert torch.equal(mine, output) and torch.equal(last, after["state_pool"][slots])
        assert scales is not None and torch.equal(scales, after["state_scales"][slots])


def test_states_of_an_earlier_verify_as_codes(device: Device, rng: torch.Generator) -> None:
    """New ones are fp32."""
    x = recurrence(drawn(rng, 3, 4))
    states = torch.randn(3, 5, *x["state"].shape[1:], generator=rng)
    codes, scales = coded(states)
    verify = {"inference_mode": gdn_cuda.InferenceMode.SPEC_VERIFY, "num_accepted_tokens": torch.tensor([3, 0, 5])}
    expected, after = literal_of(x, read(codes, scales)[torch.arange(3), torch.tensor([2, 0, 4])])
    output, found, _ = recur(device, x | {"state": codes, "state_scales": scales} | verify)
    assert found.dtype == torch.float32 and rel_rms(output, expected) < 3e-3 and rel_rms(found, after) < 1e-5
    expected, after = literal_of(x)
    output, found, _ = recur(device, x | verify)
    assert rel_rms(output, expected) < 3e-3 and rel_rms(found, after) < 1e-5


def test_hostile_states_of_the_recurrence(device: Device, rng: torch.Generator) -> None:
    """Scales of 0 and NaN, a state that is not read, a reset, a sequence without tokens, odd addresses, gaps, fp32 rows."""
    x = recurrence(drawn(rng, 4, 3, dk=64))
    x["state_scales"][0, 0, :4, 0], x["state_scales"][1], x["state_scales"][2] = 0, torch.nan, torch.nan
    x["gate"][2, 0] = -torch.inf
    start = read(x["state"], x["state_scales"])
    start[1:3] = 0
    x["has_initial_state"] = torch.tensor([True, False, True, True])
    expected, states = literal_of(x | {"gate": x["gate"].clamp(min=-1e4)}, start)
    for to in (torch.int8, None):
        output, last, scales = recur(device, x | last_states(x, to))
        assert rel_rms(output, expected) < 3e-3 and is_last(last, scales, states[:, -1])

    packed = {name: torch.cat([x[name][n, :length] for n, length in enumerate((3, 3, 0, 2))])
              for name in ("query", "key", "value", "beta", "gate")}  # fmt: skip
    packed |= {"cu_seqlens": torch.tensor([0, 3, 6, 6, 8])}
    x["state_scales"][2] = x["state_scales"][3]
    start[2] = read(x["state"], x["state_scales"])[2]
    for to in (torch.int8, None):
        output, last, scales = recur(device, x | last_states(x, to) | packed)
        assert rel_rms(output[6:], expected[3, :2]) < 3e-3
        assert is_last(last[2:3], None if scales is None else scales[2:3], start[2:3])

    memory = torch.zeros(4, x["state"][0].numel() + 3, dtype=torch.int8)
    odd = memory[:, 3:].view(x["state"].shape).copy_(x["state"])
    gaps = {name: torch.cat([x[name], x[name]], -1)[..., : x[name].shape[-1]] for name in ("query", "value")}
    wide = {name: x[name].float() for name in ("query", "key", "value")}
    x["gate"][2, 0] = -1.0
    expected, states = literal_of(x, start)
    for more in ({"state": odd}, gaps, wide):
        for to in (torch.int8, torch.float16):
            given = x | more
            exact, after = literal_of(given, start)
            output, last, scales = recur(device, given | last_states(x, to))
            assert rel_rms(output, exact) < 3e-3 and is_last(last, scales, after[:, -1])


# ---- chunked_forward


@pytest.mark.parametrize("io", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("channels", [False, True])
def test_prefill_of_slots(channels: bool, io: torch.dtype, device: Device, rng: torch.Generator) -> None:
    """Some sequences start from zeros, one is padding, states go to other slots; checkpoints are fp32."""
    x = drawn(rng, 4, 70, (1, 2), 64, 16, io, channels)
    decay, beta = torch.rand(x["a"].shape, generator=rng) * 0.2 + 0.8, torch.rand(x["b"].shape, generator=rng)
    x["key"] = torch.nn.functional.normalize(x["key"].float(), dim=-1).to(io)
    slots, written = torch.tensor([2, -1, 4, 3]), torch.tensor([2, 0, 5, -1])
    initial = torch.tensor([True, True, False, True])
    call = {
        **{name: x[name] for name in ("query", "key", "value")},
        "beta": beta,
        "gate": decay.log(),
        "state": x["state_pool"],
        "state_scales": x["state_scales"],
        "state_indices": slots,
        "write_indices": written,
        "has_initial_state": initial,
        "checkpoint_every": 64,
        "states_before": torch.full((8, *x["state_pool"].shape[1:]), 7.0),
    }
    there = {name: moved(y, device) for name, y in call.items()}
    with device.kernels():
        output, last, checkpoints = gdn_cuda.chunked_forward(**there)
    assert last is there["state"] and checkpoints.dtype == torch.float32
    start = read(x["state_pool"], x["state_scales"])[slots.clamp(min=0)]
    start[2] = 0
    wide = decay if channels else decay[..., None].expand(*decay.shape, 64)
    expected, states = literal(*(x[name] for name in ("query", "key", "value")), beta, wide, start)
    chosen = [0, 2, 3]
    bound = 6e-3 if io == torch.bfloat16 else 1e-5
    assert rel_rms(output.cpu()[chosen], expected[chosen]) < bound and not output[1].any()
    assert rel_rms(checkpoints.cpu()[chosen], states[chosen, 63]) < bound
    before = there["states_before"].cpu()
    assert rel_rms(before[[0, 4, 6]], start[chosen]) < 1e-7 and rel_rms(before[[1, 5, 7]], states[chosen, 63]) < bound
    pool, scales = there["state"].cpu(), there["state_scales"].cpu()
    assert rel_rms(read(pool, scales)[[2, 5]], states[[0, 2], -1]) < 0.01
    assert others_stay({"state_pool": pool, "state_scales": scales}, x, [2, 5])

    more = {"checkpoint_offsets": torch.tensor([33, 5, 0, 70]), "checkpoint_every": 0, "states_before": None}
    there = {name: moved(y, device) for name, y in (call | more).items()}
    with device.kernels():
        output, _, checkpoints = gdn_cuda.chunked_forward(**there)
    assert rel_rms(output.cpu()[chosen], expected[chosen]) < bound and not checkpoints[2].any()
    assert rel_rms(checkpoints.cpu()[[0, 3]], states[[0, 3], [32, 69]]) < bound
    pool, scales = there["state"].cpu(), there["state_scales"].cpu()
    assert rel_rms(read(pool, scales)[[2, 5]], states[[0, 2], -1]) < 0.01
    assert others_stay({"state_pool": pool, "state_scales": scales}, x, [2, 5])
