"""The reversed chain of training, a second rule of the chunked core, against autograd of the recurrence in fp64."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any

import pytest
import torch
from emulated import library, with_lines
from emulator_build import kernel_library
from guarded import Guarded
from torch import Tensor
from torch.nn.functional import normalize

CHUNK, ROWS = 64, 64


class TensorMap(ctypes.Structure):
    _fields_ = [("opaque", ctypes.c_ubyte * 128)]


class Arguments(ctypes.Structure):
    """`Args` of chain_kernels.cuh."""

    _fields_ = [
        *((name, TensorMap) for name in ("query", "key", "output_gradient", "value_gradient")),
        *((name, ctypes.c_void_p) for name in ("value_gradient_data", "gate", "beta", "final_gradient", "initial_gradient")),
        *((name, ctypes.c_void_p) for name in ("cached", "cu_seqlens")),
        ("chunks", ctypes.c_longlong),
        *((name, ctypes.c_int) for name in ("sequences", "tokens", "heads", "heads_per_key", "dk", "dv")),
        ("scale", ctypes.c_float),
        ("qk_norm", ctypes.c_int),
    ]


def inputs(
    lengths: list[int], packed: bool, seed: int, dk: int = 128, dv: int = 64, strongest: float = 1.0
) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    sequences, heads, key_heads = len(lengths), 2, 1
    batch, tokens = (1, sum(lengths)) if packed else (sequences, lengths[0])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    return {
        "query": normalize(normal(batch, tokens, key_heads, dk), dim=-1).bfloat16(),
        "key": normalize(normal(batch, tokens, key_heads, dk), dim=-1).bfloat16(),
        "output_gradient": normal(batch, tokens, heads, dv).bfloat16(),
        "gate": -strongest * torch.rand(batch, tokens, heads, generator=rng),
        "beta": torch.rand(batch, tokens, heads, generator=rng),
        "final_gradient": normal(sequences, heads, dv, dk) / math.sqrt(dk),
    }


def expected(x: dict[str, Tensor], offsets: list[int] | None, scale: float, qk_norm: bool) -> tuple[Tensor, Tensor]:
    """Gradients of values and initial states, by autograd of the literal recurrence: both are linear in what they multiply, so
    values and states of zero do."""
    wide = {name: y.double() for name, y in x.items()}
    batch, _, heads, dv = wide["output_gradient"].shape
    dk = wide["query"].shape[-1]
    spans = (
        [(0, a, b) for a, b in itertools.pairwise(offsets)]
        if offsets
        else [(b, 0, wide["gate"].shape[1]) for b in range(batch)]
    )
    value = torch.zeros_like(wide["output_gradient"], requires_grad=True)
    initial = torch.zeros_like(wide["final_gradient"], requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for n, (b, first, last) in enumerate(spans):
        for head in range(heads):
            state = initial[n, head]
            for t in range(first, last):
                q, k = wide["query"][b, t, head // 2], wide["key"][b, t, head // 2]
                if qk_norm:
                    q, k = (y * torch.rsqrt(y @ y + 1e-6) for y in (q, k))
                state = state * wide["gate"][b, t, head].exp()
                change = wide["beta"][b, t, head] * (value[b, t, head] - state @ k)
                state = state + torch.outer(change, k)
                total = total + scale * wide["output_gradient"][b, t, head] @ (state @ q)
            total = total + (state * wide["final_gradient"][n, head]).sum()
    gradients: Any = torch.autograd.grad(total, (value, initial))
    assert dk and dv
    return gradients


def run(
    x: dict[str, Tensor], offsets: list[int] | None, scale: float, qk_norm: bool, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of values and of initial states, and the cached chunks as bytes (Hv, row tile, chunk, ...)."""
    library()
    host = ctypes.CDLL(str(kernel_library("chain/backward", "")))
    memory = Guarded()
    guarded = {name: memory.copy(y) for name, y in x.items()}
    batch, tokens, heads, dv = x["output_gradient"].shape
    dk = x["query"].shape[-1]
    sequences = len(offsets) - 1 if offsets else batch
    chunks = tokens // CHUNK + sequences if offsets else batch * -(-tokens // CHUNK)
    value_gradient = memory.like(x["output_gradient"])
    initial_gradient = memory.like(x["final_gradient"])
    tiles = -(-dv // ROWS)
    cached = memory.like(torch.empty(heads, tiles, chunks, host.chain_cached_bytes(), dtype=torch.uint8))
    plain = torch.tensor(offsets or [0], dtype=torch.int32)
    lengths = memory.copy(plain)
    room = ctypes.create_string_buffer(ctypes.sizeof(Arguments) + 64)
    arguments = Arguments.from_address(-(-ctypes.addressof(room) // 64) * 64)
    for name in ("query", "key", "output_gradient"):
        _set_map(getattr(arguments, name), guarded[name])
    _set_map(arguments.value_gradient, value_gradient)
    for name in ("gate", "beta", "final_gradient"):
        setattr(arguments, name, guarded[name].data_ptr())
    arguments.value_gradient_data, arguments.initial_gradient = value_gradient.data_ptr(), initial_gradient.data_ptr()
    arguments.cached, arguments.cu_seqlens = cached.data_ptr(), lengths.data_ptr() if offsets else None
    arguments.chunks, arguments.sequences, arguments.tokens = chunks, sequences, tokens
    arguments.heads, arguments.heads_per_key, arguments.dk, arguments.dv = heads, heads // x["key"].shape[2], dk, dv
    arguments.scale, arguments.qk_norm = scale, qk_norm
    library().emulator_schedule(7, reverse)
    grid = (ctypes.c_uint * 3)(tiles, heads, sequences)
    fault = library().emulator_launch_grid(
        b"chain/backward", b"", grid, host.chain_threads(), host.chain_shared_bytes(), 1, ctypes.byref(arguments)
    )
    assert not fault, with_lines(fault.decode())
    memory.check()
    return value_gradient.clone(), initial_gradient.clone(), cached.clone()


def _set_map(into: TensorMap, x: Tensor) -> None:
    sizes = (ctypes.c_longlong * 4)(*x.shape)
    strides = (ctypes.c_longlong * 3)(*x.stride()[:3])
    library().emulator_tile_map(ctypes.byref(into), ctypes.c_void_p(x.data_ptr()), sizes, strides, CHUNK)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt().clamp_min(1e-30))


def check(x: dict[str, Tensor], offsets: list[int] | None = None, scale: float = 0.3, qk_norm: bool = False) -> None:
    wanted = expected(x, offsets, scale, qk_norm)
    results = [run(x, offsets, scale, qk_norm, reverse) for reverse in (False, True)]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    for found, right, bound in zip(results[0], wanted, (5e-3, 5e-3), strict=False):
        assert relative(found, right) < bound


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_whole_sequences(length: int, seed: int) -> None:
    check(inputs([length, length], packed=False, seed=seed))


def test_packed_sequences_of_any_length(seed: int) -> None:
    """Chunks that end within a tile, next to another sequence's tokens, and a sequence of none."""
    lengths = [70, 0, 1, 130]
    offsets = list(itertools.accumulate(lengths, initial=0))
    check(inputs(lengths, packed=True, seed=seed), offsets)


def test_infinities_of_the_next_sequence_stay_there(seed: int) -> None:
    lengths = [70, 20]
    offsets = [0, 70, 90]
    x = inputs(lengths, packed=True, seed=seed)
    wanted = expected(x, offsets, 0.3, False)
    hostile = {name: y.clone() for name, y in x.items()}
    for name in ("query", "key", "output_gradient"):
        hostile[name][0, 70:] = math.inf
    gradients, initial, _ = run(hostile, offsets, 0.3, False, False)
    assert relative(gradients[0, :70], wanted[0][0, :70]) < 5e-3 and relative(initial[0], wanted[1][0]) < 5e-3


@pytest.mark.parametrize("strongest", [1e-5, 30.0, 300.0])
def test_gates(strongest: float, seed: int) -> None:
    check(inputs([150], packed=False, seed=seed, strongest=strongest))


def test_norms_and_rows(seed: int) -> None:
    """l2 norms are factors; two row tiles; keys shorter than the configuration's; a negative scale."""
    x = inputs([130], packed=False, seed=seed, dk=120, dv=128)
    x |= {name: (x[name] * 3).bfloat16() for name in ("query", "key")}
    check(x, scale=-0.1, qk_norm=True)


def test_cached_chunks_are_in_order_of_time(seed: int) -> None:
    """T diag(beta) of every chunk, as the states pass reads it."""
    x = inputs([150], packed=False, seed=seed)
    _, _, cached = run(x, None, 0.3, False, False)
    for head, chunk in itertools.product(range(2), range(3)):
        tokens = slice(CHUNK * chunk, min(CHUNK * (chunk + 1), 150))
        k, beta = x["key"][0, tokens, 0].double(), x["beta"][0, tokens, head].double()
        total = x["gate"][0, tokens, head].double().cumsum(0)
        a = (beta[:, None] * (k @ k.T) * (total[:, None] - total).exp()).tril(-1)
        wanted = torch.linalg.solve_triangular(torch.eye(len(k)).double() + a, torch.diag(beta), upper=False)
        tile = cached[head, 0, chunk, : 2 * CHUNK * CHUNK].view(CHUNK, 8, 16)
        rows = [tile[row][[vector ^ row % 8 for vector in range(8)]] for row in range(CHUNK)]
        found = torch.stack(rows).reshape(CHUNK, 2 * CHUNK).contiguous().view(torch.bfloat16)
        assert relative(found[: len(k), : len(k)], wanted) < 4e-3
