"""The C++ API of the structured operators, callable from here: structured_api.cpp built as in a program that uses the
library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import pytest
import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda


def load(folder: Path) -> Any:
    return cpp_api.load(Path(__file__).with_suffix(".cpp"), folder)


class Draws:
    """Random tensors on one device."""

    def __init__(self, device: str, seed: int):
        self.device, self.generator = device, torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=dtype).to(self.device)


def same(api: Any, name: str, arguments: tuple[Any, ...]) -> None:
    """Checks that results are those of Python, also with `out`."""
    expected = getattr(gdn_cuda, name)(*arguments)
    assert torch.equal(getattr(api, name)(*arguments), expected)
    out = torch.full_like(expected, torch.nan)
    assert getattr(api, name)(*arguments, out).data_ptr() == out.data_ptr()
    assert torch.equal(out, expected)


def check(api: Any, device: str, seed: int) -> None:
    """Every sum on one device: the results of Python, conjugate views, and results into `out`."""
    draw = Draws(device, seed)
    calls: list[tuple[str, tuple[Any, ...]]] = []
    for dtype in (torch.float32, torch.complex64):
        calls.append(("cauchy_kernel", (draw(2, 5, dtype=dtype), draw(3, 1, 40, dtype=dtype), draw(5, dtype=dtype))))
    pairs = draw(2, 5, dtype=torch.complex128).conj(), draw(40, dtype=torch.complex128), draw(5, dtype=torch.complex128)
    calls += [("cauchy_conj", pairs), ("cauchy_conj", (pairs[0], pairs[1].conj(), pairs[2].conj()))]
    v, x = draw(2, 5, dtype=torch.complex64), 0.1 * draw(2, 5, dtype=torch.complex64)
    calls += [("log_vandermonde", (v, x.conj(), 33)), ("log_vandermonde", (v.conj(), x, 33))]
    for name, arguments in calls:
        same(api, name, arguments)
    u = draw(2, 33, dtype=torch.float32)
    assert rel_rms(api.log_vandermonde_transpose(u, v.conj(), x), gdn_cuda.log_vandermonde_transpose(u, v.conj(), x, 33)) < 1e-7


def check_toeplitz(api: Any, device: str, seed: int, n: int) -> None:
    """Products and systems of n rows: the results of Python, batches that broadcast, conjugate views, rectangular and singular
    matrices."""
    draw = Draws(device, seed)
    for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12), (torch.complex64, 1e-6), (torch.complex128, 1e-12)):
        c, r, b = draw(2, 1, n, dtype=dtype), draw(n, dtype=dtype), draw(2, 3, n, 2, dtype=dtype)
        c[..., 0] += 4 * n**0.5
        for right in (b, b[0, :, :, 0].conj()):
            same(api, "toeplitz_matvec", (c, r.conj(), right))
            same(api, "toeplitz_matvec_transpose", (c, r.conj(), right))
        same(api, "toeplitz_matvec_transpose", (c, draw(n // 2 + 3, dtype=dtype), b))
        same(api, "toeplitz_matvec", (c, draw(n // 2 + 3, dtype=dtype), draw(2, 3, n // 2 + 3, 2, dtype=dtype)))
        calls = [("toeplitz_solve_ex", (c, r), {}), ("toeplitz_solve_symmetric_ex", (c,), {})]
        if not dtype.is_complex:
            distance = torch.arange(n, dtype=dtype, device=device)
            spd = torch.stack([0.9**distance, 0.5**distance])[:, None]
            calls += [("toeplitz_solve_symmetric_ex", (spd,), {"assume_positive": True})]
        for name, matrix, more in calls:
            for right in (b, b[0, 0, :, 0].conj()):
                x, info = getattr(api, name)(*matrix, right, **more)
                expected, told = getattr(gdn_cuda, name)(*matrix, right, **more)
                assert x.dtype == dtype and rel_rms(x, expected) < bound, (name, dtype)
                assert info.dtype == torch.int32 and info.shape == told.shape == (2, 1) and not info.any()
                if not more:
                    raising = name.removesuffix("_ex")
                    found = getattr(api, raising)(*matrix, right)
                    assert rel_rms(found, getattr(gdn_cuda, raising)(*matrix, right)) < bound, (raising, dtype)
            broken = torch.cat([matrix[0][:1], torch.zeros_like(matrix[0][:1])])
            row = (torch.zeros_like(r),) * (len(matrix) - 1)
            x, info = getattr(api, name)(broken, *row, b, **more)
            assert info.tolist() == [[0], [-1 if more else 1]] and bool(x[1].isnan().all() & x[0].isfinite().all())
            if not more:
                with pytest.raises(
                    RuntimeError, match=r"^toeplitz_solve\w*: c.*: expected matrices that are nonsing.*info \[0, 1\]"
                ):
                    getattr(api, name.removesuffix("_ex"))(broken, *row, b)
        u, v = api.gs_compute_generators(c, r)
        for ours, theirs in zip((u, v), gdn_cuda.gs_compute_generators(c, r), strict=True):
            assert rel_rms(ours, theirs) < bound
        assert rel_rms(api.toeplitz_inverse_apply(u, v, b), gdn_cuda.toeplitz_solve(c, r, b)) < 1e2 * bound
    none = torch.zeros(2, 0, device=device)
    x, info = api.toeplitz_solve_ex(none, none, none)
    assert x.shape == (2, 0) and info.tolist() == [0, 0]
