"""gdn/kda_prepare and gdn/kda_own: records against the formulas of a chunk in fp64, states and outputs from records made of the
formulas; and chunked_forward, which runs both in windows of chunks, against the recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import KEYS, decays, drawn_keys, literal, log_decays, packed_literal
from kda_chunks import CANCELS, CHUNK, RECORD, RESETS, SCALED, chunks_of, read, records_of, run, write
from torch import Tensor

import gdn_cuda

BF16, FP16 = torch.bfloat16, torch.float16
BOUND = {BF16: 5e-3, FP16: 1.25e-3}  # of outputs and states
KERNELS = ("gdn/kda_prepare", "gdn/kda_own")
# Where there are segments, states that are not in the call's tensors, and one launch for both.
OTHERS = ("gdn/kda_fold", "gdn/move_states", "gdn/kda_ahead")
# Rounding a matrix once is 1.7e-3; Z and P' come of rounded ones.
PARTS = {"key_in": 2.5e-3, "query_in": 2.5e-3, "decay": 1e-5, "update": 5e-3, "scores": 1e-2}  # the last of few products


def inputs(
    T: int,
    gates: str = "init",
    keys: str = "random",
    beta: float = 1.0,
    *,
    B: int = 1,
    Hk: int = 1,
    Hv: int = 1,
    dk: int = 128,
    dv: int = 64,
    io: torch.dtype = BF16,
    seed: int = 1,
) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed + T)
    return {
        "query": torch.randn(B, T, Hk, dk, generator=rng).to(io),
        "key": drawn_keys(keys, (B, T, Hk, dk), rng).to(io),
        "value": torch.randn(B, T, Hv, dv, generator=rng).to(io),
        "gate": log_decays(gates, (B, T, Hv, dk), rng),
        "beta": beta * torch.rand(B, T, Hv, generator=rng),
        "state": torch.randn(B, Hv, dv, dk, generator=rng),
    }


def there(device: Device, x: dict[str, Any]) -> dict[str, Any]:
    return {name: t.to(device.name) if isinstance(t, Tensor) else t for name, t in x.items()}


def launch_parts(device: Device, x: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """The internal operator, which runs one kernel or both on the whole call."""
    asked = zip(KERNELS, (options.get("prepares", True), options.get("owns", True)), strict=True)
    order = ["gdn/kda_order"] if "cu_seqlens" in x else []
    with device.only(*(name for name, is_asked in asked if is_asked), *order):
        found = run(there(device, x), **there(device, options))
    return {name: t.cpu() for name, t in found.items()}


def launch(
    device: Device, x: dict[str, Tensor], *, norm: bool, multiprocessors: int = 132, **options: Any
) -> dict[str, Tensor]:
    """chunked_forward, by these kernels alone, with an output that is NaN before."""
    value, heads = x["value"], x["gate"].shape[-2]
    out = torch.full((*value.shape[:-2], heads, value.shape[-1]), torch.nan, dtype=value.dtype)
    given = there(device, {**x, "use_qk_l2norm": norm, "out": out, **options})
    kernels = (*KERNELS, *(["gdn/kda_order"] if "cu_seqlens" in x else []), *OTHERS)
    with device.only(*kernels, multiprocessors=multiprocessors):
        found = gdn_cuda.chunked_forward(**given)
    names = ("out", "state", "checkpoints")
    return {name: t.cpu() for name, t in zip(names, found, strict=False) if t is not None}


def flushed(x: Tensor) -> Tensor:
    """What is below fp32's range is 0 in it."""
    return torch.where(x.abs() < 2.0**-126, 0, x)


def expected(x: dict[str, Tensor], decay: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    rows = {name: x[name] for name in ("query", "key", "value", "beta")}
    output, states = literal(**rows, decay=decay, state=x["state"], **options)
    return output, flushed(states[:, -1])


def check(
    device: Device, x: dict[str, Tensor], bound: float = BOUND[BF16], *, norm: bool = True, **options: Any
) -> dict[str, Tensor]:
    found = launch(device, x, norm=norm, **options)
    decay = decays(x["gate"], **{n: options[n] for n in ("A_log", "dt_bias", "lower_bound", "gate_is_linear") if n in options})
    output, state = expected(x, decay, norm=norm, scale=options.get("scale"))
    assert rel_rms(found["out"], output) < bound and rel_rms(found["state"], state) < bound
    return found


# ---- Records


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("gates", ["none", "edge", "init", "bounded", "heavy", "strong", "channel reset", "token reset"])
def test_records(device: Device, gates: str, keys: str) -> None:
    x = inputs(CHUNK + 7, gates, keys, 2.0)
    found = launch_parts(device, x, norm=True, owns=False)
    decay = decays(x["gate"])
    for _, head, record, each in chunks_of(x, decay, scale=None, norm=True):
        flags = int(found["flags"][head, record])
        made = read(found["records"][head, record], flags, BF16)
        for name, bound in PARTS.items():
            assert rel_rms(getattr(made, name), flushed(getattr(each, name))) < bound, (record, name)
        tokens = min(CHUNK, CHUNK + 7 - record * CHUNK)
        for name in ("key_norm", "query_norm"):
            assert rel_rms(getattr(made, name)[:tokens], getattr(each, name)[:tokens]) < 1e-6
        at = slice(record * CHUNK, record * CHUNK + tokens)
        assert bool(flags & RESETS) == bool((decay[0, at, head] == 0).any())
        assert gates not in ("none", "init") or flags & SCALED


def test_residuals_where_entries_cancel(device: Device) -> None:
    found = launch_parts(device, inputs(CHUNK, "none", "repeated", 2.0), norm=True, owns=False)
    assert int(found["flags"]) & CANCELS
    plain = launch_parts(device, inputs(CHUNK), norm=True, owns=False)
    assert not int(plain["flags"]) & CANCELS and bool((plain["records"][0, 0, 7 * 8192 : 10 * 8192] == 0xFF).all())


# ---- States and outputs


@pytest.mark.parametrize("careful", [False, True])
def test_owners_of_exact_records(device: Device, careful: bool) -> None:
    x = inputs(3 * CHUNK, "bounded", "random", 2.0, dv=128)
    decay = decays(x["gate"])
    records = torch.zeros(1, records_of(x), RECORD, dtype=torch.uint8)
    flags = torch.zeros(1, records_of(x), dtype=torch.int32)
    for _, head, record, each in chunks_of(x, decay, scale=None, norm=True):
        is_careful = careful and record != 1  # with one between that is not
        records[head, record], flags[head, record] = write(each, is_careful, BF16), CANCELS * is_careful
    found = launch_parts(device, x, norm=True, prepares=False, records=records, flags=flags)
    output, state = expected(x, decay, norm=True)
    assert rel_rms(found["out"], output) < BOUND[BF16] and rel_rms(found["state"], state) < BOUND[BF16]


# ---- Both


@pytest.mark.parametrize("T", [1, 63, 64, 65, 300])
def test_lengths(device: Device, T: int) -> None:
    check(device, inputs(T, "bounded", beta=2.0))


@pytest.mark.parametrize("keys", [*KEYS, "1 % apart"])
@pytest.mark.parametrize("gates", ["none", "edge", "init", "bounded", "heavy", "strong", "channel reset", "token reset"])
def test_gates_and_keys(device: Device, gates: str, keys: str) -> None:
    x = inputs(200, gates, "random" if keys == "1 % apart" else keys, 2.0)
    if keys == "1 % apart":
        x["key"] = (x["key"][:, :1] + 0.01 * x["key"].float()).to(BF16)
    check(device, x)


@pytest.mark.parametrize("gate", [-12.0, -5.0, 0.0])
def test_sixteen_identical_keys(device: Device, gate: float) -> None:
    x = inputs(2 * CHUNK)
    x["key"][:, 20:36] = x["key"][:, 20:21]
    x["gate"][:], x["beta"][:] = gate, 1.0
    check(device, x)


def test_a_nan_stays_in_its_head(device: Device) -> None:
    x = inputs(150, "NaN in a head", Hv=2)
    found = launch(device, x, norm=True)
    output, state = expected(x, decays(x["gate"]), norm=True)
    for out, wanted in ((found["out"], output), (found["state"].transpose(1, 2), state.transpose(1, 2))):
        head = (slice(None),) * 2 + (0,)
        assert rel_rms(out[head], wanted[head]) < BOUND[BF16]
    assert bool(found["out"][:, 75:, 1].isnan().all()) and bool(found["state"][:, 1].isnan().any())
    assert rel_rms(found["out"][:, :64, 1], output[:, :64, 1]) < BOUND[BF16]


@pytest.mark.parametrize("sizes", [{"dk": 40, "dv": 72}, {"dk": 128, "dv": 128, "Hk": 1, "Hv": 3}, {"dk": 64, "dv": 8, "B": 2}])
def test_sizes(device: Device, sizes: dict[str, Any]) -> None:
    check(device, inputs(100, "bounded", beta=2.0, **sizes))


@pytest.mark.parametrize("io, gate", [(FP16, torch.float32), (FP16, FP16), (BF16, BF16)])
@pytest.mark.parametrize("gates", ["init", "edge", "heavy"])
def test_dtypes(device: Device, io: torch.dtype, gate: torch.dtype, gates: str) -> None:
    x = inputs(130, gates, io=io, dv=128)
    x["gate"] = x["gate"].to(gate)
    check(device, x, BOUND[io])


@pytest.mark.parametrize("form", ["softplus", "extreme softplus", "bounded", "bounded without A_log", "linear"])
def test_forms_of_gates(device: Device, form: str) -> None:
    x = inputs(100, Hv=2)
    rng = torch.Generator().manual_seed(3)
    options: dict[str, Any] = {"dt_bias": torch.randn(2, 128, generator=rng) - 2}
    if form == "linear":
        x["gate"], options = x["gate"].exp(), {"gate_is_linear": True}
        x["gate"][:, 50, 0, 3] = 0
    else:
        x["gate"] = torch.randn(x["gate"].shape, generator=rng)
        options |= {} if form == "bounded without A_log" else {"A_log": torch.rand(2, generator=rng)}
        options |= {"lower_bound": -5.0} if form.startswith("bounded") else {}
    if form == "extreme softplus":
        options["A_log"] = torch.tensor([70.0, -3.0])
        x["gate"][..., 0, :] -= 60
    check(device, x, **options)


def test_scale_without_norms(device: Device) -> None:
    x = inputs(100, "bounded", beta=2.0)
    x["key"] = torch.nn.functional.normalize(x["key"].float(), dim=-1).to(BF16)
    check(device, x, norm=False, scale=-0.3)


def test_packed_sequences(device: Device) -> None:
    offsets = [0, 70, 70, 200, 201, 264]
    x = {name: t[0] for name, t in inputs(300, "bounded", beta=2.0, Hv=2).items()}
    rng = torch.Generator().manual_seed(5)
    x |= {"cu_seqlens": torch.tensor(offsets), "state": torch.randn(5, 2, 64, 128, generator=rng)}
    found = launch(device, x, norm=True)
    rows = {name: x[name] for name in ("query", "key", "value", "beta")} | {"decay": decays(x["gate"])}
    output, state = packed_literal(rows, offsets, x["state"], norm=True)
    assert rel_rms(found["out"], output) < BOUND[BF16] and rel_rms(found["state"], state) < BOUND[BF16]
    # Tokens past a sequence's end are the next one's.
    poisoned = x | {
        name: x[name].clone().float().index_fill(0, torch.arange(200, 300), torch.nan).to(x[name].dtype)
        for name in ("query", "key", "value", "gate", "beta")
    }
    among = launch(device, poisoned, norm=True)
    assert torch.equal(among["out"][:200], found["out"][:200]) and torch.equal(among["state"][:3], found["state"][:3])


def test_strided_rows(device: Device) -> None:
    x = inputs(100, Hv=2, Hk=2)
    wide = {
        name: torch.full((*t.shape[:-1], 192), torch.nan, dtype=t.dtype)
        for name, t in x.items()
        if name in ("query", "key", "gate")
    }
    for name, t in wide.items():
        t[..., 32 : 32 + 128] = x[name]
        x[name] = t[..., 32 : 32 + 128]
    check(device, x)


# ---- Resets: 0 times infinity is NaN in matrix products, so a chunk with both goes token by token; both are in one chunk of 16
# tokens as of 64


def value(x: dict[str, Tensor]) -> None:
    x["value"][0, 82, 0, 5] = torch.inf


def key(x: dict[str, Tensor]) -> None:
    x["key"][0, 83, 0, 7] = torch.nan


def large_keys(x: dict[str, Tensor]) -> None:
    x["key"][0, 83] = 3e38


def beta(x: dict[str, Tensor]) -> None:
    x["beta"][0, 81] = torch.inf


def gate(x: dict[str, Tensor]) -> None:
    x["gate"][0, 84, 0, 9] = torch.nan


def state(x: dict[str, Tensor]) -> None:
    x["state"][0, 0, 3, 3] = -torch.inf


@pytest.mark.parametrize("poison", [value, key, large_keys, beta, gate, state])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tokens", [170, 112])  # 112: in the last chunk, which is not full
def test_nothing_before_a_reset_shows(device: Device, poison: Any, packed: bool, tokens: int) -> None:
    x = inputs(tokens, "init", dv=128)
    x["gate"][0, 90] = -torch.inf
    poison(x)
    if packed:
        x = {name: t if name == "state" else t[0] for name, t in x.items()} | {"cu_seqlens": torch.tensor([0, tokens])}
    found = launch(device, x, norm=True)
    rows = {name: t[0] if packed and name == "state" else t for name, t in x.items()}
    output, last = expected(
        {name: t[None] if packed and name != "cu_seqlens" else t for name, t in rows.items()},
        decays(rows["gate"][None] if packed else rows["gate"]),
        norm=True,
    )
    out = found["out"][None] if packed else found["out"]
    assert rel_rms(out[:, 90:], output[:, 90:]) < BOUND[BF16] and rel_rms(found["state"], last) < BOUND[BF16]
    first = 64 if poison is not state else 0
    assert rel_rms(out[:, :first], output[:, :first]) < BOUND[BF16]
    finite = output.isfinite()
    assert torch.equal(out.isfinite()[:, 64:], finite[:, 64:]) or poison is large_keys
