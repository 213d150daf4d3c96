"""simplified_scan and s5_inner as operators: errors, tracing, torch.func, torch.vmap, the C++ API. CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cpp_api
import pytest
import simplified_oracle as oracle
import torch
from torch import Tensor

from gdn_cuda import s5_inner, simplified_scan

BATCH, H, P, L = 2, 3, 5, 4


def given(seed: int = 0, **more: Any) -> dict[str, Any]:
    return oracle.drawn(seed, BATCH, H, P, L, varying=True, with_a=True, with_state=True) | more


REFUSED: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "u real": ("u", lambda x: x["u"].real, "expected complex64 or complex128, got float32"),
    "u rank": ("u", lambda x: x["u"][0], r"expected rank 3 \(batch, H, L\), got \(3, 4\)"),
    "u none": ("u", lambda x: None, "expected a tensor, got None"),
    "delta dtype": ("delta", lambda x: x["delta"].double(), "expected float32, got float64"),
    "delta shape": ("delta", lambda x: x["delta"][:1], r"expected \(P,\) or \(batch, P, L\) = \(2, 5, 4\), got \(1, 5, 4\)"),
    "delta length": ("delta", lambda x: x["delta"][0, :4, 0], r"expected \(P,\) or \(batch, P, L\) = \(5\), got \(4,\)"),
    "delta_a shape": ("delta_a", lambda x: x["delta_a"][..., :3], r"expected .* = \(2, 5, 4\), got \(2, 5, 3\)"),
    "A shape": ("A", lambda x: x["A"][None], r"expected \(P,\) or \(P, 1\), got \(1, 5\)"),
    "A real": ("A", lambda x: x["A"].real, "expected complex64, got float32"),
    "B shape": ("B", lambda x: x["B"].T, r"expected \(P, H\) = \(5, 3\), got \(3, 5\)"),
    "C shape": ("C", lambda x: x["C"].T, r"expected \(H, P\) = \(3, 5\), got \(5, 3\)"),
    "C dtype": ("C", lambda x: x["C"].to(torch.complex128), "expected complex64, got complex128"),
    "state shape": ("initial_state", lambda x: x["initial_state"].T, r"expected \(batch, P\) = \(2, 5\), got \(5, 2\)"),
    "state device": ("initial_state", lambda x: x["initial_state"].to("meta"), "expected cpu, the device of u, got meta"),
    "discretization": ("discretization", lambda x: "zohh", "expected one of 'mamba', .*'rglru', got 'zohh'"),
    "mamba": ("discretization", lambda x: "mamba", "expected one of 'bilinear', 'zoh', 'dirac', got 'mamba'"),
    "not a name": ("discretization", lambda x: 1, "expected a string, got 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_argument(case: str) -> None:
    argument, broken, message = REFUSED[case]
    x = given()
    with pytest.raises(ValueError, match=f"^simplified_scan: {argument}: {message}"):
        simplified_scan(**x | {argument: broken(x)})


def test_s5_inner_refuses_by_its_own_name() -> None:
    x = given()
    del x["initial_state"]
    with pytest.raises(ValueError, match=r"^s5_inner: D: expected \(H,\) = \(3\), got \(4,\)"):
        s5_inner(**x, D=torch.ones(4))
    with pytest.raises(ValueError, match=r"^s5_inner: B: expected \(P, H\) = \(5, 3\), got \(3, 5\)"):
        s5_inner(**x | {"B": x["B"].T}, D=torch.ones(3))
    with pytest.raises(ValueError, match=r"^s5_inner: discretization: expected one of 'mamba', .*, got 'zohh'"):
        s5_inner(**x, D=torch.ones(3), discretization="zohh")
    with pytest.raises(ValueError, match=r"^s5_inner: D: expected a tensor, got None"):
        s5_inner(**x, D=None)  # type: ignore[arg-type]


def test_any_strides_are_read() -> None:
    x = given()
    expected = simplified_scan(**x)
    moved = {
        key: value.transpose(-1, -2).contiguous().transpose(-1, -2) if value.dim() > 1 else value for key, value in x.items()
    }
    torch.testing.assert_close(simplified_scan(**moved), expected)
    conjugate = x | {"A": torch.conj_physical(x["A"]).conj(), "u": torch.conj_physical(x["u"]).conj()}
    torch.testing.assert_close(simplified_scan(**conjugate), expected)


def leaves_of(x: dict[str, Any]) -> list[Tensor]:
    return [value.requires_grad_() for value in x.values() if isinstance(value, Tensor)]


@pytest.mark.parametrize("name", oracle.NAMES)
def test_tracing(name: str) -> None:
    x = given()
    leaves = leaves_of(x)

    def loss(*tensors: Tensor) -> Tensor:
        y, last = simplified_scan(**dict(zip(x, tensors, strict=True)), return_last_state=True, discretization=name)
        return y.abs().square().sum() + last.abs().sum()

    eager = torch.autograd.grad(loss(*leaves), leaves)
    traced = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves), leaves)
    torch.testing.assert_close(traced, eager)
    through_func = torch.func.grad(loss, tuple(range(len(leaves))))(*(leaf.detach() for leaf in leaves))
    torch.testing.assert_close(through_func, eager)


@pytest.mark.parametrize("varying", [False, True])
def test_vmap_is_a_loop(varying: bool) -> None:
    """Over every argument, over each alone, and over gradients."""
    draws = [oracle.drawn(i, BATCH, H, P, L, varying=varying, with_state=True, dtype=torch.complex128) for i in range(3)]
    for which in (tuple(draws[0]), *((name,) for name in draws[0])):
        x = {name: torch.stack([each[name] for each in draws]) if name in which else draws[0][name] for name in draws[0]}
        dims = tuple(0 if name in which else None for name in x)

        def run(*tensors: Tensor, names: tuple[str, ...] = tuple(x)) -> tuple[Tensor, Tensor]:
            return simplified_scan(**dict(zip(names, tensors, strict=True)), return_last_state=True)

        def gradients(*tensors: Tensor, run: Any = run) -> Any:
            loss = lambda *z: sum(y.abs().square().sum() for y in run(*z))  # noqa: E731
            return torch.func.grad(loss, tuple(range(len(tensors))))(*tensors)

        for function in (run, gradients):
            mapped = torch.vmap(function, dims)(*x.values())
            one_by_one = [function(*(y[i] if name in which else y for name, y in x.items())) for i in range(3)]
            torch.testing.assert_close(mapped, tuple(torch.stack(each) for each in zip(*one_by_one, strict=True)))


def test_derivatives_that_are_not_computed_are_refused() -> None:
    x = given()
    with pytest.raises(RuntimeError, match=r"^simplified_scan: forward-mode derivatives are not computed$"):
        torch.func.jvp(lambda u: simplified_scan(**x | {"u": u}), (x["u"],), (x["u"],))
    leaves_of(x)
    (first,) = torch.autograd.grad(simplified_scan(**x).abs().sum(), x["A"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^simplified_scan: gradients of gradients are not computed$"):
        torch.autograd.grad(first.abs().sum(), x["delta"])


# ---- The C++ API


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cpp_api.load(Path(__file__).parents[1] / "scan_api.cpp", tmp_path_factory.mktemp("scan_api"))


def test_the_cpp_api_gives_what_python_gives(api: Any) -> None:
    x = given()
    expected = simplified_scan(**x, return_last_state=True)
    for found, wanted in zip(api.simplified_scan(*x.values()), expected, strict=True):
        assert torch.equal(found, wanted)
    del x["initial_state"]
    D = torch.randn(H)
    for conj_sym in (True, False):
        found = api.s5_inner(*x.values(), D, conj_sym)
        torch.testing.assert_close(found, s5_inner(**x, D=D, discretization="zoh", conj_sym=conj_sym))
    with pytest.raises(ValueError, match=r"^s5_inner: D: expected \(H,\) = \(3\), got \(4,\)"):
        api.s5_inner(*x.values(), torch.ones(4), True)
