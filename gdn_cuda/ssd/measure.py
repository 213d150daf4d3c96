"""Benchmark of Mamba-2's scan, forward and backward, beside mamba-ssm; calls of its kernels for compute-sanitizer.

Inputs are those of a layer at initialisation: A from −1 to −16, δ log-uniform in 0.001 … 0.1 through bias and softplus, D, no
z; the last state is returned. `packed`: 32 sequences of different lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..operators.measure import Absent, Call, Case, Inputs, Outcome, Peer, Work, bench, import_peer, normal, sanitizes, size
from . import measure_replay  # noqa: F401  (declares its own)
from .gradients import ssd_scan_backward
from .scan import ssd_scan, ssd_summary


@dataclass(frozen=True)
class Shape:
    batch: int
    tokens: int
    heads: int
    channels: int
    groups: int
    states: int
    packed: tuple[int, ...] = ()  # lengths of sequences

    @property
    def name(self) -> str:
        sizes = f"{self.batch}×{self.tokens} {self.heads}×{self.channels} G={self.groups} N={self.states}"
        return f"{sizes} packed" if self.packed else sizes


_PACKED = (1, 4096, 7, 2048, 33, 1024, 129, 512, 255, 3071, 64, 2000, 1, 1500, 900, 743)
GPU_SHAPES = (
    Shape(1, 8192, 128, 64, 8, 128),  # Nemotron-H 8B, Codestral-Mamba
    Shape(1, 32768, 128, 64, 8, 128),
    Shape(8, 4096, 128, 64, 8, 128),
    Shape(8, 2048, 128, 64, 1, 128),  # Granite 4, Bamba
    Shape(1, 1024, 128, 64, 1, 128),
    Shape(1, 8192, 128, 64, 1, 128),
    Shape(1, 65536, 128, 64, 1, 128),
    Shape(1, 8192, 32, 64, 1, 128),
    Shape(1, 8192, 16, 64, 1, 128),  # of eight GPUs
    Shape(1, 32768, 16, 64, 1, 128),
    Shape(1, 8192, 128, 80, 8, 128),
    Shape(8, 4096, 128, 80, 8, 128),
    Shape(1, 8192, 64, 64, 8, 128),
    Shape(8, 4096, 64, 64, 8, 128),
    Shape(1, 131072, 256, 64, 8, 128),
    Shape(1, 8192, 256, 64, 8, 256),
    Shape(1, 8192, 32, 128, 2, 256),
    Shape(8, 4096, 32, 128, 2, 256),
    Shape(1, 8192, 112, 64, 2, 64),  # Zamba2
    Shape(1, 2 * sum(_PACKED), 128, 64, 8, 128, packed=2 * _PACKED),
)
CPU_SHAPES = (Shape(2, 70, 4, 16, 2, 16), Shape(1, 70, 4, 16, 1, 16, packed=(1, 69)))
_DIFFERENTIATED = ("x", "dt", "A", "B", "C", "D", "dt_bias")


def layer_inputs(device: str, shape: Shape) -> Inputs:
    def rows(*sizes: int) -> Tensor:
        return normal(shape.batch, shape.tokens, *sizes, device=device)

    steps = torch.exp(torch.rand(shape.heads, device=device) * math.log(100) + math.log(1e-3))
    x = {
        "x": rows(shape.heads, shape.channels),
        "dt": rows(shape.heads) / 2,
        "A": -(1 + 15 * torch.rand(shape.heads, device=device)),
        "B": rows(shape.groups, shape.states),
        "C": rows(shape.groups, shape.states),
        "D": torch.ones(shape.heads, device=device),
        "dt_bias": torch.log(torch.expm1(steps)),
    }
    if shape.packed:
        x["cu_seqlens"] = torch.tensor([0, *accumulate(shape.packed)], device=device, dtype=torch.int32)
    return x


def _scan(given: Inputs) -> tuple[Tensor, Tensor]:
    out, last = ssd_scan(**given, dt_softplus=True, return_last_state=True)
    return out, last


def _differentiated(x: Inputs) -> Inputs:
    return {name: y.detach().requires_grad_() if name in _DIFFERENTIATED else y for name, y in x.items()}


def _with_gradients(out: Tensor, leaves: Inputs) -> Outcome:
    """The output and all gradients, each divided by its mean size."""
    weights = torch.cos(torch.arange(out.shape[-1], device=out.device)).to(out.dtype).expand(out.shape)
    found = torch.autograd.grad(out, [leaves[name] for name in _DIFFERENTIATED], weights.contiguous())
    return out.detach(), torch.cat([(g.float() / g.float().abs().mean()).flatten() for g in found])


def _outcome(x: Inputs) -> Outcome:
    given = {name: y for name, y in x.items() if name != "backward"}
    if not x["backward"]:
        return _scan(given)
    leaves = _differentiated(given)
    return _with_gradients(_scan(leaves)[0], leaves)


def _gradients(out: Tensor, leaves: Inputs) -> Call:
    wanted = [leaves[name] for name in _DIFFERENTIATED]
    return partial(torch.autograd.grad, out, wanted, torch.randn_like(out), retain_graph=True)


def _work(device: str, shape: Shape, backward: bool) -> Work:
    x = layer_inputs(device, shape)
    moved = size(*x.values(), x["x"])
    small = tuple(count for count in shape.packed if count < 256)
    few = replace(shape, batch=1, heads=2 * shape.groups, tokens=sum(small) if small else 512, packed=small)
    checked = layer_inputs(device, few) | {"backward": backward}
    if backward:
        leaves = _differentiated(x)
        call = _gradients(_scan(leaves)[0], leaves)
        return Work(call, moved + size(*x.values()), 0, x | {"backward": True}, _outcome, checked)
    moved += 4 * max(shape.batch, len(shape.packed)) * shape.heads * shape.channels * shape.states
    return Work(partial(_scan, x), moved, 0, x | {"backward": False}, _outcome, checked)


def mamba_ssm(x: Inputs, chunk_size: int = 256) -> Peer:
    """mamba_chunk_scan_combined. For packed sequences it has no states after each."""
    scan = import_peer("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")
    x = dict(x)
    backward = x.pop("backward")
    if "cu_seqlens" in x:
        raise Absent("it takes packed sequences by a number for each token, which is made from the offsets on the host")

    def run(given: Inputs) -> Any:
        rest = {name: given[name] for name in ("D", "dt_bias")}
        tensors = (given[name] for name in ("x", "dt", "A", "B", "C"))
        return scan(*tensors, chunk_size=chunk_size, **rest, dt_softplus=True, return_final_states=not backward)

    if not backward:
        return Peer(partial(run, x), lambda found: (found[0], found[1]))
    leaves = _differentiated(x)

    def read(_: object) -> Outcome:
        differentiated = _differentiated(x)
        return _with_gradients(run(differentiated), differentiated)

    return Peer(_gradients(run(leaves), leaves), read)


@bench(
    {f"mamba-ssm, {tokens} a chunk": partial(mamba_ssm, chunk_size=tokens) for tokens in (128, 256)},
    "state or gradients",
    operator="ssd_scan",
)
def _measured(device: str) -> Iterator[Case]:
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        for backward in (False, True):
            yield Case(f"{shape.name} {'backward' if backward else 'forward'}", partial(_work, device, shape, backward))


# ---- compute-sanitizer


@sanitizes("ssd/prefill_mma", variables={"GDN_SSD_PREFILL": "mma"})
@sanitizes("ssd/prefill", "steps")
def _prefill() -> None:
    """One head a block and two, z and D, lengths around a chunk, segments, packed sequences, offsets and slots that lie."""
    for dtype in (torch.bfloat16, torch.float16):
        for states in (64, 128, 256):
            for tokens in (1, 64, 201, 1200):

                def rows(*sizes: int, tokens: int = tokens, dtype: torch.dtype = dtype) -> torch.Tensor:
                    return normal(1, tokens, *sizes, device="cuda", dtype=dtype)

                heads = 3
                rates = -torch.rand(heads, device="cuda")
                x = {"x": rows(heads, 64), "dt": rows(heads), "A": rates, "B": rows(1, states)}
                C, start = rows(1, states), torch.randn(2, heads, 64, states, device="cuda")
                ssd_scan(**x, C=C, D=rates, z=rows(heads, 64), initial_state=start[:1], dt_softplus=True)
                ssd_summary(**x, initial_state=start[:1], dt_softplus=True)
                for slot in (1, -1, 2):
                    ssd_scan(**x, C=C, initial_state=start, state_indices=torch.tensor([slot], device="cuda"), dt_softplus=True)
                for offsets in ([0, 1, 1, tokens], [0, tokens, 0, tokens], [900, 20, -5, 3]):
                    ssd_scan(**x, C=C, cu_seqlens=torch.tensor(offsets, device="cuda"), dt_softplus=True)


@sanitizes("checkpoints")
def _checkpoints() -> None:
    """After some tokens, at boundaries that lie, past sequences, in slots that do not exist, in fewer rows than states."""
    for dtype, tokens in ((torch.bfloat16, 201), (torch.float16, 1200)):
        x, dt = normal(1, tokens, 2, 64, device="cuda", dtype=dtype), normal(1, tokens, 2, device="cuda", dtype=dtype)
        B, C = (normal(1, tokens, 1, 64, device="cuda", dtype=dtype) for _ in range(2))
        scan = partial(ssd_scan, x, dt, -torch.rand(2, device="cuda"), B, C, dt_softplus=True)
        rows = torch.empty(2, 2, 64, 64, device="cuda")
        scan(checkpoint_every=64, checkpoints=rows, states_before=torch.empty_like(rows))
        for offset in (0, 70, -5, 1 << 30):
            scan(checkpoint_offsets=torch.tensor([offset], device="cuda"))
        pool = torch.empty(3, 2, 64, 64, device="cuda")
        for offsets in ([0, 1, 1, tokens], [0, tokens, 0, tokens], [900, 20, -5, 3]):
            packed = {"cu_seqlens": torch.tensor(offsets, device="cuda"), "initial_state": pool}
            slots = torch.tensor([2, -1, 9], device="cuda")
            for ends in ([0, 1, 70, tokens], [tokens, 3, -7, 1 << 30, 20] * 20):
                scan(**packed, state_indices=slots, boundaries=torch.tensor(ends, device="cuda"))


@sanitizes("backward_mma", variables={"GDN_SSD_PREFILL": "mma"})
@sanitizes("backward")
def _backward() -> None:
    """Row tiles that a head fills and not, D, both ends' states, packed sequences, and offsets that lie."""
    for dtype in (torch.bfloat16, torch.float16):
        for channels, states in ((64, 64), (80, 128), (128, 128), (64, 200)):
            for tokens in (1, 64, 201):
                heads = 2
                x, slope = (normal(1, tokens, heads, channels, device="cuda", dtype=dtype) for _ in range(2))
                dt = normal(1, tokens, heads, device="cuda", dtype=dtype)
                B, C = (normal(1, tokens, 1, states, device="cuda", dtype=dtype) for _ in range(2))
                rates, start = -torch.rand(heads, device="cuda"), torch.randn(3, heads, channels, states, device="cuda")
                ends = {"initial_state": start[:1], "state_gradient": start[1:2]}
                ssd_scan_backward(x, dt, rates, B, C, slope, D=rates, dt_bias=rates, dt_softplus=True, **ends)
                for offsets in ([0, 1, 1, tokens], [0, tokens, 0, tokens], [900, 20, -5, 3]):
                    packed = torch.tensor(offsets, device="cuda")
                    ssd_scan_backward(x, dt, rates, B, C, slope, cu_seqlens=packed, state_gradient=start)
