"""Layers that get no tensor, a sparse one, or one of a wrong size: the error names the layer and an argument of its method,
not an operator that the layer calls with computed inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda import nn

MESSAGE = re.compile(r"(\w+): (\w+): expected .+, got .+", re.DOTALL)
LINE = torch.tensor([4.0, 1, 0])


def kernel(module: Any) -> Any:
    H, N = 2, 4
    config = {"N": N, "H": H, "channels": 1, "rank": 1, "repeat": 1, "disc": "zoh"}
    config |= {"real_transform": "exp", "imag_transform": "none", "dt_transform": "exp"}
    config |= {name: torch.nn.Parameter(torch.randn(1, H, N, 2)) for name in ("B", "C", "P")}
    return module(
        H, 8, 1, config | {"A_real": torch.zeros(H, N), "A_imag": torch.randn(H, N), "inv_dt": torch.full((H, 1), -3.0)}
    )


LAYERS: dict[str, Callable[[], Any]] = {
    "CauchyKernel": lambda: nn.CauchyKernel(LINE, 0.5 + LINE),
    "DisplacementMV": lambda: nn.DisplacementMV(torch.randn(3, 2), torch.randn(3, 2)),
    "GatedDeltaNet": lambda: nn.GatedDeltaNet(32, heads=(1, 2), head_k_dim=64, head_v_dim=16, dtype=torch.bfloat16),
    "HyenaCascade": lambda: nn.HyenaCascade(8, 7, hyena_filter_groups=2),
    "KimiDeltaAttention": lambda: nn.KimiDeltaAttention(32, (1, 2), 64, 16, dtype=torch.bfloat16),
    "LRU": lambda: nn.LRU(4, 8),
    "Mamba": lambda: nn.Mamba(16),
    "Mamba2": lambda: nn.Mamba2(16, d_state=8, headdim=8),
    "RGLRU": lambda: nn.RGLRU(8, 2),
    "S4": lambda: nn.S4(8, 4),
    "S4D": lambda: nn.S4D(8, 4),
    "S4DKernel": lambda: kernel(nn.S4DKernel),
    "S4Kernel": lambda: kernel(nn.S4Kernel),
    "S5": lambda: nn.S5(4, 8, blocks=2),
    "S6": lambda: nn.S6(8, d_state=4),
    "S7": lambda: nn.S7(4, 3),
    "ShortConv": lambda: nn.ShortConv(8),
    "ToeplitzInverse": lambda: nn.ToeplitzInverse(LINE, LINE),
    "ToeplitzMV": lambda: nn.ToeplitzMV(LINE, LINE),
    "ToeplitzSolve": lambda: nn.ToeplitzSolve(LINE),
}
WIDTH = {
    "GatedDeltaNet": 32,
    "KimiDeltaAttention": 32,
    "HyenaCascade": 24,
    "Mamba": 16,
    "Mamba2": 16,
    "RGLRU": 8,
    "S4": 8,
    "S4D": 8,
    "S6": 8,
    "ShortConv": 8,
    "S4Kernel": 2,
    "S4DKernel": 2,
}


def test_every_layer_has_a_case() -> None:
    assert set(nn.__all__) <= set(LAYERS)


def methods(layer: Any) -> Iterator[tuple[str, str]]:
    """Public methods and their first tensors."""
    for name, method in inspect.getmembers(type(layer), inspect.isfunction):
        if name.startswith("_") or not method.__module__.startswith("gdn_cuda.nn."):
            continue
        for argument, each in inspect.signature(method).parameters.items():
            if str(each.annotation) in ("Tensor", "Tensor | None"):
                yield name, argument
                break


def inputs(wrong: Any, width: int) -> Any:
    return {
        "None": None,
        "a list": [1.0],
        "sparse": torch.ones(2, 3, width).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(3, width)] * 2),
        "too wide": torch.ones(width + 5),
        "complex": torch.ones(2, 3, width, dtype=torch.complex64),
    }[wrong]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrong", ["None", "a list", "sparse", "nested", "too wide"])
@pytest.mark.parametrize("name", LAYERS)
def test_errors_name_the_layer_and_its_argument(name: str, wrong: str) -> None:
    layer, width = LAYERS[name](), WIDTH.get(name, 3)
    given = inputs(wrong, width)
    for method, argument in methods(layer):
        parameters = inspect.signature(getattr(layer, method)).parameters
        optional = parameters[argument].default is None
        others = [
            p for p in parameters.values() if p.default is p.empty and p.name != argument and p.kind is not p.VAR_POSITIONAL
        ]
        rest: dict[str, Any] = {}
        if others:
            if [p.name for p in others] != ["state"]:
                continue
            rest["state"] = layer.new_state(2) if hasattr(layer, "new_state") else layer.default_state(2)
        if given is None and optional:
            continue
        with torch.no_grad(), pytest.raises(ValueError) as caught:
            getattr(layer, method)(**{argument: given}, **rest)
        found = MESSAGE.fullmatch(str(caught.value))
        assert found, (method, str(caught.value))
        assert found[1] == name, (method, str(caught.value))
        assert found[2] in parameters, (method, str(caught.value))


def test_a_subclass_has_the_same_errors() -> None:
    class Own(nn.LRU):
        def forward(self, u: Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().forward(u, *args, **kwargs)

    with pytest.raises(ValueError, match=r"^LRU: u: expected a tensor, got None$"):
        Own(4, 8)(None)


def test_methods_keep_signatures_and_docstrings() -> None:
    assert list(inspect.signature(nn.S6.forward).parameters)[:2] == ["self", "u"]
    assert nn.S4Kernel.forward.__doc__
    assert gdn_cuda.nn.LRU.step is not gdn_cuda.nn.S5.step  # each names its own class
