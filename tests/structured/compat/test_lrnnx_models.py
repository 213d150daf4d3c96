"""lrnnx's own S4 and S4D with a changed import: outputs, states, gradients and checkpoints equal the original's.

Needs `pip install --no-deps lrnnx` and einops; without a CUDA toolkit lrnnx installs without extensions and uses its fallbacks.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

MODELS = {"s4": "S4", "s4d": "S4D"}
H, N, L = 8, 16, 50
KERNELS = "from lrnnx.ops.s4_kernel_interface import kernel_registry"
FUNCTIONS = "from lrnnx.ops.s4_utils import ("
CONVOLUTION = "from lrnnx.core.convolution import FFTConvS4"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    for name in ("lrnnx", "einops"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    found = importlib.util.find_spec("lrnnx")
    assert found is not None and found.submodule_search_locations
    folder = Path(next(iter(found.submodule_search_locations)))
    # Importing these packages imports every extension of lrnnx.
    for name in ("lrnnx.ops", "lrnnx.models", "lrnnx.models.lti"):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] in ("lrnnx", "lrnnx_changed")]:
        del sys.modules[name]


def changed(folder: Path, path: str, name: str, old: str, new: str) -> ModuleType:
    """A module of lrnnx with one import changed."""
    text = (folder / path).read_text()
    assert text.count(old) == 1
    module = ModuleType(f"lrnnx_changed.{name}")
    sys.modules[module.__name__] = module
    exec(compile(text.replace(old, new), str(folder / path), "exec"), module.__dict__)
    return module


def model_class(folder: Path, model_name: str, kernels: str | None) -> Any:
    """The peer's class; with `kernels`, an import line, with the kernels that it imports."""
    if kernels is None:
        return getattr(importlib.import_module(f"lrnnx.models.lti.{model_name}"), MODELS[model_name])
    changed(folder, "core/convolution.py", f"convolution_{model_name}", KERNELS, kernels)
    replacement = f"from lrnnx_changed.convolution_{model_name} import FFTConvS4"
    return getattr(changed(folder, f"models/lti/{model_name}.py", model_name, CONVOLUTION, replacement), MODELS[model_name])


def pair(folder: Path, model_name: str, kernels: str, **options: Any) -> tuple[Any, Any]:
    """The original and the changed model with the same parameters, in fp64: the fallbacks lose digits in fp32."""
    arguments = {"d_model": H, "d_state": N, "l_max": L, "transposed": False, "verbose": False} | options
    torch.manual_seed(0)
    peer = model_class(folder, model_name, None)(**arguments).double()
    with torch.no_grad():
        for parameter in peer.parameters():  # initially all systems are equal
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours = model_class(folder, model_name, kernels)(**arguments).double()
    ours.load_state_dict(peer.state_dict())
    return peer, ours


OURS = "from gdn_cuda.compat.lrnnx import kernel_registry"
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "s4": ("s4", {}),
    "s4 rank 2": ("s4", {"rank": 2, "channels": 2, "dt_transform": "softplus", "dt_tie": False}),
    "s4 shared": ("s4", {"n_ssm": 2, "dt_fast": True}),
    "s4d zoh": ("s4d", {"disc": "zoh"}),
    "s4d bilinear": ("s4d", {"disc": "bilinear", "channels": 2}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_models_give_the_original_results(folder: Path, name: str, rng: torch.Generator) -> None:
    model_name, options = OPTIONS[name]
    peer, ours = pair(folder, model_name, OURS, **options)
    x = torch.randn(2, L, H, generator=rng, dtype=torch.float64)
    outputs, gradients = [], []
    for model in (peer, ours):
        leaf = x.clone().requires_grad_()
        y, _ = model(leaf)
        y.square().sum().backward()
        outputs.append(y.detach())
        gradients.append([leaf.grad, *(p.grad for p in model.parameters())])
    assert rel_rms(outputs[1], outputs[0]) < 1e-6  # of the peer's ω, powers of a complex64 number
    for a, b in zip(gradients[1], gradients[0], strict=True):
        assert rel_rms(a, b) < 1e-5

    with torch.no_grad():
        cache = ours.allocate_inference_cache(2)
        for t in range(L):
            y, cache = ours.step(x[:, t], cache)
            assert rel_rms(y, outputs[1][:, t]) < 1e-6
    fresh = pair(folder, model_name, OURS, **options)[1]
    fresh.load_state_dict(ours.state_dict())
    assert rel_rms(fresh(x)[0], outputs[1]) < 1e-12
    peer.load_state_dict(ours.state_dict())  # same keys, and C̃ has the same meaning
    assert rel_rms(peer(x)[0], outputs[1]) < 1e-6


@pytest.mark.parametrize("name", OPTIONS)
def test_states_equal_the_original_ones(folder: Path, name: str, rng: torch.Generator) -> None:
    model_name, options = OPTIONS[name]
    models = pair(
        folder, model_name, OURS, **{key: value for key, value in options.items() if key != "dt_tie"}
    )  # which the original does not support
    x = torch.randn(2, L, H, generator=rng, dtype=torch.float64)
    state = torch.randn(2, H, N // 2, generator=rng, dtype=torch.complex128)
    with torch.no_grad():
        (y, last), (theirs, their_last) = (model(x, state=state) for model in reversed(models))
    assert rel_rms(y, theirs) < 1e-6
    assert rel_rms(last, their_last) < 1e-10


def test_a_real_system(folder: Path, rng: torch.Generator) -> None:
    peer, ours = pair(folder, "s4d", OURS, is_real=True, init="diag-real")
    x = torch.randn(2, L, H, generator=rng, dtype=torch.float64)
    assert rel_rms(ours(x)[0], peer(x)[0]) < 1e-10


def test_the_original_kernels_run_on_our_functions(folder: Path, rng: torch.Generator) -> None:
    """s4_kernel_interface with its three kernels from here."""
    ours = "from gdn_cuda.compat.lrnnx import get_cauchy_kernel, get_vandermonde_kernel, get_vandermonde_transpose_kernel\n"
    text = (folder / "ops" / "s4_kernel_interface.py").read_text()
    for name in ("get_cauchy_kernel", "get_vandermonde_kernel", "get_vandermonde_transpose_kernel"):
        assert text.count(f"    {name},\n") == 1
        text = text.replace(f"    {name},\n", "")
    module = ModuleType("lrnnx_changed.s4_kernel_interface")
    sys.modules[module.__name__] = module
    exec(compile(ours + text, "s4_kernel_interface.py", "exec"), module.__dict__)
    x = torch.randn(2, L, H, generator=rng, dtype=torch.float64)
    for model_name in MODELS:
        peer, changed_model = pair(folder, model_name, "from lrnnx_changed.s4_kernel_interface import kernel_registry")
        assert rel_rms(changed_model(x)[0], peer(x)[0]) < 1e-11


def test_only_the_import_differs_from_the_original_models(folder: Path) -> None:
    """Otherwise the tests above would compare a model with itself."""
    peer, ours = pair(folder, "s4", OURS)
    assert type(peer.layer.kernel).__module__ == "lrnnx.ops.s4_kernel_interface"
    assert type(ours.layer.kernel).__module__ == "gdn_cuda.nn.s4"
    assert isinstance(ours.layer.kernel.C, Tensor) and ours.layer.kernel.C is ours.C
