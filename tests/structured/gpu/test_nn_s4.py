"""S4Kernel and S4DKernel on the GPU: the kernels and steps of the same parameters in fp64 on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import rel_rms
from s4_cases import convolution, make_param_config
from torch import nn

from gdn_cuda.nn import S4DKernel, S4Kernel

TENSORS = ("A_real", "A_imag", "B", "C", "P", "inv_dt")
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "s4": (S4Kernel, {}),
    "s4 rank 2": (S4Kernel, {"rank": 2, "H": 4, "repeat": 2}),
    "zoh": (S4DKernel, {"disc": "zoh"}),
    "bilinear": (S4DKernel, {"disc": "bilinear"}),
}
L = 1000


def kernels(name: str, rng: torch.Generator) -> tuple[Any, Any]:
    """The module on the GPU in fp32 and its copy on the CPU in fp64. Slow decays, so that all of L is significant."""
    module, options = KERNELS[name]
    config = make_param_config(rng, dtype=torch.float32, **options)
    config["inv_dt"].sub_(4)
    config |= {name: nn.Parameter(config[name]) for name in TENSORS}
    exact = module(config["H"], L, config["channels"], config)
    return copy.deepcopy(exact).cuda(), exact.double()


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_state_and_gradients(name: str, rng: torch.Generator) -> None:
    ours, exact = kernels(name, rng)
    state = torch.randn(2, ours.H, ours.N, generator=rng, dtype=torch.complex64)
    found = [module(state=x, L=L) for module, x in ((ours, state.cuda()), (exact, state.to(torch.complex128)))]
    for a, b in zip(*found, strict=True):
        assert rel_rms(a, b) < 1e-4
    weights = torch.randn(found[1][0].shape, generator=rng, dtype=torch.float64)
    for (k, _), on in zip(found, ("cuda", "cpu"), strict=True):
        (k * weights.to(on, k.dtype)).sum().backward()
    for (name, a), (_, b) in zip(ours.named_parameters(), exact.named_parameters(), strict=True):
        if b.grad is not None:
            assert rel_rms(a.grad, b.grad) < 1e-3, name


@pytest.mark.parametrize("name", KERNELS)
def test_steps_are_the_convolution(name: str, rng: torch.Generator) -> None:
    ours, _ = kernels(name, rng)
    u = torch.randn(2, ours.H, 60, generator=rng).cuda()
    with torch.no_grad():
        expected = convolution(u, ours(L=60)[0])
        for mode in ("dense", "linear", "diagonal") if isinstance(ours, S4Kernel) else (None,):
            ours._setup_step(*([] if mode is None else [mode]))
            state = ours.default_state(2)
            for t in range(60):
                y, state = ours.step(u[..., t], state)
                assert rel_rms(y, expected[..., t]) < 1e-2
            assert rel_rms(ours.forward_state(u, ours.default_state(2)), state) < 1e-3


@pytest.mark.parametrize("name", KERNELS)
def test_graphs(name: str, rng: torch.Generator) -> None:
    ours, _ = kernels(name, rng)
    with torch.no_grad():
        expected, _ = ours(L=L)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            k, _ = ours(L=L)
        k.zero_()
        graph.replay()
    assert rel_rms(k, expected) < 1e-6
