"""torch.vmap of the scans on the GPU: against a loop over calls, and over their gradients, in either layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import relative_rms
from rglru_cases import inputs as rglru_inputs
from selective_inputs import Draw, selective_inputs
from simplified_oracle import drawn
from torch import Tensor

import gdn_cuda

COUNT, FORWARD, GRADIENT = 3, 1e-5, 1e-4
Tensors = dict[str, Tensor]
Function = Callable[[Tensors], tuple[Tensor, Tensor]]


def _selective(name: str = "mamba", **form: Any) -> tuple[Function, list[Tensors]]:
    draws = [selective_inputs(seed, name, dim=20, length=130, N=5, device="cuda", **form) for seed in range(COUNT)]
    options = {k: v for k, v in draws[0].items() if not isinstance(v, Tensor) or k == "cu_seqlens"}
    return (
        lambda x: gdn_cuda.selective_scan(**x, **options, return_last_state=True),
        [{k: v for k, v in each.items() if k not in options} for each in draws],
    )


def _rglru(last: bool) -> tuple[Function, list[Tensors]]:
    draws = [rglru_inputs(2, 20, 130, 2, seed, device="cuda", initial=True, channels_last=last) for seed in range(COUNT)]
    tensors = [{"u": x.u, "delta": x.delta, "A": x.A, "initial_state": x.options["initial_state"]} for x in draws]
    return lambda x: gdn_cuda.rglru_scan(**x, return_last_state=True, first_multiplier=True), tensors


def _s7() -> tuple[Function, list[Tensors]]:
    shapes = {"u": (2, 3, 40), "A": (2, 2, 40), "B": (2, 2, 3, 40), "C": (2, 3, 2, 40), "bias": (2, 2, 40)}
    draws = [Draw(seed, "cuda") for seed in range(COUNT)]
    tensors = [{name: draw.normal(*shape) for name, shape in shapes.items()} for draw in draws]
    return lambda x: gdn_cuda.s7_scan(**x, return_last_state=True), tensors


def _simplified() -> tuple[Function, list[Tensors]]:
    draws = [drawn(seed, 2, 3, 5, 130, varying=True, with_state=True, device="cuda") for seed in range(COUNT)]
    return lambda x: gdn_cuda.simplified_scan(**x, return_last_state=True), draws


CASES: dict[str, Callable[[], tuple[Function, list[Tensors]]]] = {
    "selective": _selective,
    "selective, transposed, groups": lambda: _selective(last=True, groups=2),
    "selective, complex": lambda: _selective("zoh", is_complex=True, in_pairs=True),
    "selective, packed": lambda: _selective(batch=1, cu_seqlens=[0, 0, 65, 130]),
    "rglru": lambda: _rglru(False),
    "rglru, transposed": lambda: _rglru(True),
    "s7": _s7,
    "simplified": _simplified,
}


@pytest.mark.parametrize("name", CASES)
def test_vmap_is_a_loop(name: str) -> None:
    """Over every argument, and over u alone."""
    function, draws = CASES[name]()

    def gradients(x: Tensors) -> Tensors:
        found: Tensors = torch.func.grad(lambda y: sum(z.abs().square().sum() for z in function(y)))(x)
        return found

    for which in (tuple(draws[0]), ("u",)):
        x = {k: torch.stack([each[k] for each in draws]) if k in which else draws[0][k] for k in draws[0]}
        dims = {k: 0 if k in which else None for k in x}
        alone = [{k: each[k] if k in which else draws[0][k] for k in x} for each in draws]
        for i, found in enumerate(torch.vmap(function, (dims,))(x)):
            assert relative_rms(found, torch.stack([function(one)[i] for one in alone])) < FORWARD
        for argument, found in torch.vmap(gradients, (dims,))(x).items():
            wanted = torch.stack([gradients(one)[argument] for one in alone])
            assert relative_rms(found, wanted) < GRADIENT, argument
