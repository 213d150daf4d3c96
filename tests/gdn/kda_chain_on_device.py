"""gdn/backward_chain with a gate for every channel of the key: both chains, on records that are made here of the formulas
(include/gdn_cuda/kernels/gdn/kda/training_record.cuh), against autograd of the recurrence; both in fp64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import SMALLEST, decays, drawn_keys, log_decays
from kda_chunks import CHANNELS, CHUNK, RECORD, TILE, training_chunk
from torch import Tensor

BF16, FP16 = torch.bfloat16, torch.float16
BOUND = {BF16: 5e-3, FP16: 1.25e-3}
LEAST_BETA = {BF16: 2.0**-60, FP16: 2.0**-13}
SCALE = -0.3


def inputs(
    T: int,
    gates: str = "init",
    keys: str = "random",
    beta: float = 1.0,
    *,
    B: int = 1,
    H: int = 1,
    dk: int = 128,
    dv: int = 64,
    io: torch.dtype = BF16,
) -> dict[str, Any]:
    """A padded call with the gradients of its outputs and last states."""
    rng = torch.Generator().manual_seed(T)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    return {
        "query": randn(B, T, H, dk).to(io),
        "key": drawn_keys(keys, (B, T, H, dk), rng).to(io),
        "value": randn(B, T, H, dv).to(io),
        "decay": decays(log_decays(gates, (B, T, H, dk), rng)),
        "beta": beta * torch.rand(B, T, H, generator=rng),
        "state": randn(B, H, dv, dk),
        "output_gradient": randn(B, T, H, dv).to(io),
        "last_gradient": randn(B, H, dv, dk),
    }


def packed(x: dict[str, Any], offsets: list[int]) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(1)
    states = {name: torch.randn(len(offsets) - 1, *x[name].shape[1:], generator=rng) for name in ("state", "last_gradient")}
    rows = {name: t[0] for name, t in x.items() if name not in states}
    return {**rows, **states, "cu_seqlens": torch.tensor(offsets)}


# ---- Sequences of a call, one after another


def sequences(x: dict[str, Any]) -> list[tuple[int, dict[str, Any], Any]]:
    """(first chunk's index, its tensors in fp64, where its tokens are) of each sequence. Betas of 0 are the least ones."""
    found = []
    places: list[tuple[int, int, Any]]
    least = LEAST_BETA[x["value"].dtype]
    if "cu_seqlens" in x:
        offsets = x["cu_seqlens"].tolist()
        places = [(at // CHUNK + n, n, slice(at, end)) for n, (at, end) in enumerate(pairwise(offsets))]
    else:
        B, T = x["value"].shape[:2]
        places = [(n * -(-T // CHUNK), n, n) for n in range(B)]
    for index, n, at in places:
        rows = {name: x[name][at].double() for name in ("query", "key", "value", "decay", "beta", "output_gradient")}
        rows["beta"] = rows["beta"].masked_fill(rows["beta"] == 0, least)
        states = {name: x[name][n].double() if x.get(name) is not None else None for name in ("state", "last_gradient")}
        found.append((index, rows | states, at))
    return found


def chunk_count(x: dict[str, Any]) -> int:
    if "cu_seqlens" in x:
        return x["value"].shape[0] // CHUNK + len(x["cu_seqlens"]) - 1
    return x["value"].shape[0] * -(-x["value"].shape[1] // CHUNK)


def norms(x: Tensor) -> Tensor:
    return torch.rsqrt(x.pow(2).sum(-1) + 1e-6)


def recurrence(x: dict[str, Any]) -> dict[str, Any]:
    """States before chunks, their gradients after chunks, R of every token, gradients of values and of the initial state."""
    q, k = (t * norms(t)[..., None] for t in (x["query"], x["key"]))
    value = x["value"].clone().requires_grad_()
    T, H, dv = value.shape
    start = torch.zeros(H, dv, k.shape[-1]).double() if x["state"] is None else x["state"].clone()
    S = start.requires_grad_()
    borders, errors, loss = [S], [], torch.zeros(()).double()
    for t in range(T):
        S = torch.where(x["decay"][t, :, None] == 0, 0, S * x["decay"][t, :, None])
        errors.append(value[t] - (S * k[t, :, None]).sum(-1))
        S = S + (x["beta"][t, :, None] * errors[-1])[..., None] * k[t, :, None]
        loss = loss + (SCALE * (S * q[t, :, None]).sum(-1) * x["output_gradient"][t]).sum()
        if t % CHUNK == CHUNK - 1 or t == T - 1:
            S = S.clone()
            borders.append(S)
    if x["last_gradient"] is not None:
        loss = loss + (S * x["last_gradient"]).sum()
    loss = loss + 0 * S.sum()
    first, *after, by_value = torch.autograd.grad(loss, [*borders, value])
    return {
        "states": torch.stack([s.detach() for s in borders[:-1]], 1),
        "gradients": torch.stack(after, 1),
        "errors": torch.stack(errors).detach(),
        "value_gradient": by_value,
        "initial_gradient": first,
        "last": S.detach(),
    }


# ---- Records


def tiles(rows: Tensor, io: torch.dtype) -> Tensor:
    """Bytes of a matrix of 64 rows as tiles: 16-byte vector p of row r is at p ^ (r % 8)."""
    row, vector = torch.arange(CHUNK)[:, None], torch.arange(8)[None]
    made = [tile.reshape(CHUNK, 8, 8)[row, vector ^ (row % 8)] for tile in rows.to(io).split(CHUNK, 1)]
    return torch.stack(made).contiguous().view(torch.uint8).flatten()


def record(query: Tensor, key: Tensor, beta: Tensor, decay: Tensor, io: torch.dtype) -> tuple[Tensor, bool]:
    """A chunk's record, and whether entries of T cancel. What the chains must not read is NaN."""
    x = training_chunk(query, key, beta, decay, norm=True, least_beta=LEAST_BETA[io])
    T, P = x.inverse, x.scores
    cancels = bool((T / x.key_norm[:, None]).tril(-1).abs().max() > 0.5)
    P_residual = P - P.to(io).double() if cancels else torch.full_like(P, torch.nan)
    matrices = [x.key_in, x.key_out, x.query_in, T, T - T.to(io).double(), P, P_residual]
    data = torch.full((RECORD,), 0xFF, dtype=torch.uint8)
    data[: 10 * TILE] = torch.cat([tiles(each, io) for each in matrices])
    factors = torch.cat([x.decay, x.key_norm, x.query_norm, x.beta, torch.zeros(1)]).float().view(torch.uint8)
    data[10 * TILE : 10 * TILE + len(factors)] = factors
    data[10 * TILE + len(factors) - 4] = int(cancels)
    return data, cancels


def records(x: dict[str, Any]) -> tuple[Tensor, bool]:
    """Those of every head and chunk, and whether entries cancel in any."""
    io, H = x["value"].dtype, x["value"].shape[-2]
    made = torch.full((H, chunk_count(x), RECORD), 0xFF, dtype=torch.uint8)
    any_cancels = False
    for index, rows, _ in sequences(x):
        for head in range(H):
            for start in range(0, len(rows["value"]), CHUNK):
                query, key, beta, decay = (
                    rows[name][start : start + CHUNK, head] for name in ("query", "key", "beta", "decay")
                )
                made[head, index + start // CHUNK], cancels = record(query, key, beta, decay, io)
                any_cancels |= cancels
    return made, any_cancels


# ---- The kernel


def run(device: Device, x: dict[str, Any], made: Tensor, *, backward: bool, segments: int = 1) -> dict[str, Tensor]:
    value, key, io = x["output_gradient"] if backward else x["value"], x["key"], x["value"].dtype
    H, dv, dk, chunks = value.shape[-2], value.shape[-1], key.shape[-1], chunk_count(x)
    count = len(x["cu_seqlens"]) - 1 if "cu_seqlens" in x else value.shape[0]

    def there(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.to(device.name)

    states = torch.full((H, chunks, dv, dk), torch.nan, dtype=io, device=device.name)
    out = torch.full(value.shape if backward else (H, chunks, 2, CHUNK, dv), torch.nan, dtype=io, device=device.name)
    last = torch.full((count, H, dv, dk), torch.nan, device=device.name)
    kernels = ("gdn/backward_chain", *(["gdn/backward_links"] if segments > 1 else []))
    with device.only(*kernels):
        torch.ops.gdn_cuda.kda_chain(
            there(torch.full_like(key, torch.nan)),
            there(value),
            there(x.get("last_gradient" if backward else "state")),
            there(x.get("cu_seqlens")),
            SCALE,
            backward,
            segments,
            there(made),
            states,
            last,
            out,
        )
    return {"states": states.cpu(), "out": out.cpu(), "last": last.cpu()}


def check(
    device: Device, x: dict[str, Any], bound: float = 1.0, *, cancels: bool = False, segments: int = 1
) -> dict[str, float]:
    """Errors, which are below `bound` times that of the dtype."""
    made, some_cancel = records(x)
    assert some_cancel == cancels
    bound *= BOUND[x["value"].dtype]
    forward, backward = (run(device, x, made, backward=is_backward, segments=segments) for is_backward in (False, True))
    unused = torch.ones(chunk_count(x), dtype=torch.bool)
    covered = torch.zeros(x["value"].shape[:-2], dtype=torch.bool)
    worst: dict[str, float] = {}
    for n, (index, rows, at) in enumerate(sequences(x)):
        T = len(rows["value"])
        if T == 0:
            for name, found in (("state", forward), ("last_gradient", backward)):
                given = x.get(name)
                assert torch.equal(found["last"][n], torch.zeros_like(found["last"][n]) if given is None else given[n])
            continue
        expected = recurrence(rows)
        chunks = slice(index, index - (-T // CHUNK))
        unused[chunks] = False
        covered[at] = True
        parts = forward["out"][:, chunks].double()
        has_residual = (made[:, chunks, 10 * TILE + 4 * (CHANNELS + 3 * CHUNK)] != 0)[:, :, None, None]
        assert bool(parts[:, :, 1].isnan().logical_not().logical_or(~has_residual).all())
        errors = parts[:, :, 0] + torch.where(has_residual, parts[:, :, 1], 0)
        errors = errors.flatten(1, 2).transpose(0, 1)
        assert not errors[T:].any()
        # A gradient may be 0 everywhere, as that of a state that is reset.
        for name, found in (
            ("states", forward["states"][:, chunks]),
            ("errors", errors[:T]),
            ("gradients", backward["states"][:, chunks]),
            ("value_gradient", backward["out"][at]),
            ("initial_gradient", backward["last"][n]),
            ("last", forward["last"][n]),
        ):
            error = rel_rms(found, torch.where(expected[name].abs() < SMALLEST, 0, expected[name]))
            worst[name] = max(worst.get(name, 0), error)
    assert all(error < bound for error in worst.values()), worst
    assert bool(forward["states"][:, unused].isnan().all()) and bool(backward["states"][:, unused].isnan().all())
    assert not backward["out"][~covered].any()
    return worst


@pytest.mark.parametrize("T", [1, 64, 65, 200])
def test_lengths(device: Device, T: int) -> None:
    check(device, inputs(T, "bounded"))


@pytest.mark.parametrize("gates", ["none", "edge", "init", "heavy", "strong", "channel reset", "token reset"])
@pytest.mark.parametrize("io", [BF16, FP16])
def test_gates(device: Device, gates: str, io: torch.dtype) -> None:
    check(device, inputs(150, gates, io=io))


@pytest.mark.parametrize("dk, dv", [(40, 8), (128, 72), (64, 128)])
def test_sizes(device: Device, dk: int, dv: int) -> None:
    check(device, inputs(100, dk=dk, dv=dv, B=2, H=2))


@pytest.mark.parametrize("absent", [("state",), ("last_gradient",), ("state", "last_gradient")])
def test_without_states(device: Device, absent: tuple[str, ...]) -> None:
    check(device, inputs(100) | dict.fromkeys(absent))


@pytest.mark.parametrize("gates", ["none", "init"])
@pytest.mark.parametrize("io", [BF16, FP16])
def test_keys_that_repeat(device: Device, gates: str, io: torch.dtype) -> None:
    """K_out, which is rounded once, is most of the error of values' gradients where gates differ; R has two parts."""
    errors = check(device, inputs(200, gates, "repeated", 2.0, io=io), 2.0, cancels=True)
    assert errors["errors"] < 0.2 * BOUND[io]


def test_scores_that_cancel_have_two_parts(device: Device) -> None:
    """With P in one part, and no state's gradient beside it, the error of values' gradients is 5e-3."""
    x = inputs(CHUNK, "init", "repeated", 2.0) | {"last_gradient": None}
    assert check(device, x, cancels=True)["value_gradient"] < 3e-3


@pytest.mark.parametrize("io, bound", [(BF16, 1.0), (FP16, 1.5)])
def test_betas_of_zero(device: Device, io: torch.dtype, bound: float) -> None:
    """In fp16, r times the least beta is below the normal numbers, so R of these tokens has fewer bits."""
    x = inputs(100, "bounded", io=io)
    x["beta"][:, ::3] = 0
    check(device, x, bound)


def test_packed_sequences(device: Device) -> None:
    """The last tokens are of no sequence, and those past a sequence's end the next one's."""
    x = packed(inputs(300, H=2), [0, 70, 70, 200, 201, 264])
    for name in ("value", "output_gradient"):
        x[name][264:] = torch.nan
    check(device, x)


@pytest.mark.parametrize("T, dk, dv", [(300, 128, 64), (520, 40, 72)])
def test_segments(device: Device, T: int, dk: int, dv: int) -> None:
    check(device, inputs(T, dk=dk, dv=dv, B=2, H=2), segments=3)
