"""Calls of hyena_medium and their gradients, which tests compare with its definition in fp64: on CPUs, emulated, on GPUs."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs
from hyena_short_checks import laid_out
from torch import Tensor

from gdn_cuda import hyena_medium

BOUND = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}


def check_medium(
    B: int,
    D: int,
    L: int,
    K: int,
    seed: int,
    dtype: torch.dtype = torch.bfloat16,
    layout: str = "tokens",
    groups: int | None = None,
    weights: torch.dtype = torch.float32,
    device: str = "cpu",
    **options: Any,
) -> None:
    x1, x2, v = (laid_out(x.to(device, dtype), layout) for x in gated_inputs(B, D, L, seed))
    weight, bias = (x.to(device, weights) for x in fir_parameters(groups or D, D, K, seed))
    given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
    y, state = hyena_medium(x1, x2, v, weight, bias, **given, return_state=True)
    expected, after = (torch.from_numpy(x) for x in oracle.medium(x1, x2, v, weight, bias, **given))
    assert y.dtype == dtype and y.device == x1.device
    if y.numel():
        assert y.stride(1 if layout == "channels" else 2) == 1 or L < 2
        # Of few numbers, all may be rounded by half an ulp.
        assert rel_rms(y.cpu(), expected) < (BOUND[dtype] if y.numel() > 100 else 1.5 * BOUND[dtype])
    torch.testing.assert_close(state.cpu().double(), after, rtol=1e-6, atol=0)


# Of weights and biases: sums of products of numbers of 24 bits where tensors are fp32, and 16 otherwise.
SUM_BOUND = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-4, torch.float16: 2e-4}


def literal_medium(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(y, state) by sums over taps in fp64, for autograd."""
    u = x["x1"] * x["v"]
    B, D, L = u.shape
    taps = x["weight"].repeat_interleave(D // max(1, x["weight"].shape[0]), 0)[:, 0]
    K = taps.shape[1]
    before = x["initial_state"] if x.get("initial_state") is not None else u.new_zeros(B, D, K - 1)
    seen = torch.cat([before, u], 2)
    z = x["bias"][:, None] * u
    for j in range(min(K, seen.shape[2])):
        z = z + taps[:, j, None] * seen[:, :, K - 1 - j : K - 1 - j + L]
    if x.get("padding_mask") is not None:
        z = z * x["padding_mask"][:, None].double()
    return x["x2"] * z, seen[:, :, L:]


def check_medium_gradients(
    B: int,
    D: int,
    L: int,
    K: int,
    seed: int,
    dtype: torch.dtype = torch.bfloat16,
    layout: str = "tokens",
    groups: int | None = None,
    weights: torch.dtype = torch.float32,
    device: str = "cpu",
    **options: Any,
) -> None:
    """Of y and the state, by every tensor that is given."""
    x: dict[str, Any] = {
        name: laid_out(y.to(device, dtype), layout)
        for name, y in zip(("x1", "x2", "v"), gated_inputs(B, D, L, seed), strict=True)
    }
    x["weight"], x["bias"] = (y.to(device, weights) for y in fir_parameters(groups or D, D, K, seed))
    x |= {name: y.to(device) if isinstance(y, Tensor) else y for name, y in options.items()}
    leaves = {name: y for name, y in x.items() if isinstance(y, Tensor) and name != "padding_mask"}
    ours = {name: y.detach().requires_grad_() for name, y in leaves.items()}
    exact = {name: y.detach().cpu().double().requires_grad_() for name, y in leaves.items()}
    found = hyena_medium(**x | ours, return_state=True)
    rng = torch.Generator().manual_seed(seed + 4)
    grads = [torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y.dtype) for y in found]
    given = [laid_out(grads[0].to(device), layout), grads[1].to(device)]
    of_ours = torch.autograd.grad(found, list(ours.values()), given)
    mask = None if x.get("padding_mask") is None else x["padding_mask"].cpu()
    expected = literal_medium(x | exact | {"padding_mask": mask})
    wanted = torch.autograd.grad(
        expected, list(exact.values()), [y.double() for y in grads], allow_unused=True, materialize_grads=True
    )
    for name, mine, theirs in zip(ours, of_ours, wanted, strict=True):
        assert (mine.shape, mine.dtype, mine.device) == (x[name].shape, x[name].dtype, x[name].device), name
        is_sum = name in ("weight", "bias")
        bound = max(SUM_BOUND[dtype], BOUND[mine.dtype]) if is_sum else BOUND[dtype]
        if mine.numel() and bool(theirs.any()):
            assert rel_rms(mine.cpu(), theirs) < (bound if mine.numel() > 100 else 1.5 * bound), name
        else:
            assert not bool(mine.any()), name
