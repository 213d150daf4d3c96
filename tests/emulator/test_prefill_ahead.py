"""gdn/prefill_ahead in the emulator: it gives the bits of gdn/prefill, which a device with one multiprocessor runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated import emulated
from gdn_inputs import to_double
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import chunked_forward, reference
from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs

T = 1500  # 24 chunks, for which it is chosen
INF, NAN = float("inf"), float("nan")


def inputs(seed: int, T: int = T, dk: int = 64, dv: int = 64, **options: Any) -> dict[str, Tensor]:
    given = {"B": 1, "Hk": 1, "Hv": 1, "dtype": torch.bfloat16, "gate_range": (-1.0, 0.0), **options}
    return make_gdn_inputs(T=T, dk=dk, dv=dv, seed=seed, **given)


def run(multiprocessors: int, kernel: str, x: dict[str, Tensor], **options: Any) -> tuple[Tensor, ...]:
    with emulated(multiprocessors) as launched:
        results = chunked_forward(**x, deterministic=True, out=torch.full_like(x["value"], NAN), **options)
    names = [name for name in launched() if name.startswith("gdn/")]
    assert len(names) == 1 and names[0].startswith(f"gdn/{kernel}{{")
    return tuple(result for result in results if result is not None)


def check(x: dict[str, Tensor], bound: float = 5e-3, **options: Any) -> None:
    ahead, usual = run(132, "prefill_ahead", x, **options), run(1, "prefill", x, **options)
    for mine, other in zip(ahead, usual, strict=True):
        assert torch.equal(mine, other)
    expected, expected_state, _ = reference.recurrent(**to_double(x), keep_steps=True, **options)
    assert rel_rms(ahead[0], expected) < bound and rel_rms(ahead[1], expected_state) < bound


@pytest.mark.parametrize("T, io", [(1472, torch.bfloat16), (1473, torch.float16), (1599, torch.bfloat16)])
def test_lengths(T: int, io: torch.dtype, seed: int) -> None:
    check(inputs(seed, T, dtype=io, Hk=2, Hv=2), 1e-3 if io == torch.float16 else 5e-3)


@pytest.mark.parametrize("dk, dv", [(40, 72), (128, 136), (96, 8)])
def test_head_dimensions(dk: int, dv: int, seed: int) -> None:
    check(inputs(seed, T, dk, dv))


@pytest.mark.parametrize("gates, key_mode", [*(((-0.2, 0.0), mode) for mode in KEY_MODES), ((-100.0, 0.0), "parallel")])
def test_hostile_inputs(gates: tuple[float, float], key_mode: str, seed: int) -> None:
    """Beta up to 2: similar keys make the inverse cancel, and it, V' and P are used in two parts."""
    x = inputs(seed, T, 128, 64, gate_range=gates, beta_max=2.0, key_mode=key_mode)
    # Repeated keys with beta near 2 keep what rounding adds: the sequence is long for the usual bound.
    check(x, 1.5e-2 if key_mode == "repeated" else 5e-3, use_qk_l2norm=key_mode == "unnormalized")


# Each pair of a sequence and a head gets three or two blocks that prepare.
@pytest.mark.parametrize("multiprocessors", [132, 9])
def test_blocks_that_prepare_share_the_chunks(multiprocessors: int, seed: int) -> None:
    x = inputs(seed, Hv=3)
    for mine, other in zip(run(multiprocessors, "prefill_ahead", x), run(1, "prefill", x), strict=True):
        assert torch.equal(mine, other)


def test_packed_sequences(seed: int) -> None:
    options: dict[str, Any] = {"Hk": 1, "Hv": 1, "dtype": torch.bfloat16, "gate_range": (-1.0, 0.0)}
    x = make_packed_gdn_inputs([1600, 0, 70, 3400], dk=64, dv=64, seed=seed, **options)
    check(x)
    # Tokens past a sequence's end are the next one's.
    last = int(x["cu_seqlens"][-2])
    poisoned = {name: x[name].clone() for name in ("query", "key", "value")}
    for rows in poisoned.values():
        rows[last:] = NAN
    out, state = run(132, "prefill_ahead", x)
    among, states = run(132, "prefill_ahead", x | poisoned)
    assert torch.equal(among[:last], out[:last]) and torch.equal(states[:-1], state[:-1])


@pytest.mark.parametrize("dv", [64, 136])
def test_sequences_without_a_state_in_the_pool(dv: int, seed: int) -> None:
    x = inputs(seed, T, 64, dv, B=3)
    pool = torch.zeros(2, 1, dv, 64)
    out, *_ = run(132, "prefill_ahead", x | {"state": pool}, state_indices=torch.tensor([-1, 7, 1]))
    assert not out[0].any() and bool(out[1].isnan().all()) and bool(out[2].isfinite().all())


def test_a_pool_in_place_with_checkpoints(seed: int) -> None:
    x = inputs(seed, B=2)
    pool = torch.randn(4, *x["state"].shape[1:], generator=torch.Generator().manual_seed(seed))
    pool[[3, 1]] = x["state"]
    slots = torch.tensor([3, 1])
    kept = pool.clone()
    results = []
    for multiprocessors, kernel in ((132, "prefill_ahead"), (1, "prefill")):
        mine = kept.clone()
        results.append((mine, *run(multiprocessors, kernel, x | {"state": mine}, state_indices=slots, checkpoint_every=128)))
    for mine, other in zip(*results, strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(results[0][0][::2], kept[::2]) and not torch.equal(results[0][0], kept)
    _, _, steps = reference.recurrent(**to_double(x), keep_steps=True)
    assert steps is not None and rel_rms(results[0][3], steps[:, 127::128].flatten(0, 1)) < 5e-3


@pytest.mark.parametrize("given", [None, torch.bfloat16])
def test_state_dtypes(given: torch.dtype | None, seed: int) -> None:
    x: dict[str, Any] = inputs(seed)
    x["state"] = None if given is None else x["state"].to(given)
    ahead, usual = run(132, "prefill_ahead", x), run(1, "prefill", x)
    assert ahead[1].dtype == (given or torch.float32) and all(map(torch.equal, ahead, usual))


def value(x: dict[str, Tensor]) -> None:
    x["value"][0, 299, 0, 5] = NAN


def key(x: dict[str, Tensor]) -> None:
    x["key"][0, 630, 0, 7] = INF
    x["gate"][0, 640] = -INF


def state(x: dict[str, Tensor]) -> None:
    x["state"][0, 0, 3, 3] = INF


def nothing(x: dict[str, Tensor]) -> None:
    pass


@pytest.mark.parametrize("poison", [value, key, state, nothing])
def test_strong_gates(poison: Callable[[dict[str, Tensor]], None], seed: int) -> None:
    """The chain computes a chunk that resets the state token by token if it has an infinity or NaN."""
    x = inputs(seed, gate_range=(-0.3, 0.0))
    x["gate"][0, [5, 300, 301, T - 1]] = -INF
    poison(x)
    ahead, usual = run(132, "prefill_ahead", x), run(1, "prefill", x)
    for mine, other in zip(ahead, usual, strict=True):
        assert torch.equal(mine.isnan(), other.isnan()) and torch.equal(mine.nan_to_num(0), other.nan_to_num(0))
    assert bool(ahead[0][0, 641:].isfinite().all()) and bool(ahead[1].isfinite().all())


def test_it_is_chosen_for_slow_decay_where_fast_decay_would_be_split(seed: int) -> None:
    x = inputs(seed, 5200, 64, 128, Hk=2, Hv=2, gate_range=(-2.0, -1.0))
    x["gate"][..., 1] *= 1e-4
    expected, expected_state, _ = reference.recurrent(**to_double(x))
    with emulated(multiprocessors=8) as launched:
        out, last = chunked_forward(**x, out=torch.full_like(x["value"], NAN))[:2]
    assert len(launched()) == 2 and any("prefill_ahead" in name for name in launched())
    assert last is not None and rel_rms(out, expected) < 5e-3 and rel_rms(last, expected_state) < 5e-3
