"""Tunable operators of scans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..operators import tunable as declared
from ..operators.measure import normal, tunable
from ..operators.tunable import Tunable
from . import measure_selective
from .diagonal import diagonal_scan

# Relative RMS between two results: twice the error that each of them may have.
_TOLERANCE = {"bf16": 2**-8, "f16": 2**-10, "f32": 2e-5}


def _word(value: bool) -> str:
    return str(value).lower()


# ---- selective_scan, with a Mamba layer's inputs


@dataclass(frozen=True)
class Scan(declared.Shape):
    batch: int = 8
    dim: int = 5120
    tokens: int = 2048
    states: int = 16


def _scan_problem(shape: Scan, dtype: str, shared: bool) -> str:
    return (
        f"{{.transition = scan::Transition::exponential, .is_complex = false, .is_narrow = {_word(dtype != 'f32')}, "
        f".states = {shape.states}, .channels = {shape.batch * shape.dim}}}"
    )


def _scan(shape: Scan, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    layer_shape = measure_selective.Shape(shape.batch, shape.dim, shape.tokens, shape.states, dtype)
    return measure_selective.layer_inputs(device, layer_shape) | {"delta_softplus": True}


# ---- selective_state_update, one token for each sequence


@dataclass(frozen=True)
class Step(declared.Shape):
    batch: int = 256
    dim: int = 5120
    states: int = 16


def _step_problem(shape: Step, dtype: str, shared: bool) -> str:
    row_bytes = shape.states * declared.TORCH_DTYPES[dtype].itemsize
    largest = max(4 * shape.dim * shape.states, 2 * shape.batch * max(shape.dim, shape.states))  # A, or a tensor of tokens
    return (
        f"{{.sequences = {shape.batch}, .tokens = 1, .groups = 1, .group_rows = {shape.dim}, .columns = {shape.states}, "
        f".state = DType::{dtype}, .aligned = {_word(row_bytes % 16 == 0)}, .near = {_word(largest < 2**31)}, "
        f".plain = {_word(shape.states % 8 == 0)}, .tied = false}}"
    )


def _step(shape: Step, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    def wide(*sizes: int) -> Tensor:
        return normal(*sizes, device=device, dtype=torch.float32)

    def per_token(size: int) -> Tensor:
        return normal(shape.batch, size, device=device)

    return {
        "state": normal(shape.batch, shape.dim, shape.states, device=device, dtype=dtype),
        "x": per_token(shape.dim),
        "dt": per_token(shape.dim),
        "A": -wide(shape.dim, shape.states).abs(),
        "B": per_token(shape.states),
        "C": per_token(shape.states),
        "D": wide(shape.dim),
        "z": per_token(shape.dim),
        "dt_bias": wide(shape.dim),
        "dt_softplus": True,
    }


# ---- simplified_scan: the scan between its products, with varying step sizes


@dataclass(frozen=True)
class Rows(declared.Shape):
    batch: int = 1
    states: int = 64
    tokens: int = 16384


def _rows_problem(shape: Rows, dtype: str, shared: bool) -> str:
    return f"{{.rows = {shape.batch * shape.states}, .length = {shape.tokens}, .varying = true, .reverse = false}}"


def _rows(shape: Rows, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    imaginary = torch.pi * torch.arange(shape.states, device=device, dtype=torch.float32)
    steps = torch.logspace(-3, -1, shape.states, device=device)[:, None]
    sizes = shape.batch, shape.states, shape.tokens
    return {
        "Bu": torch.randn(*sizes, device=device, dtype=dtype),
        "delta": steps * (0.5 + torch.rand(*sizes, device=device)),
        "A": torch.complex(torch.full_like(imaginary, -0.5), imaginary),
    }


def _states(Bu: Tensor, delta: Tensor, A: Tensor) -> Tensor:
    states: Tensor = diagonal_scan(Bu, delta, A, None, None, "zoh")[0]
    return states


tunable("selective_scan", Tunable("scan/selective_forward", Scan, _TOLERANCE, _scan_problem, _scan, takes_out=False))
tunable(
    "selective_state_update",
    Tunable(
        "scan/selective_step",
        Step,
        {dtype: _TOLERANCE[dtype] for dtype in ("f32", "bf16", "f16")},
        _step_problem,
        _step,
        takes_out=False,
        in_place=("state",),
    ),
)
tunable(
    "simplified_scan",
    Tunable("scan/diagonal_scan", Rows, {"c64": 2e-5}, _rows_problem, _rows, function=_states, takes_out=False),
)
