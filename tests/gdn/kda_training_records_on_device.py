"""gdn/kda_prepare as the backward runs it: its records against the formulas of a chunk in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import decays
from kda_chunks import CHUNK, read_training, rows_of, run, training_chunk
from kda_chunks_on_device import BF16, FP16, flushed, inputs, there
from torch import Tensor

LEAST_BETA = {BF16: 2.0**-60, FP16: 2.0**-13}
ROUNDED = {BF16: 2.5e-3, FP16: 4e-4}
INVERSE, SCORES = (
    {BF16: 5e-3, FP16: 1.25e-3},
    {BF16: 1e-2, FP16: 2.5e-3},
)  # of rounded operands; few matter where decays are fast


def check(device: Device, x: dict[str, Tensor], *, norm: bool = True, formed: float = 1.0, **gates: Any) -> list[bool]:
    """Whether entries cancel, chunk by chunk."""
    io = x["query"].dtype
    decay = decays(x["gate"], **gates)
    with device.only("gdn/kda_prepare"):
        found = run(there(device, x), **there(device, gates), norm=norm, scale=0.37, trains=True)
    records = found["records"].cpu()
    unused = torch.ones(records.shape[:2], dtype=torch.bool)
    all_cancel = []
    for _, head, record, rows in rows_of(x, decay):
        unused[head, record] = False
        tokens = len(rows[2])
        each = training_chunk(*rows, norm, LEAST_BETA[io])
        made, residuals, cancels = read_training(records[head, record], io)
        for name in ("key_in", "key_out", "query_in"):
            assert rel_rms(getattr(made, name), flushed(getattr(each, name))) < ROUNDED[io], (record, name)
            assert not getattr(made, name)[tokens:].any(), (record, name)
        for name, bound, rest in zip(("inverse", "scores"), (INVERSE, SCORES), residuals, strict=True):
            matrix = getattr(made, name)
            assert rel_rms(matrix, getattr(each, name)) < formed * bound[io], (record, name)
            for part in (matrix, rest):
                assert not part.triu(1).any(), (record, name)
            smallest = 0 if io is BF16 else 2.0**-24
            assert bool((rest.abs() <= torch.finfo(io).eps * matrix.abs() + smallest).all()), (record, name)
        assert rel_rms(made.decay, flushed(each.decay)) < 1e-5
        assert not made.decay[each.decay == 0].any()
        assert rel_rms(made.key_norm, each.key_norm) < 1e-6 and rel_rms(made.query_norm, each.query_norm) < 1e-6
        assert torch.equal(made.beta, each.beta.float().double())
        largest = float((each.inverse / each.key_norm[:, None]).tril(-1).abs().max())
        assert 0.45 < largest < 0.55 or cancels == (largest > 0.5)
        all_cancel.append(bool(cancels))
    assert bool((records[unused] == 0xFF).all())
    return all_cancel


@pytest.mark.parametrize("T", [1, 63, 64, 65, 130])
def test_lengths(device: Device, T: int) -> None:
    check(device, inputs(T, beta=2.0))


@pytest.mark.parametrize("gates", ["none", "edge", "init", "bounded", "heavy", "strong", "channel reset", "token reset"])
@pytest.mark.parametrize("io", [BF16, FP16])
def test_gates(device: Device, gates: str, io: torch.dtype) -> None:
    check(device, inputs(CHUNK + 7, gates, io=io))


@pytest.mark.parametrize("gates", ["none", "init", "heavy"])
def test_keys_that_repeat(device: Device, gates: str) -> None:
    cancels = check(device, inputs(CHUNK + 7, gates, "repeated", 2.0), formed=2.0)
    assert gates == "heavy" or cancels[0]


@pytest.mark.parametrize("keys", ["random", "zero"])
def test_betas_of_zero(device: Device, keys: str) -> None:
    x = inputs(100, "bounded", keys, Hk=2, Hv=2)
    x["beta"][:, ::3] = 0
    x["beta"][:, 40:44] = -0.0
    check(device, x)


@pytest.mark.parametrize("form", ["softplus", "bounded", "bounded without A_log", "linear"])
@pytest.mark.parametrize("io, gate", [(BF16, BF16), (FP16, torch.float32)])
def test_forms_of_gates(device: Device, form: str, io: torch.dtype, gate: torch.dtype) -> None:
    x = inputs(CHUNK + 7, Hk=2, Hv=2, io=io)
    rng = torch.Generator().manual_seed(3)
    options: dict[str, Any] = {"dt_bias": torch.randn(2, 128, generator=rng) - 2}
    if form == "linear":
        x["gate"], options = x["gate"].exp(), {"gate_is_linear": True}
        x["gate"][:, 50, 0, 3] = 0
    else:
        x["gate"] = torch.randn(x["gate"].shape, generator=rng)
        options |= {} if form == "bounded without A_log" else {"A_log": torch.rand(2, generator=rng)}
        options |= {"lower_bound": -5.0} if form.startswith("bounded") else {}
    x["gate"] = x["gate"].to(gate)
    check(device, x, **options)


@pytest.mark.parametrize("dk", [40, 64, 128])
@pytest.mark.parametrize("norm", [False, True])
def test_sizes_and_norms(device: Device, dk: int, norm: bool) -> None:
    x = inputs(CHUNK + 7, "bounded", dk=dk, B=2)
    if not norm:
        x["key"] = torch.nn.functional.normalize(x["key"].float(), dim=-1).to(BF16)
    check(device, x, norm=norm)


def test_packed_sequences(device: Device) -> None:
    """The last tokens are of no sequence, and those past a sequence's end the next one's."""
    offsets = [0, 70, 70, 200, 201, 264]
    x = {name: t[0] for name, t in inputs(300, "heavy", Hk=2, Hv=2).items()}
    del x["state"]
    for name in ("query", "key", "gate", "beta"):
        x[name][264:] = torch.nan
    check(device, x | {"cu_seqlens": torch.tensor(offsets)})
