"""Errors (relative RMS) of the structured operators against literal sums and oracles, by class of input and dtype, and those of
dense torch (LAPACK, BLAS, sums) in the same precision. operators/ has the table for CPU tensors, gpu/ for kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import literal
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import (
    DisplacementType,
    cauchy_conj,
    cauchy_kernel,
    displacement_matvec,
    log_vandermonde,
    log_vandermonde_transpose,
    toeplitz_matvec,
    toeplitz_matvec_transpose,
)
from gdn_cuda.reference import structured_displacement as displacement_oracle
from gdn_cuda.reference import structured_toeplitz as toeplitz_oracle

REAL, COMPLEX = (torch.float32, torch.float64), (torch.complex64, torch.complex128)
DRAWS = 3  # errors are averaged over draws

Function = Callable[..., Tensor]


@dataclass
class Case:
    operator: str
    label: str
    inputs: tuple[Tensor, ...]
    ours: Function
    oracle: Function
    dense: Function  # computed in the dtype of the inputs
    bound: float
    times_dense: float = 0.0  # adds this multiple of the dense error to `bound`


@dataclass
class Errors:
    ours: float = 0.0
    dense: float = 0.0
    allowed: float = 0.0


class Draw:
    """Normally distributed values in fp64, complex for a complex dtype."""

    def __init__(self, dtype: torch.dtype, seed: int):
        self.dtype, self.single = dtype, dtype in (torch.float32, torch.complex64)
        self.wide = torch.complex128 if dtype.is_complex else torch.float64
        self.rng = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng, dtype=self.wide)

    def real(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng, dtype=torch.float64)


class Table:
    """Rows are (operator, class of input), columns are dtypes."""

    def __init__(self, cases: Callable[[Draw], Iterator[Case]], dtypes: tuple[torch.dtype, ...], device: str, seed: int):
        self.dtypes = dtypes
        self.rows: dict[tuple[str, str], dict[torch.dtype, Errors]] = {}
        for dtype in dtypes:
            draw = Draw(dtype, seed)
            last: Case | None = None
            for case in (case for _ in range(DRAWS) for case in cases(draw)):
                if last is None or last.inputs is not case.inputs or last.oracle is not case.oracle:
                    expected = case.oracle(*case.inputs)
                    dense = rel_rms(case.dense(*case.inputs), expected)
                last = case
                errors = self.rows.setdefault((case.operator, case.label), {}).setdefault(dtype, Errors())
                errors.ours += rel_rms(case.ours(*(x.to(device) for x in case.inputs)), expected) / DRAWS
                errors.dense += dense / DRAWS
                errors.allowed += (case.bound + case.times_dense * dense) / DRAWS

    def __str__(self) -> str:
        text = [f"| | inputs | {' | '.join(str(dtype)[6:] for dtype in self.dtypes)} |", "|---" * (2 + len(self.dtypes)) + "|"]
        for (operator, label), row in self.rows.items():
            cells = [f"{each.ours:.0e} ({each.dense:.0e})" if each else "" for each in map(row.get, self.dtypes)]
            text.append(f"| `{operator}` | {label} | {' | '.join(cells)} |")
        return "\n".join(text)

    def check(self) -> None:
        for name, row in self.rows.items():
            for dtype, errors in row.items():
                assert errors.ours < errors.allowed, (*name, dtype, errors)


# ---- Toeplitz matrices


def toeplitz_matrices(draw: Draw, n: int) -> dict[str, tuple[Tensor, ...]]:
    """(c, r) by class."""
    distance = torch.arange(n, dtype=torch.float64)
    first = distance == 0

    def hermitian(c: Tensor) -> tuple[Tensor, Tensor]:
        c = c.to(draw.wide) * (torch.exp(0.7j * distance) if draw.dtype.is_complex else 1)
        return c, c.conj().resolve_conj()

    tiny = draw(n)
    tiny[0] = 1e-13
    gaussian = (-((distance / 3) ** 2)).exp()
    made = {
        "SPD": hermitian(0.9**distance + 0.1 * first),
        "SPD, condition 1e4": hermitian(gaussian + 1e-3 * first),
        "indefinite": hermitian(distance.cos() * 0.99**distance - 0.9 * first),
        "nonsymmetric": (draw(n), draw(n)),
        "tiny leading minor": (tiny, draw(n)),
        "nearly singular": hermitian(gaussian + (1e-5 if draw.single else 1e-12) * first),
    }
    return {label: tuple(x.to(draw.dtype) for x in pair) for label, pair in made.items()}


def matrix_of(c: Tensor, r: Tensor) -> Tensor:
    return toeplitz_oracle.toeplitz(c, r).to(c.dtype)


def toeplitz_products(n: int) -> Callable[[Draw], Iterator[Case]]:
    def cases(draw: Draw) -> Iterator[Case]:
        bound = 1e-6 if draw.single else 4e-15
        for label, (c, r) in toeplitz_matrices(draw, n).items():
            given = c, r, draw(n).to(draw.dtype)
            yield Case("toeplitz_matvec", label, given, toeplitz_matvec, literal.toeplitz_matvec,
                       lambda c, r, x: matrix_of(c, r) @ x, bound)  # fmt: skip
            if label == "nonsymmetric":
                yield Case("toeplitz_matvec_transpose", label, given, toeplitz_matvec_transpose,
                           lambda c, r, x: literal.toeplitz_matvec(c, r, x, True),
                           lambda c, r, x: matrix_of(c, r).mT @ x, bound)  # fmt: skip

    return cases


def toeplitz_systems(n: int) -> Callable[[Draw], Iterator[Case]]:
    """The methods of the GPU, on either device: its kernels have CPU equivalents."""
    ops, limits = torch.ops.gdn_cuda, (1024, 4096, 1025, 8192)

    def solution(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        return toeplitz_oracle.toeplitz_solve_ex(c, r, b)[0]

    def by_lapack(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve(matrix_of(c, r), b)

    def solve(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        return ops.toeplitz_solve_within(c, r, b, False, False, limits)[0]  # type: ignore[no-any-return]

    def by_recursion(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        return ops.toeplitz_solve_positive_within(c, b, limits)[0]  # type: ignore[no-any-return]

    def by_gradients(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        return ops.toeplitz_pcg(c, b, 1e-7 if c.dtype == torch.float32 else 2e-15)[0]  # type: ignore[no-any-return]

    def by_gradients_in_torch(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        return ops.toeplitz_pcg_long(c, b)[0]  # type: ignore[no-any-return]

    def cases(draw: Draw) -> Iterator[Case]:
        for label, (c, r) in toeplitz_matrices(draw, n).items():
            found: list[tuple[str, Function]] = [("toeplitz_solve", solve)]
            if label.startswith("SPD") and not draw.dtype.is_complex:
                found += [
                    ("toeplitz_solve_symmetric", by_recursion),
                    ("toeplitz_solve_symmetric, as beyond 4096 rows", by_gradients),
                    ("toeplitz_solve_symmetric, as beyond 8192 rows", by_gradients_in_torch),
                ]
            elif label == "indefinite" and not draw.dtype.is_complex:
                found.append(
                    ("toeplitz_solve_symmetric", lambda c, r, b: ops.toeplitz_solve_within(c, c, b, True, True, limits)[0])
                )
            given = c, r, draw(n).to(draw.dtype)
            for operator, solver in found:
                yield Case(operator, label, given, solver, solution, by_lapack, 2 * torch.finfo(draw.dtype).eps,
                           times_dense=0.0 if draw.single else 10.0)  # fmt: skip

    return cases


# ---- Displacement


def displacements(n: int) -> Callable[[Draw], Iterator[Case]]:
    def case(draw: Draw, disp_type: DisplacementType, label: str, G: Tensor, H: Tensor) -> Case:
        def dense(G: Tensor, H: Tensor, x: Tensor) -> Tensor:
            return displacement_oracle.displacement_matrix(G, H, disp_type).to(x.dtype) @ x

        given = tuple(y.to(draw.dtype) for y in (G, H, draw(n)))
        return Case("displacement_matvec", f"{disp_type.name}, {label}", given, lambda *x: displacement_matvec(*x, disp_type),
                    lambda *x: displacement_oracle.displacement_matvec(*x, disp_type), dense,
                    1e-6 if draw.single else 1e-12)  # fmt: skip

    def cases(draw: Draw) -> Iterator[Case]:
        for disp_type in DisplacementType:
            yield case(draw, disp_type, "random of rank 3", draw(n, 3), draw(n, 3))
        for label, (c, r) in toeplitz_matrices(draw, n).items():
            if label in ("SPD", "nonsymmetric"):
                # Z_1 T − T Z_{−1} is zero except its first row and last column.
                ends = torch.zeros(n, 2, dtype=draw.wide)
                ends[0, 0] = ends[-1, 1] = 1
                row = torch.cat([c[1:].flip(0) - r[1:], c[:1]])
                column = torch.cat([torch.zeros_like(c[:1]), r[1:].flip(0) + c[1:]])
                G, H = torch.stack([ends[:, 0], column], -1), torch.stack([row, ends[:, 1]], -1)
                yield case(draw, DisplacementType.CYCLIC_ANTICYCLIC, f"a Toeplitz matrix, {label}", G, H)

    return cases


# ---- Sums over poles


def circle(turns: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(turns), 2 * math.pi * turns)


def cauchy_sums(poles: int, points: int) -> Callable[[Draw], Iterator[Case]]:
    def cases(draw: Draw) -> Iterator[Case]:
        centres = draw(4)
        clustered = centres[torch.arange(poles) % 4] + 1e-4 * draw(poles)
        near = centres[torch.arange(points) % 4] + 1e-4 * draw(points)
        points_and_poles = {
            "separate poles": (draw(points), draw(poles)),
            "clustered poles": (torch.cat([draw(points - points // 2), near[: points // 2]]), clustered),
        }
        if draw.dtype.is_complex:
            between = (torch.arange(poles) + 1 / 3).double() / poles
            points_and_poles["poles on the unit circle"] = circle(torch.arange(points).double() / points), circle(between)
        bound = 1e-6 if draw.single else 1e-14
        for label, (omega, lambd) in points_and_poles.items():
            v, omega, lambd = (x.to(draw.dtype) for x in (draw(poles), omega, lambd))
            omega = torch.where((omega[:, None] == lambd).any(-1), omega + 1, omega)  # no pole on a point
            yield Case("cauchy_kernel", label, (v, omega, lambd), cauchy_kernel, literal.cauchy_kernel, by_sums, bound)
            if draw.dtype.is_complex:
                yield Case("cauchy_conj", label, (v, omega, lambd), cauchy_conj, literal.cauchy_conj,
                           lambda v, z, w: by_sums(v, z, w) + by_sums(v.conj(), z, w.conj()), bound)  # fmt: skip

    return cases


def by_sums(v: Tensor, omega: Tensor, lambd: Tensor) -> Tensor:
    return (v / (omega[:, None] - lambd)).sum(-1)


def power_sums(poles: int, steps: int) -> Callable[[Draw], Iterator[Case]]:
    def powers(x: Tensor) -> Tensor:
        return (x[:, None] * torch.arange(steps)).exp()

    def cases(draw: Draw) -> Iterator[Case]:
        decay = -2 * draw.real(poles).abs() / steps
        places = torch.arange(poles) % 4
        exponents = {
            "decaying, phases to 1e3 rad": torch.complex(decay, 1e3 / steps * draw.real(poles)),
            "clustered poles": torch.complex(decay[places], 1e3 / steps * draw.real(4)[places]) + 1e-4 / steps * draw(poles),
        }
        for phase in (1e3, 1e6):
            turns = phase / steps * (1 - 2 * torch.rand(poles, generator=draw.rng, dtype=torch.float64))
            exponents[f"poles on the unit circle, phases to {phase:.0e} rad"] = torch.complex(torch.zeros_like(turns), turns)
        bound = 1e-6 if draw.single else 2e-14
        for label, x in exponents.items():
            v, x, u = (
                draw(poles).to(draw.dtype),
                x.to(draw.dtype),
                draw.real(steps).to(torch.zeros(0, dtype=draw.dtype).real.dtype),
            )
            yield Case("log_vandermonde", label, (v, x), lambda v, x: log_vandermonde(v, x, steps),
                       lambda v, x: literal.log_vandermonde(v, x, steps), lambda v, x: 2 * (v @ powers(x)).real,
                       bound)  # fmt: skip
            yield Case("log_vandermonde_transpose", label, (u, v, x), lambda u, v, x: log_vandermonde_transpose(u, v, x, steps),
                       lambda u, v, x: literal.log_vandermonde_transpose(u, v, x, steps),
                       lambda u, v, x: v * (powers(x) @ u.to(v.dtype)), bound)  # fmt: skip

    return cases


Parts = dict[str, tuple[Callable[[Draw], Iterator[Case]], tuple[torch.dtype, ...]]]


def parts(n: int, systems: tuple[int, ...], poles: int, points: int) -> Parts:
    """Parts of the table by name: Toeplitz matrices of n rows and of `systems`, `poles` poles and `points` points or steps."""
    every = REAL + COMPLEX
    system_parts: Parts = {f"systems of {rows} rows": (toeplitz_systems(rows), every) for rows in systems}
    return system_parts | {
        f"products with {n} rows": (toeplitz_products(n), every),
        f"displacements of {n} rows": (displacements(n), every),
        f"Cauchy sums of {poles} poles at {points} points": (cauchy_sums(poles, points), every),
        f"sums of {poles} powers at {points} steps": (power_sums(poles, points), COMPLEX),
    }


def check(part: str, of: Parts, device: str, seed: int) -> None:
    cases, dtypes = of[part]
    table = Table(cases, dtypes, device, seed)
    print(f"\n{part[0].upper() + part[1:]}, {device}:\n\n{table}")
    table.check()
