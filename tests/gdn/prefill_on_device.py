"""chunked_forward against the recurrence in fp64: hostile gates and keys, head dimensions, packing, pools, checkpoints. In the
emulator by gdn/prefill; on a GPU by the kernel that its heads get, or the one that GDN_PREFILL names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from gdn_inputs import take_sequence, to_double
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import chunked_forward, recurrent_forward, reference
from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs

# Of output and state: V', the scores and the state are each rounded to bf16 for the tensor cores.
BOUND = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
# Multiprocessors for which few heads get one value warpgroup a block, and two: a busy device has few blocks.
GROUPS = ((1, 132), (2, 1))
LONGEST_NARROW_KEY = 128  # longer keys always get one


def inputs(
    device: Device, seed: int, T: int, dk: int | None = None, dv: int | None = None, **options: Any
) -> dict[str, Tensor]:
    form = {"dk": dk or device.size(64, 128), "dv": dv or device.size(64, 128), "gate_range": (-1.0, 0.0)}
    form |= device.size({"B": 1, "Hk": 1, "Hv": 1}, {})
    return make_gdn_inputs(T=T, seed=seed, device=device.name, **{"dtype": torch.bfloat16, **form, **options})


def packed_inputs(
    device: Device, seed: int, lengths: list[int], dk: int | None = None, dv: int | None = None, **options: Any
) -> dict[str, Tensor]:
    form = {"dk": dk or device.size(64, 128), "dv": dv or device.size(64, 128), "gate_range": (-1.0, 0.0)}
    form |= device.size({"Hk": 1, "Hv": 2}, {})
    return make_packed_gdn_inputs(lengths, seed=seed, device=device.name, **{"dtype": torch.bfloat16, **form, **options})


def oracle(x: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state and states after every token, in fp64."""
    given = {name: each for name, each in x.items() if each is not None}
    out, last, steps = reference.recurrent(**to_double(given), keep_steps=True, **options)
    assert steps is not None
    return out, last, steps


def poisoned(value: Tensor) -> Tensor:
    return torch.full_like(value, torch.nan)


def run(
    device: Device, x: dict[str, Tensor], multiprocessors: int = 132, groups: int | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Output and state. The emulator checks the kernel, and how many value warpgroups its blocks have."""
    with device.kernels(multiprocessors) as launched:
        out, state = chunked_forward(**x, out=poisoned(x["value"]), **options)[:2]
    if launched is not None:
        names = [name for name in launched() if name.startswith("gdn/")]
        assert names and all(name.startswith("gdn/prefill{") for name in names)
        assert groups is None or all(f".value_groups = {groups}," in name for name in names)
    assert state is not None
    return out, state


def check(
    device: Device, x: dict[str, Tensor], multiprocessors: int = 132, groups: int | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    expected, expected_state, _ = oracle(x, **options)
    out, state = run(device, x, multiprocessors, groups, **options)
    bound = BOUND[x["value"].dtype]
    assert rel_rms(out, expected) < bound and rel_rms(state, expected_state) < bound
    return out, state


def devices_of(device: Device, dk: int | None = None) -> tuple[tuple[int | None, int], ...]:
    """(value warpgroups of a block, multiprocessors) to run with."""
    return device.size(GROUPS[:1] if dk and dk > LONGEST_NARROW_KEY else GROUPS, ((None, 132),))


@pytest.mark.parametrize("dk", [128, 192, 256])
@pytest.mark.parametrize("key_mode", KEY_MODES)
@pytest.mark.parametrize("gates", [(-100.0, 0.0), (-5.0, 0.0), (-0.2, 0.0), (0.0, 0.0)])
def test_hostile_inputs(gates: tuple[float, float], key_mode: str, dk: int, device: Device, seed: int) -> None:
    """Beta up to 2: similar keys make the inverse cancel, and it is used in two parts."""
    for T in device.size((200,), (64, 300)):
        x = inputs(device, seed, T, dk, 128, gate_range=gates, beta_max=2.0, key_mode=key_mode)
        for groups, multiprocessors in devices_of(device, dk):
            check(device, x, multiprocessors, groups, use_qk_l2norm=key_mode == "unnormalized")


@pytest.mark.parametrize("length, beta", [(1.5, 1.0), (40.0, 1e-3), (1.0, -0.5), (1.0, 0.0), (1e7, 1e-14)])
def test_keys_and_betas_beyond_fp16(length: float, beta: float, device: Device, seed: int) -> None:
    """I + A is inverted in fp16 only where keys are no longer than 1 and betas in [0, 2]. In the last case one key is so long
    that A has entries of 5e5, which matter although its beta is small."""
    one = length > 100
    for dtype in (torch.bfloat16,) if one else (torch.bfloat16, torch.float16):
        x = inputs(device, seed, 130, 128, 128, gate_range=(-0.1, 0.0), dtype=dtype)
        which = slice(7, 8) if one else slice(None)
        x["key"][:, which] *= length
        x["beta"][:, which] *= beta
        for groups, multiprocessors in devices_of(device):
            check(device, x, multiprocessors, groups)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("gate", [0.0, -0.5])
def test_a_short_key_is_all_there_is(gate: float, norms: bool, device: Device, seed: int) -> None:
    """All values but one are 0, and its key is 1e-5 long: later keys change what it added by less than fp16 has."""
    x = inputs(device, seed, 64, 128, 128, gate_range=(gate, gate))
    x["state"].zero_()
    x["key"][:, 1] *= 1e-5
    x["value"][:, 0] = x["value"][:, 2:] = 0
    for groups, multiprocessors in devices_of(device):
        check(device, x, multiprocessors, groups, use_qk_l2norm=norms)


@pytest.mark.parametrize(
    "dk, dv",
    [
        *((128, 128), (64, 64), (40, 72), (8, 8), (128, 40), (96, 192), (64, 256), (112, 136)),
        *((136, 8), (192, 128), (200, 72), (256, 64), (256, 256)),
    ],
)
def test_head_dimensions(dk: int, dv: int, device: Device, seed: int) -> None:
    for T in device.size((150,), (1, 63, 65, 200)):
        x = inputs(device, seed, T, dk, dv, Hk=2, Hv=device.size(4, 6), gate_range=(-2.0, 0.0))
        for _, multiprocessors in devices_of(device, dk):
            check(device, x, multiprocessors)


@pytest.mark.parametrize("dk", [None, 256])
@pytest.mark.parametrize("B, Hk, Hv", [(1, 1, 1), (3, 2, 4), (3, 2, 16), (9, 16, 32)])  # few blocks, and more than run at once
def test_a_batch_gives_the_bits_of_each_sequence_alone(
    B: int, Hk: int, Hv: int, dk: int | None, device: Device, seed: int
) -> None:
    device.skip_above(4, Hv)
    x = inputs(device, seed, device.size(130, 150), dk, dv=128, B=B, Hk=Hk, Hv=Hv)
    for groups, multiprocessors in devices_of(device, dk):
        out, state = check(device, x, multiprocessors, groups)
        again, again_state = run(device, x, multiprocessors)
        assert torch.equal(out, again) and torch.equal(state, again_state)
        alone, last = run(device, {name: each[-1:] for name, each in x.items()}, multiprocessors)
        assert torch.equal(alone, out[-1:]) and torch.equal(last, state[-1:])


@pytest.mark.parametrize("dk", [None, 192, 256])
@pytest.mark.parametrize("lengths", [[70, 1, 0, 128, 65], [3, 70, 3, 70], [0, 0, 3], [200]])
def test_packed_sequences_are_those_alone_and_beside_nan(lengths: list[int], dk: int | None, device: Device, seed: int) -> None:
    x = packed_inputs(device, seed, lengths, dk or device.size(96, 128), 128, gate_range=(-2.0, 0.0))
    for groups, multiprocessors in devices_of(device, dk):
        out, state = check(device, x, multiprocessors, groups)
        for n, length in enumerate(lengths):
            if length == 0:
                continue
            mine = slice(int(x["cu_seqlens"][n]), int(x["cu_seqlens"][n + 1]))
            beside = {name: poisoned(x[name]) for name in ("query", "key", "value")}
            for name, rows in beside.items():
                rows[mine] = x[name][mine]
            among, states = run(device, x | beside, multiprocessors)
            assert torch.equal(among[mine], out[mine]) and torch.equal(states[n], state[n])
            alone, last = run(device, take_sequence(x, n), multiprocessors)
            assert torch.equal(alone[0], out[mine]) and torch.equal(last[0], state[n])


def test_slices_of_one_projection(device: Device, seed: int) -> None:
    x = inputs(device, seed, 130, B=2, Hk=2, Hv=4)
    B, T, Hv, d = x["value"].shape
    both = torch.cat([x[name].flatten(2) for name in ("query", "key", "value")], -1)
    query, key, value = (part.unflatten(-1, (-1, d)) for part in both.split([2 * d, 2 * d, 4 * d], -1))
    wide = torch.full((B, T, Hv, 3 * d), torch.nan, dtype=torch.bfloat16, device=device.name)
    expected, expected_state = run(device, x)
    with device.kernels():
        out, state = chunked_forward(**x | {"query": query, "key": key, "value": value}, out=wide[..., 2 * d :])
    assert torch.equal(out, expected) and state is not None and torch.equal(state, expected_state)
    assert bool(wide[..., : 2 * d].isnan().all())


@pytest.mark.parametrize("scale", [0.5, 0.0, -2.0])
def test_scale(scale: float, device: Device, seed: int) -> None:
    x = inputs(device, seed, 100)
    expected, expected_state, _ = oracle(x, scale=scale)
    out, state = run(device, x, scale=scale)
    assert rel_rms(out, expected) < 5e-3 and rel_rms(state, expected_state) < 5e-3


def test_gates_and_betas_of_other_dtypes(device: Device, seed: int) -> None:
    x = inputs(device, seed, device.size(150, 200), dtype=torch.float16)
    x["gate"], x["beta"] = x["gate"].bfloat16(), x["beta"].half()
    check(device, x)


@pytest.mark.parametrize(
    "given, wanted",
    [
        (None, None),
        (None, torch.bfloat16),
        (torch.bfloat16, None),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
    ],
)
def test_state_dtypes(given: torch.dtype | None, wanted: torch.dtype | None, device: Device, seed: int) -> None:
    x: dict[str, Any] = inputs(device, seed, 70, dv=64)
    x["state"] = None if given is None else x["state"].to(given)
    _, expected, _ = oracle(x)
    _, state = run(device, x, state_dtype=wanted)
    assert state.dtype == (wanted or given or torch.float32) and rel_rms(state, expected) < 5e-3


def test_no_tokens(device: Device, seed: int) -> None:
    x = inputs(device, seed, 0)
    packed = packed_inputs(device, seed, [0, 0])
    with device.kernels():
        out, state = chunked_forward(**x)
        _, states = chunked_forward(**packed)
    assert out.numel() == 0 and torch.equal(state, x["state"]) and torch.equal(states, packed["state"])


def test_tokens_of_no_sequence(device: Device, seed: int) -> None:
    """Packed tensors of no sequence at all: outputs are 0, and states have no rows."""
    x = make_gdn_inputs(B=1, T=5, Hk=1, Hv=2, dk=64, dv=64, dtype=torch.bfloat16, device=device.name, seed=seed)
    given = {name: x[name][0] for name in ("query", "key", "value", "beta", "gate")}
    none = {"state": x["state"][:0], "cu_seqlens": torch.zeros(1, dtype=torch.int32, device=device.name)}
    for function in (chunked_forward, recurrent_forward):
        out = torch.full_like(given["value"], torch.nan)
        with device.kernels():
            _, state = function(**given, **none, out=out)[:2]
        assert state.shape[0] == 0 and not out.any()


# ---- Pools and checkpoints


@pytest.mark.parametrize("dk", [None, 256])
def test_a_pool_in_place_with_checkpoints(dk: int | None, device: Device, seed: int) -> None:
    x = packed_inputs(device, seed, [130, 0, 64, 20], dk, dv=128)
    drawn = torch.randn(9, *x["state"].shape[1:], generator=torch.Generator().manual_seed(seed)).to(device.name)
    slots = torch.tensor([4, 0, -1, 7], dtype=torch.int32, device=device.name)
    drawn[[4, 0, 7]] = x["state"][[0, 1, 3]]
    for _, multiprocessors in devices_of(device, dk):
        pool = drawn.clone()
        with device.kernels(multiprocessors):
            alone = chunked_forward(**x, checkpoint_every=64)
            out, state, checkpoints = chunked_forward(
                **x | {"state": pool}, state_indices=slots, checkpoint_every=64, out=poisoned(x["value"])
            )
        assert state is pool
        assert torch.equal(out[:130], alone[0][:130]) and torch.equal(out[194:], alone[0][194:]) and not out[130:194].any()
        assert torch.equal(pool[[4, 7]], alone[1][[0, 3]]) and torch.equal(pool[0], drawn[0])
        others = [1, 2, 3, 5, 6, 8]
        assert torch.equal(pool[others], drawn[others])
        assert checkpoints.shape[0] == 214 // 64
        assert torch.equal(checkpoints[:2], alone[2][:2]) and not checkpoints[2].any()


@pytest.mark.parametrize("every, dk", [(128, None), (192, None), (128, 192)])
def test_checkpoints(every: int, dk: int | None, device: Device, seed: int) -> None:
    x = inputs(device, seed, device.size(400, 1000), dk, B=2)
    _, expected, steps = oracle(x)
    with device.kernels():
        _, state, checkpoints = chunked_forward(**x, checkpoint_every=every)
    assert rel_rms(state, expected) < 5e-3 and rel_rms(checkpoints, steps[:, every - 1 :: every].flatten(0, 1)) < 5e-3


@pytest.mark.parametrize("dk", [None, 192, 256])
@pytest.mark.parametrize("gates", [(-2.0, 0.0), (-1e-3, 0.0)])
def test_segments_of_a_pool_in_place_with_checkpoints(
    gates: tuple[float, float], dk: int | None, device: Device, seed: int
) -> None:
    """A sequence of few heads is split, into five segments in the emulator; not with long keys."""
    x = inputs(device, seed, device.size(2600, 3200), dk, B=1, Hk=1, Hv=device.size(1, 2), gate_range=gates)
    expected, expected_state, steps = oracle(x)
    pool = torch.randn(3, *x["state"].shape[1:], generator=torch.Generator().manual_seed(seed)).to(device.name)
    for _ in range(device.size(1, 5)):
        pool[1] = x["state"][0]
        kept = pool.clone()
        slots = torch.tensor([1], device=device.name)
        with device.kernels():
            out, _, checkpoints = chunked_forward(**x | {"state": pool}, state_indices=slots, checkpoint_every=128)
        assert rel_rms(out, expected) < 5e-3 and rel_rms(pool[1], expected_state[0]) < 5e-3
        assert torch.equal(pool[::2], kept[::2]) and rel_rms(checkpoints, steps[0, 127::128]) < 5e-3
