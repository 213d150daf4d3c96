"""Properties of all structured functions: `out=`, `stream=`, devices, documented results for bad and empty input. CPU
tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.operators.examples import Case
from gdn_cuda.structured import examples_sums

CASES = {case.name: case for case in examples_sums.cases()}
PUBLIC = {name: case for name, case in CASES.items() if hasattr(gdn_cuda, case.function.__name__)}
EVERY_CASE = pytest.mark.parametrize("case", PUBLIC.values(), ids=PUBLIC.keys())
inf, nan = float("inf"), float("nan")


def without_out(case: Case, seed: int) -> dict[str, Any]:
    return {name: x for name, x in case.make(3, 4, seed).items() if name != "out"}


@EVERY_CASE
def test_out_receives_the_result(case: Case, seed: int) -> None:
    x = without_out(case, seed)
    expected = case.function(**x)
    out = torch.full_like(expected, nan)
    assert case.function(**x, out=out) is out
    assert torch.equal(out, expected)


BAD_OUT: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "shape": (lambda out: out[..., :-1].contiguous(), "the shape of the result|4\\)|5\\)"),
    "dtype": (lambda out: torch.full_like(out, 7.0, dtype=torch.float16), "float|complex"),
    "device": (lambda out: out.to("meta"), "cpu"),
}


@EVERY_CASE
@pytest.mark.parametrize("bad", BAD_OUT)
def test_a_wrong_out_is_refused_before_it_is_written(case: Case, bad: str, seed: int) -> None:
    change, expected = BAD_OUT[bad]
    x = without_out(case, seed)
    out = change(torch.full_like(case.function(**x), 7.0))
    with pytest.raises(ValueError, match=rf"^{case.function.__name__}: out: expected .*({expected}).*, got "):
        case.function(**x, out=out)
    assert out.device.type == "meta" or bool((out == 7).all())


def test_out_must_be_contiguous_and_must_not_overlap(seed: int) -> None:
    x = without_out(CASES["cauchy-float64"], seed)
    wide = torch.zeros(2, 3, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^cauchy_kernel: out: expected a contiguous tensor, got strides \(24, 8, 2\)$"):
        gdn_cuda.cauchy_kernel(**x, out=wide[..., ::2])
    buffer = torch.randn(20, dtype=torch.complex128)
    poles = buffer[:5]
    with pytest.raises(
        ValueError, match=r"^cauchy_conj: out: expected memory that does not overlap that of w, got memory that overlaps it$"
    ):
        gdn_cuda.cauchy_conj(torch.ones_like(poles), torch.ones(10, dtype=torch.complex128), poles, out=buffer[4:14])
    gdn_cuda.cauchy_conj(torch.ones_like(poles), torch.ones(10, dtype=torch.complex128), poles, out=buffer[5:15])
    with pytest.raises(
        ValueError,
        match=r"^log_vandermonde: out: expected memory that does not overlap that of x, got memory that overlaps it$",
    ):
        gdn_cuda.log_vandermonde(poles.clone(), poles, 5, out=torch.view_as_real(poles)[:, 0].as_strided((5,), (1,)))


def test_an_out_that_is_a_view_or_not_a_tensor_is_refused() -> None:
    x, out = complex_(1, 2), torch.zeros(2, dtype=torch.complex64)
    message = "^cauchy_kernel: out: expected memory that holds the numbers themselves, got a conjugate view$"
    with pytest.raises(ValueError, match=message):
        gdn_cuda.cauchy_kernel(x, x, x, out=out.conj())
    with pytest.raises(ValueError, match=r"^log_vandermonde_transpose: out: expected .* contiguous, got .* strides \(2,\)$"):
        gdn_cuda.log_vandermonde_transpose(x, x, x, 2, out=out.repeat(2)[::2])
    with pytest.raises(ValueError, match=r"^cauchy_kernel: out: expected a tensor, got list$"):
        gdn_cuda.cauchy_kernel(x, x, x, out=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^cauchy_kernel: v: expected a real or complex floating-point tensor, got list$"):
        gdn_cuda.cauchy_kernel([1.0], x, x, out=out)  # type: ignore[arg-type]


def test_an_out_that_overlaps_an_input_is_correct_where_results_are_copied() -> None:
    buffer, x = complex_(1, 2, 3, 4), complex_(0, 0)
    gdn_cuda.log_vandermonde_transpose(torch.ones(3), buffer[1:3], x, 3, out=buffer[2:])
    assert buffer.tolist() == [1, 2, 6, 9]


@EVERY_CASE
def test_out_is_refused_with_tensors_that_require_gradients(case: Case, seed: int) -> None:
    x = without_out(case, seed)
    out = torch.empty_like(case.function(**x))
    x["v"].requires_grad_()
    message = f"^{case.function.__name__}: out: expected no tensor that requires a gradient with it, got v$"
    with pytest.raises(ValueError, match=message):
        case.function(**x, out=out)
    with torch.no_grad():
        case.function(**x, out=out)


@EVERY_CASE
def test_a_stream_is_for_cuda_tensors(case: Case, seed: int) -> None:
    with pytest.raises(
        ValueError, match=rf"^{case.function.__name__}: stream: expected None, as the tensors are on cpu, got 7$"
    ):
        case.function(**without_out(case, seed), stream=7)


@EVERY_CASE
def test_tensors_on_different_devices_are_refused(case: Case, seed: int) -> None:
    x = without_out(case, seed)
    first, second = (name for name, value in x.items() if isinstance(value, Tensor) and name in list(x)[:2])
    message = rf"^{case.function.__name__}: {second}: expected cpu, the device of {first}, got meta$"
    with pytest.raises(ValueError, match=message):
        case.function(**x | {second: x[second].to("meta")})


def test_pinning_needs_cuda_tensors() -> None:
    x = torch.ones(3)
    with pytest.raises(ValueError, match=r"^cauchy_pin_l2: omega: expected a CUDA tensor, got cpu$"):
        gdn_cuda.cauchy_pin_l2(x, x)
    with pytest.raises(ValueError, match=r"^cauchy_pin_l2: omega: expected a CUDA tensor, got list$"):
        gdn_cuda.cauchy_pin_l2([1.0], x)  # type: ignore[arg-type]


@EVERY_CASE
def test_sums_over_slices_of_points_equal_the_whole(case: Case, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long sums on CPU tensors are computed in slices."""
    x = {
        name: value.requires_grad_() if isinstance(value, Tensor) else value for name, value in without_out(case, seed).items()
    }
    leaves = [value for value in x.values() if isinstance(value, Tensor)]

    def everything() -> list[Tensor]:
        out = case.function(**x)
        return [out, *torch.autograd.grad(out.abs().sum(), leaves)]

    expected = everything()
    monkeypatch.setattr("gdn_cuda.structured.reference_sums.BYTES", 16 * 90)  # 3 × 2 rows of 5 poles: three points
    for ours, theirs in zip(everything(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=4e-3 if ours.dtype == torch.bfloat16 else 1e-6, atol=0)


@pytest.mark.parametrize("name", ["cauchy-float64", "cauchy-conj", "vandermonde", "vandermonde-transpose"])
def test_gradients_of_gradients_are_refused(name: str, seed: int) -> None:
    case = CASES[name]
    x = without_out(case, seed)
    leaves = [value.requires_grad_() for value in x.values() if isinstance(value, Tensor)]
    first = torch.autograd.grad(case.function(**x).abs().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=rf"\b{case.function.__name__}\b.*: gradients of gradients are not computed$"):
        torch.autograd.grad(sum(y.abs().sum() for y in first), leaves)  # type: ignore[arg-type]


# ---- Documented results (docs/structured.md)


def complex_(*values: complex) -> Tensor:
    return torch.tensor(values, dtype=torch.complex64)


def test_a_pole_on_a_point_gives_the_limit() -> None:
    omega, lambd = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 2.0, 5.0])
    out = gdn_cuda.cauchy_kernel(torch.tensor([-1.0, 4.0, -4.0, 0.0]), omega, lambd)
    assert out.tolist() == [-inf, -1.0, -0.5]  # at 2, the residues 4 and -4 cancel, and the sum of the other terms remains
    at_i = gdn_cuda.cauchy_kernel(complex_(2 - 3j), complex_(1j), complex_(1j))
    assert (at_i.real.item(), at_i.imag.item()) == (inf, -inf)
    real_pole = gdn_cuda.cauchy_conj(complex_(1 + 5j), complex_(2), complex_(2))
    assert (real_pole.real.item(), real_pole.imag.item()) == (inf, 0)  # the residues there are v + v̄


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_only_gradients_of_coinciding_points_and_poles_are_nan(dtype: torch.dtype) -> None:
    x = [torch.tensor(values, dtype=dtype).requires_grad_() for values in ([1.0, 2.0], [1.0, 4.0], [1.0, 3.0])]
    out = gdn_cuda.cauchy_kernel(*x)
    for grad in torch.autograd.grad(out, x, torch.ones_like(out)):
        assert grad.isnan().tolist() == [True, False]


def test_empty_sums_are_zero_and_no_points_give_an_empty_result() -> None:
    none, three = torch.zeros(0), torch.arange(3.0)
    assert gdn_cuda.cauchy_kernel(none, three, none).tolist() == [0, 0, 0]
    assert gdn_cuda.cauchy_kernel(three, none, three + 5).shape == (0,)
    assert gdn_cuda.cauchy_kernel(torch.zeros(0, 3), three, three + 5).shape == (0, 3)
    assert gdn_cuda.log_vandermonde(none, none, 3).tolist() == [0, 0, 0]
    assert gdn_cuda.log_vandermonde(three, three, 0).shape == (0,)
    assert gdn_cuda.log_vandermonde_transpose(none, three, three, 0).tolist() == [0, 0, 0]
    assert gdn_cuda.log_vandermonde_transpose(three, none, none, 3).shape == (0,)


def test_points_at_infinity() -> None:
    points = complex_(complex(inf, 0), complex(0, -inf), complex(inf, inf))
    for function in (gdn_cuda.cauchy_kernel, gdn_cuda.cauchy_conj):
        out = function(complex_(1), points, complex_(1))
        assert out[:2].tolist() == [0, 0] and out[2].isnan()


def test_sums_of_one_term() -> None:
    one = torch.ones(1)
    assert gdn_cuda.cauchy_kernel(3 * one, 4 * one, one).tolist() == [1]
    assert gdn_cuda.cauchy_conj(complex_(1j), complex_(2), complex_(1)).tolist() == [0]
    assert gdn_cuda.log_vandermonde(3 * one, one, 1).tolist() == [6]
    assert gdn_cuda.log_vandermonde_transpose(2 * one, 3 * one, one, 1).tolist() == [6]


def test_minus_infinity_is_the_logarithm_of_zero() -> None:
    assert gdn_cuda.log_vandermonde(torch.ones(1), torch.tensor([-inf]), 3).tolist() == [2, 0, 0]


def test_powers_out_of_range_are_infinite_or_zero() -> None:
    x = torch.tensor([90.0])
    assert gdn_cuda.log_vandermonde(torch.ones(1), x, 2).tolist()[1] == inf
    assert gdn_cuda.log_vandermonde(torch.ones(1), -2 * x, 2).tolist()[1] == 0
    assert gdn_cuda.log_vandermonde(torch.ones(1), torch.tensor([-1e305], dtype=torch.float64), 3).tolist() == [2, 0, 0]


@pytest.mark.parametrize("L", [3.0, "3", None])
def test_lengths_that_are_not_integers_are_refused(L: Any) -> None:
    x = torch.ones(3)
    for function, tensors in ((gdn_cuda.log_vandermonde, (x, x)), (gdn_cuda.log_vandermonde_transpose, (x, x, x))):
        with pytest.raises(ValueError, match=re.escape(f"{function.__name__}: L: expected an integer, got {L!r}")):
            function(*tensors, L)  # type: ignore[operator]


@pytest.mark.parametrize("L", [-1, 2**41])
def test_lengths_out_of_range_are_refused(L: int) -> None:
    with pytest.raises(ValueError, match=re.escape(f"log_vandermonde: L: expected 0 to 1099511627776, got {L}")):
        gdn_cuda.log_vandermonde(torch.ones(1), torch.ones(1), L)
