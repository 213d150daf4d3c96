"""Examples of Cauchy sums and sums of powers. T is the number of points."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ..operators.examples import Arguments, Case, call_operator, draw
from ..runtime import package as gdn_cuda

N = 5
Make = Callable[[int, int, int], Arguments]


def cauchy(dtype: torch.dtype, points: str, poles: str, out: bool = False) -> Make:
    def make(B: int, T: int, seed: int) -> Arguments:
        x = {
            "v": draw(2, B, 2 * N, seed=seed, dtype=dtype)[..., ::2],
            points: draw(B, T, seed=seed + 1, dtype=dtype),
            poles: draw(2, 1, N, seed=seed + 2, dtype=dtype),
        }
        return x | ({"out": torch.full((2, B, T), torch.nan, dtype=dtype)} if out else {})

    return make


def backward(conj: bool) -> Make:
    dtype = torch.complex64 if conj else torch.float32

    def make(B: int, T: int, seed: int) -> Arguments:
        x = cauchy(dtype, "points", "poles")(B, T, seed)
        grad = {"grad": draw(2, B, T, seed=seed + 3, dtype=dtype)}
        return grad | x | {"conj": conj, "needs_dv": True, "needs_dpoints": conj, "needs_dpoles": True}

    return make


def powers(dtype: torch.dtype, out: bool = False) -> Make:
    def make(B: int, T: int, seed: int) -> Arguments:
        v, x = draw(2, B, N, seed=seed, dtype=dtype), 0.1 * draw(B, N, seed=seed + 1, dtype=dtype)
        real = torch.float64 if dtype == torch.complex128 else torch.float32
        return {"v": v, "x": x, "L": T} | ({"out": torch.full((2, B, T), torch.nan, dtype=real)} if out else {})

    return make


def transposed(B: int, T: int, seed: int) -> Arguments:
    x = powers(torch.complex64)(B, T, seed)
    return {"u": draw(B, T, seed=seed + 2, dtype=torch.float32)} | x


def cases() -> Iterator[Case]:
    for dtype in (torch.float64, torch.bfloat16, torch.complex64):
        name = str(dtype).removeprefix("torch.")
        yield Case(f"cauchy-{name}", gdn_cuda.cauchy_kernel, cauchy(dtype, "omega", "lambd"))
    yield Case("cauchy-out", gdn_cuda.cauchy_kernel, cauchy(torch.float32, "omega", "lambd", out=True))
    yield Case("cauchy-conj", gdn_cuda.cauchy_conj, cauchy(torch.complex64, "z", "w"))
    yield Case("cauchy-conj-out", gdn_cuda.cauchy_conj, cauchy(torch.complex128, "z", "w", out=True))
    yield Case("cauchy-backward", call_operator("cauchy_backward"), backward(False))
    yield Case("cauchy-conj-backward", call_operator("cauchy_backward"), backward(True))
    yield Case("vandermonde", gdn_cuda.log_vandermonde, powers(torch.complex64))
    yield Case("vandermonde-out", gdn_cuda.log_vandermonde, powers(torch.complex128, out=True))
    yield Case("vandermonde-transpose", gdn_cuda.log_vandermonde_transpose, transposed)
