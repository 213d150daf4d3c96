"""chunked_summary with a gate for every channel of the key, by the kernels of chunked_forward on a state of dv + dk rows,
against the recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import decays, literal
from kda_chunks_on_device import BF16, BOUND, FP16, KERNELS, inputs, there
from kda_prefill_on_device import packed, sequences_of, window  # noqa: F401
from torch import Tensor

import gdn_cuda

MOVES = "gdn/move_states"
ROWS = ("key", "value", "beta", "gate")


def summary_of(device: Device, x: dict[str, Tensor], *kernels: str, norm: bool = True, **options: Any) -> Tensor:
    """By these kernels alone, with an `out` that is NaN before; inputs stay as they are."""
    given = {name: t for name, t in x.items() if name in (*ROWS, "cu_seqlens")}
    sequences = len(x["cu_seqlens"]) - 1 if "cu_seqlens" in x else x["value"].shape[0]
    (heads, dk), dv = x["gate"].shape[-2:], x["value"].shape[-1]
    rows = dv + (dk if options.get("transition", True) else 0)
    out = torch.full((sequences, heads, rows, dk), torch.nan).to(device.name)
    given = there(device, given | options)
    kept = {name: t.clone() for name, t in given.items() if isinstance(t, Tensor)}
    with device.only(*(kernels or (*KERNELS, *(["gdn/kda_order"] if "cu_seqlens" in x else []))), MOVES):
        found = gdn_cuda.chunked_summary(**given, use_qk_l2norm=norm, out=out)
    assert found is out
    for name, t in kept.items():
        assert torch.equal(given[name].nan_to_num(), t.nan_to_num()), name
    return found.cpu()


def exact(x: dict[str, Tensor], state: Tensor | None = None, norm: bool = True) -> tuple[Tensor, Tensor]:
    """(L, M) of padded sequences."""
    decay, value = decays(x["gate"]), x["value"]
    dk = decay.shape[-1]
    identity = torch.eye(dk).double().expand(decay.shape[0], decay.shape[2], dk, dk)
    _, additions = literal(x["key"], x["key"], value, x["beta"], decay, state, norm=norm)
    none = value.new_zeros(*value.shape[:-1], dk)
    _, transitions = literal(x["key"], x["key"], none, x["beta"], decay, identity, norm=norm)
    return additions[:, -1], transitions[:, -1]


def close(found: Tensor, wanted: tuple[Tensor, Tensor], bound: float) -> bool:
    """M beside the identity that it begins as: it gets no fresh values, and the roundings of all chunks stay in it."""
    addition, transition = found.split([wanted[0].shape[-2], found.shape[-1]], -2)
    identity = torch.eye(found.shape[-1], dtype=torch.float64)
    return rel_rms(addition, wanted[0]) < bound and rel_rms(transition + identity, wanted[1] + identity) < bound


@pytest.mark.parametrize("gates", ["init", "bounded", "heavy", "channel reset"])
def test_gates_in_windows(device: Device, window: str, gates: str) -> None:  # noqa: F811
    x = inputs(150, gates, beta=2.0, dk=64)
    assert close(summary_of(device, x), exact(x), BOUND[BF16])


@pytest.mark.parametrize("dk, dv", [(128, 128), (64, 8), (40, 72), (96, 200)])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_sizes(device: Device, dk: int, dv: int, dtype: torch.dtype) -> None:
    """Rows of L and M in the same tile of 64, and in tiles of their own."""
    x = inputs(70, "init", B=2, Hv=2, dk=dk, dv=dv, io=dtype)
    assert close(summary_of(device, x), exact(x), BOUND[dtype])


@pytest.mark.parametrize("T", [1, 64, 65])
def test_from_a_state_without_a_transition(device: Device, T: int) -> None:
    x = inputs(T, "init", dk=64)
    found = summary_of(device, x, state=x["state"], transition=False)
    assert found.shape == x["state"].shape and rel_rms(found, exact(x, x["state"])[0]) < BOUND[BF16]
    both = summary_of(device, x, state=x["state"])
    assert torch.equal(both[..., :64, :], found)


def test_packed_sequences_have_the_bits_that_they_have_alone(device: Device, window: str) -> None:  # noqa: F811
    x = packed([70, 0, 1, 130, 64, 0], more=5, gates="bounded", beta=2.0, dk=64)
    found = summary_of(device, x)
    for n, at in enumerate(sequences_of(x)):
        if at.start == at.stop:
            assert torch.equal(found[n, 0], torch.cat([torch.zeros(64, 64), torch.eye(64)]))
            continue
        alone = {name: x[name][None, at] for name in ROWS}
        assert close(found[n : n + 1], exact(alone), BOUND[BF16])
        assert torch.equal(found[n : n + 1], summary_of(device, alone))


@pytest.mark.parametrize("dk", [64, 40])
@pytest.mark.parametrize("at", [5, 70])
def test_nothing_before_a_reset_shows(device: Device, at: int, dk: int) -> None:
    """The chunk of the reset goes token by token. Kernels have columns past dk, in which infinity times 0 is NaN."""
    x = inputs(150, "token reset", dk=dk)  # token 75
    x["value"][:, at] = torch.inf
    found = summary_of(device, x)
    after = {name: x[name][:, 75:] for name in ROWS}
    assert not found[..., 64:, :].any() and close(found, exact(after), BOUND[BF16])


def test_invalid_offsets_write_nothing_else(device: Device) -> None:
    for offsets in ([0, 100, 50, 120], [3, 2, 1, 0], [-5, 60, 400, 90], [0, 120, 0, 120]):
        summary_of(device, packed([40, 40, 40], dk=64) | {"cu_seqlens": torch.tensor(offsets)})
        device.synchronize()


@pytest.mark.parametrize("change", ["float32", "odd rows", "rows with gaps", "every second channel", "no tokens"])
def test_other_inputs(device: Device, change: str) -> None:
    x, kernels = inputs(0 if change == "no tokens" else 5, "bounded", beta=2.0, dk=64), ("gdn/recurrent", "gdn/recurrent_any")
    if change == "float32":
        x |= {name: x[name].float() for name in ("key", "value")}
    if change == "odd rows":
        x["key"] = torch.cat([x["key"], x["key"]], -1)[..., 1:65]
    if change == "rows with gaps":
        x["key"], kernels = torch.stack([x["key"], x["key"]], -1)[..., 0], KERNELS
    if change == "every second channel":
        x["gate"], kernels = torch.stack([x["gate"], x["gate"]], -1)[..., 0], KERNELS
    found = summary_of(device, x, *kernels)
    if change == "no tokens":
        assert torch.equal(found[0, 0], torch.cat([torch.zeros(64, 64), torch.eye(64)]))
        return
    assert close(found, exact(x), 1e-5 if change == "float32" else BOUND[BF16])


def test_gates_of_a_layer(device: Device) -> None:
    x = inputs(70, "none", dk=64)
    rng = torch.Generator().manual_seed(3)
    x["gate"] = torch.randn(x["gate"].shape, generator=rng).to(BF16)
    raw: dict[str, Any] = {"A_log": torch.tensor([0.5]), "dt_bias": torch.randn(64, generator=rng), "lower_bound": -5.0}
    log_decay = decays(x["gate"], **raw).log()
    assert close(summary_of(device, x, **raw), exact(x | {"gate": log_decay}), BOUND[BF16])


def test_parts_folded_are_the_whole(device: Device) -> None:
    """What a state after three parts is, by chunked_forward's bound."""
    x = inputs(200, "init", beta=2.0, dk=64)
    parts = [{name: x[name][:, a:b] for name in ROWS} for a, b in ((0, 70), (70, 71), (71, 200))]
    every = torch.stack([summary_of(device, part) for part in parts])
    found = gdn_cuda.fold_states(x["state"], every[..., :64, :], every[..., 64:, :])
    _, states = literal(x["key"], x["key"], x["value"], x["beta"], decays(x["gate"]), x["state"], norm=True)
    assert rel_rms(found, states[:, -1]) < BOUND[BF16]
