"""The C++ API of the structured operators on CPU tensors, for which it calls Python's implementations."""

from __future__ import annotations

from typing import Any

import pytest
import structured_api
import torch


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return structured_api.load(tmp_path_factory.mktemp("structured_api"))


def test_results_are_those_of_python(api: Any, seed: int) -> None:
    structured_api.check(api, "cpu", seed)


@pytest.mark.parametrize("n", [1, 9])
def test_toeplitz_results_are_those_of_python(api: Any, n: int, seed: int) -> None:
    structured_api.check_toeplitz(api, "cpu", seed, n)


def test_toeplitz_arguments(api: Any) -> None:
    c, out = torch.ones(4), torch.empty(4)
    with pytest.raises(ValueError, match=r"^toeplitz_matvec: x: expected float32, got float64"):
        api.toeplitz_matvec(c, c, c.double())
    with pytest.raises(ValueError, match=r"^toeplitz_matvec_transpose: x: expected \(…, 4\), or with more .*, got \(3,\)"):
        api.toeplitz_matvec_transpose(c, c[:3], c[:3], out)
    with pytest.raises(ValueError, match=r"^toeplitz_matvec: out: expected the shape of the result, \(4\), got \(2,\)"):
        api.toeplitz_matvec(c, c, c, out[:2])
    with pytest.raises(
        ValueError, match=r"^toeplitz_matvec: out: expected memory that does not overlap that of x, got memory that"
    ):
        api.toeplitz_matvec(c, c, out, out)
    with pytest.raises(ValueError, match=r"^toeplitz_solve_ex: b: expected \(…, 4\), or with more dimensions .*, got \(5,\)"):
        api.toeplitz_solve_ex(c, c, torch.ones(5))
    with pytest.raises(ValueError, match=r"^toeplitz_solve_symmetric_ex: c: expected float32 or float64, got complex64"):
        api.toeplitz_solve_symmetric_ex(c.cfloat(), c.cfloat(), True)


def test_only_cuda_tensors_are_pinned(api: Any) -> None:
    with pytest.raises(ValueError, match=r"^cauchy_pin_l2: omega: expected a CUDA tensor, got cpu$"):
        api.pinned_cauchy_kernel(*torch.ones(3, 4))


def test_nothing_is_converted(api: Any) -> None:
    v, x = torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex128)
    with pytest.raises(ValueError, match=r"^log_vandermonde_transpose: v: expected complex128, got complex64"):
        api.log_vandermonde_transpose(torch.ones(4, dtype=torch.float64), v, x)
    with pytest.raises(ValueError, match=r"^log_vandermonde_transpose: v: expected \(…, 3\) as x has, got \(2,\)"):
        api.log_vandermonde_transpose(torch.ones(4), v[:2], v)
