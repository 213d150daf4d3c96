"""torch.vmap of the scans against a loop over calls: of results, of gradients, and inside of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rglru_cases import inputs as rglru_inputs
from selective_inputs import Draw, selective_inputs
from torch import Tensor

import gdn_cuda
from gdn_cuda.ssd import scan as ssd

COUNT = 3
Function = Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]]
Drawn = tuple[Function, list[dict[str, Tensor]]]


def _selective(draw: Callable[[int], dict[str, Any]]) -> Drawn:
    draws = [draw(seed) for seed in range(COUNT)]
    options = {name: value for name, value in draws[0].items() if not isinstance(value, Tensor) or name == "cu_seqlens"}
    tensors = [{name: value for name, value in each.items() if name not in options} for each in draws]
    return lambda x: gdn_cuda.selective_scan(**x, **options, return_last_state=True), tensors


def _rglru() -> Drawn:
    draws = [rglru_inputs(2, 3, 5, 2, seed, dtype=torch.float64, initial=True) for seed in range(COUNT)]
    tensors = [{"u": x.u, "delta": x.delta, "A": x.A, "initial_state": x.options["initial_state"]} for x in draws]
    return lambda x: gdn_cuda.rglru_scan(**x, return_last_state=True, first_multiplier=True), tensors


def _s7() -> Drawn:
    shapes = {"u": (1, 3, 5), "A": (1, 2, 5), "B": (1, 2, 3, 5), "C": (1, 3, 2, 5), "bias": (1, 2, 5)}
    draws = [Draw(seed) for seed in range(COUNT)]
    tensors = [{name: draw.normal(*shape, dtype=torch.float64) for name, shape in shapes.items()} for draw in draws]
    return lambda x: gdn_cuda.s7_scan(**x, return_last_state=True), tensors


def _ssd(**options: Any) -> Drawn:
    """Two groups of two heads; with options D is by channel, and there is no z."""
    batch, states, T, H, P, G, N = 1 if "cu_seqlens" in options else 2, 2, 7, 4, 3, 2, 2
    shapes = {"x": (batch, T, H, P), "dt": (batch, T, H), "A": (H,), "B": (batch, T, G, N), "C": (batch, T, G, N)}
    shapes |= {"D": (H, P) if options else (H,), "dt_bias": (H,), "initial_state": (states, H, P, N)}
    if not options:
        shapes["z"] = shapes["x"]
    draws = [Draw(seed) for seed in range(COUNT)]
    tensors = [{name: draw.normal(*shape, dtype=torch.float64) for name, shape in shapes.items()} for draw in draws]
    return lambda x: gdn_cuda.ssd_scan(**x, **options, dt_softplus=True, return_last_state=True), tensors


small = {"dtype": torch.float64, "length": 7, "N": 2}
CASES: dict[str, Callable[[], Drawn]] = {
    "selective": lambda: _selective(lambda seed: selective_inputs(seed, **small)),
    "selective, groups, complex": lambda: _selective(
        lambda seed: selective_inputs(seed, "zoh", **small, groups=2, is_complex=True, in_pairs=True)
    ),
    "selective, constant": lambda: _selective(
        lambda seed: selective_inputs(seed, "bilinear", **small, B="constant", C="constant", bare=True)
    ),
    "selective, packed": lambda: _selective(
        lambda seed: selective_inputs(seed, **small, batch=1, groups=1, cu_seqlens=[0, 0, 5, 7])
    ),
    "ssd": _ssd,
    "ssd, packed": lambda: _ssd(cu_seqlens=torch.tensor([0, 3, 6])),
    "ssd, numbered": lambda: _ssd(seq_idx=torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7]).int()),
    "rglru": _rglru,
    "s7": _s7,
}


def _compared(function: Function, name: str, which: tuple[str, ...], draws: list[dict[str, Tensor]], at: int) -> None:
    """With the arguments `which` mapped over as their dimension `at`."""
    x = {k: torch.stack([each[k] for each in draws], at) if k in which else draws[0][k] for k in draws[0]}
    dims = {k: at if k in which else None for k in x}
    mapped = torch.vmap(function, (dims,))(x)
    one_by_one = [function({k: each[k] if k in which else draws[0][k] for k in x}) for each in draws]
    for i, found in enumerate(mapped.values() if isinstance(mapped, dict) else mapped):
        wanted = torch.stack([(list(one.values()) if isinstance(one, dict) else one)[i] for one in one_by_one])
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10, msg=lambda m: f"{name}, {which}, {i}: {m}")  # noqa: B023


@pytest.mark.parametrize("name", CASES)
def test_vmap_is_a_loop(name: str) -> None:
    """Over every argument, over each alone, over a last dimension, and over gradients."""
    function, draws = CASES[name]()

    def gradients(x: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = torch.func.grad(lambda y: sum(z.abs().square().sum() for z in function(y)))(x)
        return found

    every = tuple(draws[0])
    for which in (every, *((one,) for one in every)):
        _compared(function, name, which, draws, 0)
        _compared(gradients, name, which, draws, 0)
    _compared(function, name, every, draws, -1)
    _compared(gradients, name, every, draws, -1)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_mapped_call_are_those_of_a_loop(name: str) -> None:
    function, draws = CASES[name]()
    first = next(iter(draws[0]))
    x = {k: torch.stack([each[k] for each in draws]) for k in draws[0]} | {first: draws[0][first]}
    dims = {k: None if k == first else 0 for k in x}

    def mapped(x: dict[str, Tensor]) -> Any:
        return sum(y.abs().square().sum() for y in torch.vmap(function, (dims,))(x))

    def looped(x: dict[str, Tensor]) -> Any:
        calls = (function({k: y if k == first else y[i] for k, y in x.items()}) for i in range(COUNT))
        return sum(y.abs().square().sum() for call in calls for y in call)

    leaves = {k: y.clone().requires_grad_() for k, y in x.items()}
    wanted = dict(zip(x, torch.autograd.grad(looped(leaves), list(leaves.values())), strict=True))
    by_func = torch.func.grad(mapped)(x)
    by_autograd = torch.autograd.grad(mapped(leaves), list(leaves.values()))
    for (argument, expected), found in zip(wanted.items(), by_autograd, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=lambda m: f"{argument}: {m}")  # noqa: B023
        torch.testing.assert_close(by_func[argument], expected, rtol=1e-10, atol=1e-10)


def test_a_jacobian_maps_over_gradients() -> None:
    x = selective_inputs(0, **small, batch=1, dim=2)
    by_rows = torch.func.jacrev(lambda u: gdn_cuda.selective_scan(**x | {"u": u}))(x["u"])
    assert by_rows.shape == x["u"].shape * 2
    u = x["u"].clone().requires_grad_()
    out = gdn_cuda.selective_scan(**x | {"u": u})
    for d, t in ((0, 0), (1, 6)):
        (wanted,) = torch.autograd.grad(out[0, d, t], u, retain_graph=True)
        torch.testing.assert_close(by_rows[0, d, t], wanted, rtol=1e-10, atol=1e-10)


def _ssd_rows(**options: Any) -> Callable[..., Any]:
    """ssd_scan of x alone, of one head."""
    draw = Draw(9)
    rest = {
        "dt": draw.normal(2, 7, 1).abs(),
        "A": -draw.normal(1).abs(),
        "B": draw.normal(2, 7, 1, 8),
        "C": draw.normal(2, 7, 1, 8),
    }
    return lambda x, **more: gdn_cuda.ssd_scan(x, **rest, **options, **more)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_ssd_scan_of_one_head_over_a_last_dimension(has_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_kernel:
        monkeypatch.setattr(ssd, "has_kernel", lambda *call: False)
    x, scan = Draw(0).normal(2, 7, 1, 3, COUNT), _ssd_rows(state_dtype=torch.bfloat16, return_last_state=True)
    wanted = [scan(x[..., i].contiguous()) for i in range(COUNT)]
    for found, one_by_one in zip(torch.vmap(scan, 4)(x), zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(
            found, torch.stack(one_by_one), rtol=1e-2 if found.dtype == torch.bfloat16 else 1e-5, atol=1e-5
        )


def test_ssd_scan_refuses_what_it_would_write_and_sequences_that_are_mapped() -> None:
    x = Draw(0).normal(COUNT, 2, 7, 1, 3)
    for name, given in (("out", torch.empty(2, 7, 1, 3)), ("last_state", torch.empty(2, 1, 3, 8))):
        with pytest.raises(ValueError, match=f"^ssd_scan: {name}: expected None under torch.func, torch.vmap and forward mode"):
            torch.vmap(_ssd_rows(**{name: given}))(x)
    numbers, scan = torch.zeros(COUNT, 2, 7, dtype=torch.int32), _ssd_rows()
    with pytest.raises(RuntimeError, match=r"^ssd_scan: torch\.vmap over seq_idx is not supported$"):
        torch.vmap(lambda x, n: scan(x, seq_idx=n))(x, numbers)


def test_vmap_over_cu_seqlens_and_reset_is_refused() -> None:
    packed = selective_inputs(0, **small, batch=1, cu_seqlens=[0, 7])
    cu_seqlens = packed.pop("cu_seqlens")[None]
    with pytest.raises(RuntimeError, match=r"^selective_scan: torch\.vmap over cu_seqlens is not supported$"):
        torch.vmap(lambda c: gdn_cuda.selective_scan(**packed, cu_seqlens=c))(cu_seqlens)
    ones, A = torch.ones(1, 2, 4), torch.full((2, 1), 0.5)
    with pytest.raises(RuntimeError, match=r"^rglru_scan: torch\.vmap over cu_seqlens and reset is not supported$"):
        torch.vmap(lambda r: gdn_cuda.rglru_scan(ones, ones, A, reset=r))(torch.ones(3, 1, 4, dtype=torch.int32))
