"""Errors of the Toeplitz operators by class of matrix and dtype, beside LAPACK's in the same precision: the table is printed
(`pytest -s`). With a GPU by its kernels, else by their CPU implementations."""

from __future__ import annotations

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.ops import structured_toeplitz_solve as ways
from gdn_cuda.ops.structured_toeplitz import toeplitz_matvec
from gdn_cuda.reference import structured_toeplitz as oracle

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N = 384 if DEVICE == "cuda" else 48
DRAWS = 3  # the best of LAPACK's is luck, so both are averages


def matrices(dtype: torch.dtype, rng: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    distance = torch.arange(N, dtype=torch.float64)
    first = distance == 0

    def normal() -> Tensor:
        return torch.randn(N, generator=rng, dtype=wide)

    def symmetric(c: Tensor) -> tuple[Tensor, Tensor]:
        c = c.to(wide) * (torch.exp(0.7j * distance) if dtype.is_complex else 1)
        return c, c.conj().resolve_conj()

    tiny = normal()
    tiny[0] = 1e-13
    single = dtype in (torch.float32, torch.complex64)
    return {
        "SPD": symmetric(0.9**distance + 0.1 * first),
        "SPD, condition 1e4": symmetric((-((distance / 3) ** 2)).exp() + 1e-3 * first),
        "indefinite": symmetric(distance.cos() * 0.99**distance - 0.9 * first),
        "nonsymmetric": (normal(), normal()),
        "tiny leading minor": (tiny, normal()),
        "nearly singular": symmetric((-((distance / 3) ** 2)).exp() + (1e-5 if single else 1e-12) * first),
    }


def errors(dtype: torch.dtype, rng: torch.Generator) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for _ in range(DRAWS):
        for name, (c, r) in matrices(dtype, rng).items():
            c, r, b = (y.to(dtype) for y in (c, r, torch.randn(N, generator=rng, dtype=c.dtype)))
            there = [y.to(DEVICE) for y in (c, r, b)]
            x = oracle.toeplitz_solve_ex(c, r, b)[0]
            found = {"T x": rel_rms(toeplitz_matvec(*there), oracle.toeplitz_matvec(c, r, b)),
                     "LAPACK": rel_rms(torch.linalg.solve(oracle.toeplitz(c, r).to(dtype), b), x),
                     "GKO": rel_rms(ways.solve(*there, False)[0], x)}  # fmt: skip
            if name.startswith("SPD") and not dtype.is_complex:
                found["Schur"] = rel_rms(ways.solve_positive(there[0], there[2])[0], x)
                found["gradients"] = rel_rms(torch.ops.gdn_cuda.toeplitz_gradients(there[0], there[2])[0], x)
            for way, error in found.items():
                table.setdefault(name, {}).setdefault(way, 0.0)
                table[name][way] += error / DRAWS
    return table


@pytest.mark.parametrize("dtype", DTYPES)
def test_solvers_are_within_ten_times_lapack(dtype: torch.dtype, rng: torch.Generator) -> None:
    epsilon = torch.finfo(dtype).eps
    table = errors(dtype, rng)
    print(f"\n{str(dtype)[6:]}, n = {N}, {DEVICE}")
    for name, found in table.items():
        print(f"| {name} | " + " | ".join(f"{way} {error:.1e}" for way, error in found.items()) + " |")
    for name, found in table.items():
        assert found["T x"] < 8 * epsilon, name
        for way in ("GKO", "Schur", "gradients"):
            assert found.get(way, 0.0) < 10 * found["LAPACK"] + 2 * epsilon, (name, way)
        assert dtype not in (torch.float32, torch.complex64) or found["GKO"] < epsilon, name
