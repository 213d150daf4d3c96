"""Mamba-2's scan by its kernels, against the literal recurrence in fp64."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import ssd_scan, ssd_summary
from gdn_cuda.ssd.gradients import ssd_scan_backward
from gdn_cuda.ssd.parts import state_gradient_before
from gdn_cuda.ssd.reference import Scan, Steps, recurrent

BF16, F16 = torch.bfloat16, torch.float16
OUT, STATE = {BF16: 4e-3, F16: 1e-3}, {BF16: 3e-3, F16: 7.5e-4}
TOKENS = ("x", "dt", "B", "C", "z")
KERNELS = ("ssd/prefill", "ssd/prefill_mma", "ssd/steps", "common/uncovered_zeros")
BACKWARD = ("ssd/backward", "ssd/backward_mma")


def drawn(
    device: Device,
    seed: int,
    T: int = 200,
    H: int = 4,
    G: int = 2,
    P: int = 64,
    N: int = 128,
    B: int = 1,
    D: int = 1,
    z: bool = False,
    decay: float = 1.0,
    dtype: torch.dtype = BF16,
    lengths: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """As a layer at initialisation: A from −1 to −16, δ log-uniform from 0.001 to 0.1 by bias and softplus. D with so many
    dimensions, 0: none."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*sizes, generator=rng).to(device.name, dtype)

    step = torch.exp(torch.rand(H, generator=rng) * math.log(100) + math.log(1e-3)).to(device.name)
    sequences = B if lengths is None else len(lengths)
    offsets = None if lengths is None else torch.tensor([0, *lengths], device=device.name).cumsum(0).int()
    return {
        "x": normal(B, T, H, P, dtype=dtype),
        "dt": normal(B, T, H, dtype=dtype) / 2,
        "A": -decay * (1 + 15 * torch.rand(H, generator=rng).to(device.name)),
        "B": normal(B, T, G, N, dtype=dtype),
        "C": normal(B, T, G, N, dtype=dtype),
        "D": (None, normal(H), normal(H, P))[D],
        "z": normal(B, T, H, P, dtype=dtype) if z else None,
        "dt_bias": torch.log(torch.expm1(step)),
        "initial_state": normal(sequences, H, P, N),
        "cu_seqlens": offsets,
        "dt_softplus": True,
    }


def scanned(**x: Any) -> tuple[Tensor, Tensor]:
    out, last = ssd_scan(**x, return_last_state=True)
    return out, last


def expected(x: dict[str, Any], limit: tuple[float, float] = (0.0, math.inf)) -> tuple[Tensor, Tensor]:
    wide = {name: y.double() if isinstance(y, Tensor) and y.is_floating_point() else y for name, y in x.items()}
    steps, cu_seqlens = Steps(wide.pop("dt_softplus"), limit), wide.pop("cu_seqlens")
    scan = Scan(**wide)
    if cu_seqlens is None:
        return recurrent(scan, steps)
    out, states = torch.zeros_like(scan.x), []
    for n, (first, end) in enumerate(pairwise(cu_seqlens.tolist())):
        rows = {name: None if wide[name] is None else wide[name][:, first:end] for name in ("x", "dt", "B", "C", "z")}
        initial = None if scan.initial_state is None else scan.initial_state[n : n + 1]
        out[:, first:end], state = recurrent(scan._replace(**rows, initial_state=initial), steps)
        states.append(state)
    return out, torch.cat(states)


def check(device: Device, x: dict[str, Any], **more: Any) -> None:
    with device.only(*KERNELS), torch.no_grad():
        out, last = scanned(**x, **more)
    wanted, state = expected(x, more.get("dt_limit", (0.0, math.inf)))
    dtype = x["x"].dtype
    assert out.dtype == dtype and last.dtype == torch.float32
    assert rel_rms(last, state) < STATE[dtype] or not state.any()
    assert out.numel() == 0 or rel_rms(out, wanted) < OUT[dtype]


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 300, 5000])
@pytest.mark.parametrize("N", [64, 128])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_lengths(dtype: torch.dtype, N: int, length: int, device: Device, seed: int) -> None:
    device.skip_above(300, length)
    check(device, drawn(device, seed, T=length, N=N, dtype=dtype))


@pytest.mark.parametrize("H, G", [(1, 1), (2, 1), (3, 1), (5, 1), (6, 3), (7, 7)])
@pytest.mark.parametrize("z", [False, True])
@pytest.mark.parametrize("D", [0, 1, 2])
def test_heads_of_groups(D: int, z: bool, H: int, G: int, device: Device, seed: int) -> None:
    check(device, drawn(device, seed, T=130, H=H, G=G, N=64 if seed % 2 else 128, D=D, z=z, B=2))


# Models', and others that are multiples of 8.
@pytest.mark.parametrize("P, N", [(80, 128), (128, 256), (64, 256), (8, 16), (200, 72), (136, 200)])
@pytest.mark.parametrize("z", [False, True])
def test_sizes_of_heads(z: bool, P: int, N: int, device: Device, seed: int) -> None:
    check(device, drawn(device, seed, T=130, H=3 if seed % 2 else 2, G=1, P=P, N=N, z=z, D=2))
    check(device, drawn(device, seed, T=75, H=2, G=2, P=P, N=N, z=z, lengths=(70, 5)))


@pytest.mark.parametrize("decay", [0.0, 1e-4, 1.0, 100.0, 1e4])
def test_decays(decay: float, device: Device, seed: int) -> None:
    check(device, drawn(device, seed, T=device.size(200, 2000), decay=decay))


@pytest.mark.parametrize("limit", [(0.0, math.inf), (0.01, 0.05), (0.0, 0.0)])
def test_limits(limit: tuple[float, float], device: Device, seed: int) -> None:
    check(device, drawn(device, seed), dt_limit=limit)


@pytest.mark.parametrize("lengths", [(30, 0, 1, 100, 64), (65,), (63, 1, 64, 70, 0)])
@pytest.mark.parametrize("z", [False, True])
def test_packed(z: bool, lengths: tuple[int, ...], device: Device, seed: int) -> None:
    check(device, drawn(device, seed, T=sum(lengths) + 5, lengths=lengths, z=z))


# ---- Numbered sequences of rows


@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("tokens", [70, 1700])
def test_sequences_of_rows(tokens: int, decay: float, device: Device, seed: int) -> None:
    """The state is zeroed where seq_idx changes, infinities of earlier chunks in it too; a row that begins with another number
    than 0 has no initial state."""
    x = drawn(device, seed, T=tokens, B=3, H=2, G=1, N=64, decay=decay)
    ends = [[0, tokens], [0, 1, 63, 64, 65, tokens], [0, tokens - 5, tokens]]
    numbers = torch.zeros(3, tokens, dtype=torch.int32)
    for row, offsets in enumerate(ends):
        for n, (first, end) in enumerate(pairwise(offsets)):
            numbers[row, first:end] = n + (row == 2)
    x["x"][2, 0] = torch.inf
    with device.only(*KERNELS), torch.no_grad():
        out, last = scanned(**x, seq_idx=numbers.to(device.name))
    for row, offsets in enumerate(ends):
        for n, (first, end) in enumerate(pairwise(offsets)):
            part = {name: y if y is None else y[row : row + 1, first:end] for name, y in x.items() if name in TOKENS}
            starts = first == 0 and row < 2
            part["initial_state"] = x["initial_state"][row : row + 1] if starts else None
            wanted, state = expected(x | part)
            if row == 2 and n == 0:
                continue  # infinite
            assert rel_rms(out[row : row + 1, first:end], wanted) < OUT[BF16]
            assert end < tokens or rel_rms(last[row : row + 1], state) < STATE[BF16]


# ---- Summaries


def check_summary(device: Device, x: dict[str, Any]) -> None:
    own = {name: y for name, y in x.items() if name not in ("C", "D", "z")}
    with device.only(*KERNELS), torch.no_grad():
        found, decay = ssd_summary(**own)
    _, wanted = expected(x)
    # From a state of ones without inputs.
    ones = x | {"x": torch.zeros_like(x["x"]), "initial_state": wanted.new_ones(wanted.shape)}
    decays = expected(ones)[1][..., 0, 0]
    assert found.dtype == decay.dtype == torch.float32
    assert rel_rms(found, wanted) < STATE[x["x"].dtype] or not wanted.any()
    assert torch.allclose(decay.double(), decays, rtol=1e-4, atol=1e-24)


@pytest.mark.parametrize("length", [0, 1, 64, 300, 9000])
@pytest.mark.parametrize("H, P, N", [(3, 64, 128), (2, 80, 64), (1, 128, 256)])
def test_summaries(H: int, P: int, N: int, length: int, device: Device, seed: int) -> None:
    device.skip_above(300, length)
    check_summary(device, drawn(device, seed, T=length, H=H, G=1, P=P, N=N, B=2))


@pytest.mark.parametrize("decay", [0.0, 1e-4, 1.0, 1e4])
def test_summaries_of_segments(decay: float, device: Device, seed: int) -> None:
    x = drawn(device, seed, T=device.size(1700, 9000), H=2, G=1, N=64, decay=decay)
    check_summary(device, x)
    check_summary(device, x | {"initial_state": None})


def test_summaries_of_packed_sequences(device: Device, seed: int) -> None:
    lengths = device.size((700, 0, 70, 600), (5000, 0, 70, 3000))
    check_summary(device, drawn(device, seed, T=sum(lengths) + 3, H=2, G=1, N=64, decay=0.01, lengths=lengths))


# ---- Pools of states


def check_pool(
    device: Device, x: dict[str, Any], pool: Tensor, slots: list[int], begin: list[bool] | None, write: list[int] | None
) -> None:
    """Sequences begin with the states in their slots, and their last states are written there, or where `write` says."""
    count, before = pool.shape[0], pool.clone()
    indices = torch.tensor(slots, device=device.name)
    first = before[indices.clamp(0, count - 1)].float()
    if begin is not None:
        first = torch.where(torch.tensor(begin, device=device.name)[:, None, None, None], first, 0)
    wanted, last = expected(x | {"initial_state": first})
    own = x | {"initial_state": pool, "state_indices": indices}
    if begin is not None:
        own["has_initial_state"] = torch.tensor(begin, device=device.name)
    if write is not None:
        own["write_indices"] = torch.tensor(write, device=device.name).int()
    with device.only(*KERNELS), torch.no_grad():
        out, _ = scanned(**own)
    states, rows = before.double(), out.double()
    for n, (slot, to) in enumerate(zip(slots, write or slots, strict=True)):
        a, b = (0, x["x"].shape[1]) if x["cu_seqlens"] is None else x["cu_seqlens"][n : n + 2].tolist()
        mine = (slice(n, n + 1), slice(None)) if x["cu_seqlens"] is None else (slice(None), slice(a, b))
        if 0 <= slot < count:
            assert a == b or rel_rms(rows[mine], wanted[mine]) < OUT[x["x"].dtype]
            if 0 <= to < count:
                states[to] = last[n].to(states)
        else:
            assert rows[mine].isnan().all() if slot >= 0 else not rows[mine].any()
    written = [to for slot, to in zip(slots, write or slots, strict=True) if 0 <= slot < count and 0 <= to < count]
    others = [slot for slot in range(count) if slot not in written]
    assert torch.equal(pool[others], before[others])
    assert not written or rel_rms(pool[written], states[written]) < STATE[BF16] + (0 if pool.dtype == torch.float32 else 3e-3)


@pytest.mark.parametrize("dtype", [torch.float32, BF16, F16])
@pytest.mark.parametrize("write", [None, [0, 4, 7, -1]])
@pytest.mark.parametrize("begin", [None, [True, False, True, True]])
def test_pools(begin: list[bool] | None, write: list[int] | None, dtype: torch.dtype, device: Device, seed: int) -> None:
    """Slots of a larger tensor; one sequence without a slot, one with a slot past the pool in other calls."""
    rng = torch.Generator().manual_seed(seed)
    pool = torch.randn(6, 5, 64, 64, generator=rng).to(device.name, dtype)[:, 1:]
    slots = [3, 1, 5 if seed % 2 else 6, -1]
    packed = drawn(device, seed, T=170, N=64, lengths=(70, 0, 65, 30), z=bool(seed % 2))
    check_pool(device, packed, pool, slots, begin, write)
    check_pool(device, drawn(device, seed, T=70, B=4, N=64), pool, slots, begin, write)


@pytest.mark.parametrize("dtype", [torch.float32, BF16, F16])
@pytest.mark.parametrize("lengths", [(70, 0, 65, 30), None])
def test_last_states_in_slots(lengths: tuple[int, ...] | None, dtype: torch.dtype, device: Device, seed: int) -> None:
    """Initial states of their own, last states in slots of a larger tensor."""
    x = drawn(device, seed, T=170 if lengths else 70, B=1 if lengths else 4, N=64, lengths=lengths)
    memory = torch.full((6, 5, 64, 64), math.nan, device=device.name, dtype=dtype)
    pool, slots = memory[:, 1:], [5, -1, 0, 6]
    with device.only(*KERNELS), torch.no_grad():
        out, last = scanned(**x, last_state=pool, write_indices=torch.tensor(slots, device=device.name))
    wanted, states = expected(x)
    assert last is pool and rel_rms(out, wanted) < OUT[BF16]
    for n in (0, 2):
        assert rel_rms(pool[slots[n]], states[n]) < STATE[BF16] + (0 if dtype == torch.float32 else 3e-3)
    assert memory[:, 0].isnan().all() and pool[1:5].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_states_before_blocks_without_checkpoints(dtype: torch.dtype, device: Device, seed: int) -> None:
    """A tensor of no rows for the states after blocks, which engines do not want beside those before."""
    x = drawn(device, seed, T=150, H=2, G=1, N=64)
    before = torch.full((3, 2, 64, 64), math.nan, device=device.name, dtype=dtype)
    buffers = {"states_before": before, "checkpoints": before[:0], "checkpoint_every": 64}
    with device.only(*KERNELS, "ssd/checkpoints"), torch.no_grad():
        out, last, _ = ssd_scan(**x, **buffers)
    wanted, state = expected(x)
    assert rel_rms(out, wanted) < OUT[BF16] and rel_rms(last, state) < STATE[BF16]
    for row in range(3):
        part = {name: y[:, : 64 * row] if name in TOKENS and y is not None else y for name, y in x.items()}
        assert rel_rms(before[row], expected(part)[1][0]) < STATE[BF16] + (0 if dtype == torch.float32 else 3e-3)


def test_a_pool_that_is_only_read(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=70, B=2, N=64)
    pool = x.pop("initial_state")
    before = pool.clone()
    with device.only(*KERNELS), torch.no_grad():
        out, _ = scanned(**x, initial_state=pool, state_indices=torch.tensor([1, 0], device=device.name), update_state=False)
    assert torch.equal(pool, before)
    assert rel_rms(out, expected(x | {"initial_state": before.flip(0)})[0]) < OUT[BF16]


@pytest.mark.parametrize("decay", [1e-4, 1.0])
def test_segments_read_a_slot_before_it_is_written(decay: float, device: Device, seed: int) -> None:
    x = drawn(device, seed, T=device.size(1700, 9000), H=2, G=1, N=64, decay=decay)
    check_pool(device, x, x.pop("initial_state"), [0], None, None)


@pytest.mark.parametrize("decay", [0.0, 1e-4, 1.0])
@pytest.mark.parametrize("z", [False, True])
def test_segments(z: bool, decay: float, device: Device, seed: int) -> None:
    """So few heads that sequences are split; slow ones need all segments before."""
    check(device, drawn(device, seed, T=device.size(1700, 9000), H=2, G=1, N=64, decay=decay, z=z))


def test_segments_of_packed_sequences(device: Device, seed: int) -> None:
    lengths = device.size((1200, 0, 70, 600), (5000, 0, 70, 3000))
    check(device, drawn(device, seed, T=sum(lengths), H=2, G=1, N=64, decay=0.01, lengths=lengths))


def test_a_reset_in_an_earlier_segment(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=1600, H=2, G=1, N=64, decay=1e-4)
    x["initial_state"][:, 1] = torch.inf
    x["dt"][:, 100] = 1e9
    with device.kernels():
        out, last = scanned(**x)
    assert torch.isfinite(last).all() and torch.isfinite(out[:, 100:]).all()


def test_the_next_sequence_is_not_read(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=160, lengths=(70, 90))
    hurt = {name: y.clone() if isinstance(y, Tensor) else y for name, y in x.items()}
    for name in ("x", "dt", "B", "C"):
        hurt[name][:, 70:] = torch.nan
    with device.kernels():
        out, last = scanned(**x)
        found, state = scanned(**hurt)
    assert torch.equal(found[:, :70], out[:, :70]) and torch.equal(state[0], last[0])


@pytest.mark.parametrize("at", [64, 70])
def test_a_reset_stops_what_is_not_finite(at: int, device: Device, seed: int) -> None:
    """An infinite state before exp(δA) = 0."""
    x = drawn(device, seed, T=150)
    x["initial_state"][:, 1] = torch.inf
    x["dt"][:, at] = 1e4
    with device.kernels():
        out, last = scanned(**x)
    assert torch.isfinite(last).all() and torch.isfinite(out[:, at:]).all() and torch.isfinite(out[:, :, 0]).all()


def part_of(x: dict[str, Any], tokens: slice, initial: Tensor | None = None) -> dict[str, Any]:
    """Some tokens of a call, from an initial state or zeros."""
    rows = {name: y[:, tokens] for name, y in x.items() if name in TOKENS and y is not None}
    return x | rows | {"initial_state": torch.zeros_like(x["initial_state"]) if initial is None else initial}


def with_resets(x: dict[str, Any], at: tuple[int, ...]) -> dict[str, Any]:
    """exp(δA) = 0 at these tokens, which are otherwise as large as others."""
    x["dt"][:, list(at)] = 1e4
    x["x"][:, list(at)] /= 1e4
    return x


HURT = [("x", math.inf), ("x", math.nan), ("B", -math.inf), ("B", math.nan), ("C", math.nan), ("dt", math.inf)]


@pytest.mark.parametrize(("name", "value"), HURT)
@pytest.mark.parametrize(("hurt", "resets"), [(10, (20,)), (70, (84, 90)), (30, (62, 130))])
def test_tokens_after_a_reset_do_not_see_those_before(
    hurt: int, resets: tuple[int, ...], name: str, value: float, device: Device, seed: int
) -> None:
    """In the chunk of a reset is a token before it whose x, B, C or dt is not finite: tokens before the one and after the other
    have what they have by the recurrence."""
    N, z = (64, 128)[hurt // 10 % 2], hurt == 30
    x = with_resets(drawn(device, seed, T=150, H=3, G=1, N=N, z=z), resets)
    x[name][:, hurt, -1] = value
    with device.only(*KERNELS), torch.no_grad():
        out, last = scanned(**x)
    wanted, state = expected(x)
    assert rel_rms(last, state) < STATE[BF16]
    for first, end in pairwise([*resets, 150]):
        assert rel_rms(out[:, first:end], wanted[:, first:end]) < OUT[BF16], (first, end)
    assert rel_rms(out[:, :hurt], wanted[:, :hurt]) < OUT[BF16]


# ---- Results in the caller's tensors


@pytest.mark.parametrize("dtype", [torch.float32, BF16, F16])
def test_results_in_the_callers_tensors(dtype: torch.dtype, device: Device, seed: int) -> None:
    """`out` as a slice that TMA cannot store to, and one that it can; the last states in slots of a larger tensor."""
    x = drawn(device, seed, T=90, H=2, G=1, N=64, lengths=(30, 0, 55))
    with device.only(*KERNELS), torch.no_grad():
        wanted = scanned(**x, state_dtype=dtype)
        for wide, first in ((144, 8), (144, 5), (128, 0)):
            rows = torch.full((1, 90, wide), torch.nan, device=device.name, dtype=BF16)
            out = rows[..., first : first + 128].unflatten(-1, (2, 64))
            states = torch.full((3, 4, 64, 64), torch.nan, device=device.name, dtype=dtype)
            last = states[:, 1:3]
            found = scanned(**x, out=out, last_state=last)
            assert found[0] is out and found[1] is last
            assert torch.equal(out, wanted[0]) and torch.equal(last, wanted[1])
            assert int(rows.isnan().sum()) == 90 * (wide - 128) and bool(states[:, [0, 3]].isnan().all())
    assert wanted[1].dtype == dtype


def test_packed_tensors_without_a_batch_dimension(device: Device, seed: int) -> None:
    """Rows that TMA cannot read or store too, and last states in slots and in a pool."""
    x = drawn(device, seed, T=70, H=2, G=1, N=64, lengths=(30, 40), z=True)
    flat = {name: y[0] if name in TOKENS and y is not None else y for name, y in x.items()}
    flat["x"] = torch.nn.functional.pad(flat["x"], (1, 2))[..., 1:-2]
    odd = torch.full((70, 2, 67), torch.nan, device=device.name, dtype=BF16)
    slots = torch.tensor([2, 0], device=device.name)
    with device.only(*KERNELS), torch.no_grad():
        wanted, found = scanned(**x), scanned(**flat)
        for out in (torch.empty_like(flat["x"], memory_format=torch.contiguous_format), odd[..., 1:65]):
            pool = torch.full((3, 2, 64, 64), torch.nan, device=device.name)
            returned, _ = scanned(**flat, out=out, last_state=pool, write_indices=slots)
            assert returned is out and torch.equal(out, wanted[0][0]) and torch.equal(pool[slots], wanted[1])
            pool[slots] = x["initial_state"]
            out.fill_(torch.nan)
            returned, _ = scanned(**flat | {"initial_state": pool}, out=out, state_indices=slots)
            assert returned is out and torch.equal(out, wanted[0][0]) and torch.equal(pool[slots], wanted[1])
            assert pool[1].isnan().all()
    assert torch.equal(found[0], wanted[0][0]) and torch.equal(found[1], wanted[1])
    assert odd[..., 0].isnan().all() and odd[..., 65:].isnan().all()


@pytest.mark.parametrize("every", [0, 64])
@pytest.mark.parametrize(
    "offsets", [[0, 150], [7, 60, 60, 127, 140], [64, 128], [150, 90, 100], [3], [*range(20, 149), *[149] * 150]]
)
def test_outputs_of_tokens_of_no_sequence_are_zero(offsets: list[int], every: int, device: Device, seed: int) -> None:
    """Of two blocks of heads, in rows with gaps, one of which TMA cannot store; with more sequences than ssd/steps has pairs of
    threads; and with chunks of reported states."""
    T, H = 150, 20 if len(offsets) < 100 else 2
    x = drawn(device, seed, T=T, H=H, G=1, P=8, N=8) | {"initial_state": None}
    x["cu_seqlens"] = torch.tensor(offsets, device=device.name)
    covered = torch.zeros(T, dtype=torch.bool)
    for first, end in pairwise(offsets):
        covered[first:end] = True
    for gap in (0, 8, 1):
        rows = torch.full((1, T, H * 8 + gap), torch.nan, device=device.name, dtype=BF16)
        out = rows[..., : H * 8].unflatten(-1, (H, 8))
        with device.kernels(), torch.no_grad():
            ssd_scan(**x, out=out, checkpoint_every=every)
        assert out[:, covered].isfinite().all() and out[:, covered].any(-1).all() and not out[:, ~covered].any()
        assert rows[..., H * 8 :].isnan().all()


def test_deterministic_calls_have_the_bits_of_each_sequence_alone(device: Device, seed: int) -> None:
    lengths = device.size((700, 0, 70, 600), (5000, 0, 70, 3000))
    x = drawn(device, seed, T=sum(lengths), H=2, G=1, N=64, decay=0.01, lengths=lengths)
    x["cu_seqlens"], offsets = None, x["cu_seqlens"]
    with device.only(*KERNELS), torch.no_grad():
        together = scanned(**x | {"cu_seqlens": offsets}, deterministic=True)
        for n, (first, end) in enumerate(pairwise(offsets.tolist())):
            own = {name: y[:, first:end] if name in TOKENS and y is not None else y for name, y in x.items()}
            own["initial_state"] = x["initial_state"][n : n + 1]
            out, last = scanned(**own, deterministic=True)
            assert torch.equal(out, together[0][:, first:end]) and torch.equal(last, together[1][n : n + 1])


@pytest.mark.parametrize("H", [8, 4])
def test_views_of_one_projection(H: int, device: Device, seed: int) -> None:
    """With four heads, tokens begin at other than multiples of 16 bytes, and tensors are copied."""
    x = drawn(device, seed, T=130, H=H, G=2, N=64, z=True)
    names = ("z", "x", "B", "C", "dt")
    rows = torch.cat([x[name].flatten(2) for name in names], -1)
    parts = rows.split([x[name][0, 0].numel() for name in names], -1)
    views = {name: part.view(x[name].shape) for name, part in zip(names, parts, strict=True)}
    with device.kernels():
        out, last = scanned(**x)
        found, state = scanned(**x | views)
    assert torch.equal(found, out) and torch.equal(state, last)


def test_two_runs_have_the_same_bits(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=device.size(130, 4000), z=True)
    with device.kernels():
        one, other = scanned(**x), scanned(**x)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---- Gradients

GRADIENT, SUM = {BF16: 6e-3, F16: 1.5e-3}, {BF16: 4e-3, F16: 1e-3}


def expected_gradients(
    x: dict[str, Any],
    out_gradient: Tensor,
    state_gradient: Tensor | None,
    limit: tuple[float, float] = (0.0, math.inf),
) -> dict[str, Tensor]:
    """Of the recurrence in fp64, by autograd."""
    leaves = {name: y.double().requires_grad_() for name, y in x.items() if isinstance(y, Tensor) and y.is_floating_point()}
    out, last = expected({**x, **leaves}, limit)
    value = (out * out_gradient.double()).sum()
    if state_gradient is not None:
        value = value + (last * state_gradient.double()).sum()
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {name: torch.zeros_like(y) if grad is None else grad for (name, y), grad in zip(leaves.items(), found, strict=True)}


def check_gradients(
    device: Device,
    x: dict[str, Any],
    with_last: bool = True,
    slack: float = 1.0,
    limit: tuple[float, float] = (0.0, math.inf),
) -> None:
    """slack: where few terms make up a sum, its error does not average out. For sums over tokens, which cancel, all of it
    counts, for others up to 2."""
    rng = torch.Generator().manual_seed(99)
    out_gradient = torch.randn(x["x"].shape, generator=rng).to(device.name, x["x"].dtype)
    state_gradient = torch.randn(x["initial_state"].shape, generator=rng).to(device.name) if with_last else None
    with device.only(*KERNELS, *BACKWARD), torch.no_grad():
        given = {name: y for name, y in x.items() if name not in ("z", "A", "x", "dt", "B", "C")}
        dx, ddt, dB, dC, sums, first = ssd_scan_backward(
            *(x[name] for name in ("x", "dt", "A", "B", "C")),
            out_gradient,
            **given,
            state_gradient=state_gradient,
            dt_limit=limit,
        )
    dA, dbias, dD = sums.double().sum(1)
    wanted = expected_gradients(x, out_gradient, state_gradient, limit)
    dtype = x["x"].dtype
    found = {"x": dx, "dt": ddt, "B": dB, "C": dC, "A": dA, "dt_bias": dbias, "D": dD, "initial_state": first}
    errors = {name: rel_rms(found[name].double(), wanted[name]) for name in wanted}
    for name, error in errors.items():
        bound = slack * SUM[dtype] if name in ("A", "dt_bias", "D") else min(slack, 2) * GRADIENT[dtype]
        assert error < bound, errors


@pytest.mark.parametrize("T", [1, 64, 65, 200])
@pytest.mark.parametrize("N", [64, 128])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_gradients(device: Device, T: int, N: int, dtype: torch.dtype) -> None:
    check_gradients(device, drawn(device, 1, T=T, H=2, G=1, N=N, dtype=dtype), slack=2 if T == 1 else 1)


@pytest.mark.parametrize(("P", "N"), [(128, 64), (80, 128), (8, 16), (64, 144), (8, 192), (80, 256)])
def test_gradients_of_sizes(device: Device, P: int, N: int) -> None:
    check_gradients(device, drawn(device, 2, T=100, H=4, G=2, P=P, N=N, B=2), slack=2 if P == 8 else 1)


@pytest.mark.parametrize(("H", "G"), [(1, 1), (3, 1), (3, 3)])
def test_gradients_of_groups(device: Device, H: int, G: int) -> None:
    check_gradients(device, drawn(device, 16, T=70, H=H, G=G, N=64, D=0))


@pytest.mark.parametrize("limit", [(0.01, 0.05), (0.0, 0.0)])
def test_gradients_within_limits(device: Device, limit: tuple[float, float]) -> None:
    check_gradients(device, drawn(device, 17, T=100, H=2, G=1, N=64), slack=2, limit=limit)


def test_gradients_of_segments(device: Device) -> None:
    """So few heads that both passes split sequences. The sums of one head are a number each."""
    check_gradients(device, drawn(device, 18, T=device.size(1100, 9000), H=1, G=1, N=64, decay=0.01), slack=25)


@pytest.mark.parametrize("decay", [0.0, 1e-4, 10.0, 1e4])
def test_gradients_with_decays(device: Device, decay: float) -> None:
    check_gradients(device, drawn(device, 3, T=130, H=2, G=1, decay=decay), with_last=decay != 0, slack=1.5)


@pytest.mark.parametrize("lengths", [(0, 65, 7), (64, 1, 0, 130), (63, 64, 1)])
def test_gradients_of_packed_sequences(device: Device, lengths: tuple[int, ...]) -> None:
    check_gradients(device, drawn(device, 4, T=sum(lengths), H=2, G=1, lengths=lengths))


def test_gradients_without_tokens(device: Device) -> None:
    x = drawn(device, 5, T=0, H=2, G=1, lengths=(0, 0))
    del x["z"]
    after = torch.randn_like(x["initial_state"])
    dx, ddt, dB, dC, sums, first = ssd_scan_backward(**x, out_gradient=torch.empty_like(x["x"]), state_gradient=after)
    assert dx.numel() == ddt.numel() == dB.numel() == dC.numel() == 0
    assert sums.eq(0).all() and first.equal(after)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("T", "decay"), [(1, 1.0), (130, 1.0), (1300, 1e-4), (130, 1e4)])
def test_the_gradient_of_the_state_before_a_part(device: Device, T: int, decay: float, dtype: torch.dtype) -> None:
    """Some steps are 0. In bf16 by kernels of the scan alone."""
    device.skip_above(200, T)
    x = drawn(device, 15, T=T, H=2, G=1, B=2, decay=decay, z=True, dtype=dtype, D=0)
    x["dt"][:, ::5] = -torch.inf  # softplus is 0
    rng = torch.Generator().manual_seed(99)
    out_gradient, after = (torch.randn(x[name].shape, generator=rng).to(x[name]) for name in ("z", "initial_state"))
    absent = dict.fromkeys(("seq_idx", "has_initial_state"))
    limits = {"dt_lowest": 0.0, "dt_highest": math.inf, "deterministic": False}
    with device.only(*KERNELS, *(BACKWARD if dtype == F16 else ())), torch.no_grad():
        found, sums = state_gradient_before(SimpleNamespace(**x | absent | limits), out_gradient, after)
    wanted = expected_gradients(x, out_gradient, after)["initial_state"]
    assert rel_rms(found.double(), wanted) < GRADIENT[dtype]
    steps = torch.nn.functional.softplus(x["dt"].double() + x["dt_bias"].double())
    assert torch.allclose(sums.double(), (steps * x["A"].double()).sum(1).exp(), rtol=1e-4, atol=1e-24)


@pytest.mark.parametrize(("D", "N"), [(0, 256), (2, 128)])
@pytest.mark.parametrize("z", [False, True])
def test_autograd(device: Device, D: int, N: int, z: bool) -> None:
    x = drawn(device, 6, T=100, H=2, G=1, N=N, D=D, z=z, B=2)
    used = torch.tensor([True, False], device=device.name)
    leaves = {name: y.requires_grad_() for name, y in x.items() if isinstance(y, Tensor)}
    out, last = scanned(**x, has_initial_state=used)
    torch.manual_seed(6)
    weights = torch.randn_like(out), torch.randn_like(last)
    found = torch.autograd.grad((out, last), list(leaves.values()), weights)
    masked = {**x, **{name: y.detach() for name, y in leaves.items()}}
    masked["initial_state"] = masked["initial_state"] * used[:, None, None, None]
    wanted = expected_gradients(masked, *(y.detach() for y in weights))
    wanted["initial_state"] = wanted["initial_state"] * used[:, None, None, None]
    for name, grad in zip(leaves, found, strict=True):
        # Of A and dt_bias the terms of few tokens cancel.
        bound = GRADIENT[BF16] * (4 if name in ("A", "dt_bias") else 1)
        assert rel_rms(grad.double(), wanted[name]) < bound, name
        assert grad.dtype == leaves[name].dtype


def test_gradients_of_views_and_rounded_parameters(device: Device) -> None:
    """x, B and C are slices of one tensor; A, D and dt_bias in bf16, dt in fp32."""
    x = drawn(device, 9, T=70, H=2, G=1)
    row = torch.cat([x["x"].flatten(2), x["B"].flatten(2), x["C"].flatten(2)], -1)
    x |= {"x": row[..., :128].unflatten(-1, (2, 64)), "B": row[..., None, 128:256], "C": row[..., None, 256:]}
    x |= {name: x[name].bfloat16() for name in ("A", "D", "dt_bias")} | {"dt": x["dt"].float()}
    check_gradients(device, x, slack=2)


def backward_of(device: Device, x: dict[str, Any]) -> tuple[Tensor, ...]:
    given = {name: y for name, y in x.items() if name != "z"}
    with device.only(*KERNELS, *BACKWARD), torch.no_grad():
        return ssd_scan_backward(**given)


def test_gradients_have_the_same_bits_in_two_runs(device: Device) -> None:
    x = drawn(device, 19, T=device.size(70, 4000), H=4, G=1)
    x["out_gradient"] = torch.randn_like(x["x"])
    assert all(torch.equal(a, b) for a, b in zip(backward_of(device, x), backward_of(device, x), strict=True))


@pytest.mark.parametrize("name", ["x", "dt", "out_gradient", "B", "C"])
def test_nan_stays_in_its_sequence_and_head_or_group(device: Device, name: str) -> None:
    """In head 0 or group 0 of the second sequence: the first one keeps its bits, and so do other heads and groups, but the
    sums over the heads of a group."""
    x = drawn(device, 20, T=120, H=4, G=2, N=64, lengths=(65, 55))
    x["out_gradient"] = torch.randn_like(x["x"])
    hurt = x | {name: x[name].clone()}
    hurt[name][:, 70, 0] = torch.nan
    others = 2 if name in ("B", "C") else 1  # the first head that keeps its bits
    pairs = zip(backward_of(device, x), backward_of(device, hurt), strict=True)
    for result, (one, other) in zip(("x", "dt", "B", "C", "sums", "first"), pairs, strict=True):
        assert other.isnan().any() or result != "dt"
        if result == "sums":  # of the chunks of both sequences
            kept = [(slice(None), slice(2)), (slice(None), slice(None), slice(others, None))]
        elif result == "first":
            kept = [(slice(1),), (slice(None), slice(others, None))]
        else:
            kept = [(0, slice(65)), (0, slice(None), slice(1 if result in ("B", "C") else others, None))]
        for part in kept:
            assert torch.equal(one[part], other[part]), (result, part)


def check_gradients_around_a_reset(
    device: Device, x: dict[str, Any], at: int, state_gradient: Tensor, after: str, before: str
) -> None:
    """exp(δA) = 0 at token `at`: these gradients of the tokens from it on, and of those before it, are those that the tokens
    have alone."""
    slope = torch.randn(x["x"].shape, generator=torch.Generator().manual_seed(98)).to(x["x"])
    results = backward_of(device, x | {"out_gradient": slope, "state_gradient": state_gradient})
    found = dict(zip(("x", "dt", "B", "C"), results[:4], strict=True))
    for tokens, gradient, names in ((slice(at, None), state_gradient, after), (slice(at), None, before)):
        rows = {name: x[name][:, tokens] for name in found}
        initial = torch.zeros_like(x["initial_state"]) if tokens.start else x["initial_state"].nan_to_num(0, 0, 0)
        wanted = expected_gradients(x | rows | {"initial_state": initial}, slope[:, tokens], gradient)
        for name in names.split():
            assert rel_rms(found[name][:, tokens].double(), wanted[name]) < 2 * GRADIENT[BF16], (name, tokens)


@pytest.mark.parametrize("at", [64, 70])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_gradients_after_a_reset(value: float, at: int, device: Device, seed: int) -> None:
    """Before it, a state that is not finite, in one head of the group: by ssd/backward dC may be NaN in the reset's chunk."""
    x = with_resets(drawn(device, seed, T=150, H=2, G=1, N=64 if math.isnan(value) else 128), (at,))
    x["initial_state"][:, 1, 3:5] = value
    check_gradients_around_a_reset(device, x, at, torch.randn_like(x["initial_state"]), "x dt B", "x B")


@pytest.mark.parametrize(("hurt", "at", "after"), [(10, 140, "x dt B"), (66, 70, "x B")])
def test_gradients_after_a_reset_after_an_infinite_token(hurt: int, at: int, after: str, device: Device, seed: int) -> None:
    """By ssd/backward dC may be NaN in the reset's chunk, and ddt if the token is in it."""
    x = with_resets(drawn(device, seed, T=150, H=2, G=1, N=64), (at,))
    x["x"][:, hurt, 1, 3:5] = math.inf
    check_gradients_around_a_reset(device, x, at, torch.randn_like(x["initial_state"]), after, "")


@pytest.mark.parametrize(("at", "before"), [(64, "x dt B C"), (70, "x dt C")])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_gradients_before_a_reset(value: float, at: int, before: str, device: Device, seed: int) -> None:
    """After it, a gradient of the state that is not finite: by ssd/backward dB may be NaN in the reset's chunk."""
    x = with_resets(drawn(device, seed, T=150, H=2, G=1, N=64), (at,))
    after = torch.zeros_like(x["initial_state"])
    after[:, 1, 3:5] = value
    check_gradients_around_a_reset(device, x, at, after, "C", before)


def test_gradients_of_numbered_sequences(device: Device) -> None:
    """Against the same operator on a CPU, in fp64. The second row begins with another number than 0."""
    x = drawn(device, 10, T=150, H=2, G=1, B=2)
    del x["z"], x["cu_seqlens"]
    x["seq_idx"] = torch.tensor([[0] * 70 + [1] * 80, [3] * 64 + [4] * 6 + [0] * 80]).int().to(device.name)
    rng = torch.Generator().manual_seed(11)
    x["out_gradient"] = torch.randn(x["x"].shape, generator=rng).to(device.name, BF16)
    x["state_gradient"] = torch.randn(x["initial_state"].shape, generator=rng).to(device.name)
    with device.only(*KERNELS, *BACKWARD):
        found = ssd_scan_backward(**x)
    wide = {n: y.cpu().double() if isinstance(y, Tensor) and y.is_floating_point() else y for n, y in x.items()}
    wanted = ssd_scan_backward(**wide | {"seq_idx": x["seq_idx"].cpu()})
    for one, other in zip((*found[:4], found[5]), (*wanted[:4], wanted[5]), strict=True):
        assert rel_rms(one.double().cpu(), other) < GRADIENT[BF16]
    assert rel_rms(found[4].double().sum(1).cpu(), wanted[4].sum(1)) < 2 * SUM[BF16]


def test_an_infinite_rate_at_a_tail(device: Device) -> None:
    """exp(A_log) may be infinite: every token resets, and those past the end do nothing."""
    x = drawn(device, 12, T=70, H=2, G=1)
    x["A"] = torch.full_like(x["A"], -math.inf)
    with device.only(*KERNELS), torch.no_grad():
        out, last = scanned(**x)
    wanted = expected(x)
    assert rel_rms(out.double(), wanted[0]) < OUT[BF16] and rel_rms(last.double(), wanted[1]) < STATE[BF16]


def test_no_channels(device: Device) -> None:
    x = drawn(device, 13, T=5, H=2, G=1, P=0)
    del x["z"]
    found = ssd_scan_backward(**x, out_gradient=torch.empty_like(x["x"]))
    assert all(each.eq(0).all() for each in found)


def test_states_at_odd_elements_are_refused(device: Device) -> None:
    x = drawn(device, 14, T=5, H=2, G=1)
    state = x["initial_state"]
    x["initial_state"] = torch.empty(state.numel() + 1, device=device.name)[1:].view_as(state)
    with pytest.raises(ValueError, match="initial_state: expected heads that begin at an even element"):
        scanned(**x)
