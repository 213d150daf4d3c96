"""Compares gradients of hyena_long with the adjoint of its recurrence in fp64, on a CPU, in the emulator and on a GPU."""

from __future__ import annotations

import hyena_oracle as oracle
import torch
from helpers import rel_rms
from hyena_cases import draws, gated_inputs, modal_parameters
from hyena_fir_checks import laid_out
from hyena_long_checks import BOUND
from torch import Tensor

from gdn_cuda import hyena_long

NAMES = ("x1", "x2", "v", "residues", "log_poles", "bias")
# Errors of parameters' gradients relative to the root of the sum of squares of their terms, which are products of three
# factors of 16 or 24 bits, summed in fp32.
SUMS = {torch.float64: 1e-10, torch.float32: 2e-6, torch.bfloat16: 3 * 2.0**-17, torch.float16: 3 * 2.0**-17}


def check_long_gradients(
    B: int,
    D: int,
    L: int,
    S: int,
    seed: int,
    dtype: torch.dtype = torch.bfloat16,
    layout: str = "tokens",
    groups: int | None = None,
    device: str = "cpu",
    log_poles: Tensor | None = None,
    initial_state: Tensor | None = None,
    grad_layout: str | None = None,
    with_state: bool = True,
) -> dict[str, Tensor]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tokens = [laid_out(x.to(device, dtype), layout) for x in gated_inputs(B, D, L, seed)]
    residues, poles, bias = (x.to(device, wide) for x in modal_parameters(groups or D, D, S, seed))
    poles = poles if log_poles is None else log_poles.to(device, wide)
    draw = draws(seed + 7)
    grad, grad_state = laid_out(draw(B, D, L).to(device, dtype), grad_layout or layout), draw(B, D, S).to(device, wide)
    leaves = dict(zip(NAMES, (*tokens, residues, poles, bias), strict=True))
    if initial_state is not None:
        leaves["initial_state"] = initial_state.to(device)
    leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
    y, state = hyena_long(**leaves, return_state=True)
    results, grads = ((y, state), (grad, grad_state)) if with_state else ((y,), (grad,))
    found = dict(zip(leaves, torch.autograd.grad(results, list(leaves.values()), grads), strict=True))
    expected, scales = oracle.long_gradients(grad, grad_state if with_state else 0 * grad_state, **leaves)
    for name, gradient in found.items():
        given, exact = leaves[name], torch.from_numpy(expected[name])
        assert gradient.dtype == given.dtype and gradient.shape == given.shape, name
        if gradient.numel() == 0:
            continue
        if name in scales:
            error = (gradient.cpu().double().reshape(exact.shape) - exact).square().sum(0).sqrt()
            scale = torch.from_numpy(scales[name]).square().sum(0).sqrt()
            assert (error <= SUMS[dtype] * scale).all(), f"{name}: {(error / scale).max().item():.1e}"
        else:
            bound = BOUND[dtype] if name != "initial_state" else max(BOUND[given.dtype], SUMS[dtype])
            assert rel_rms(gradient.cpu(), exact) < (bound if gradient.numel() > 100 else 1.5 * bound), name
    for name in ("x1", "x2", "v"):
        assert found[name].numel() == 0 or L < 2 or found[name].stride(1 if layout == "channels" else 2) == 1
    return found
