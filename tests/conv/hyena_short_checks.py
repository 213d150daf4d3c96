"""hyena_short's definition and bounds for hyena_fir_checks.py, and the reach of a NaN in its gradients."""

from __future__ import annotations

import hyena_oracle as oracle
import torch
from hyena_cases import fir_parameters, gated_inputs
from hyena_fir_checks import FirChecks, Inputs, fir_terms, laid_out, masked
from torch import Tensor

from gdn_cuda import hyena_short

BOUND = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 3e-3, torch.float16: 1e-3}
# Gradients of weights and biases are sums of products of the unrounded inputs, rounded once to their dtype.
SUM_BOUND = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}


def literal_short(x: Inputs) -> tuple[Tensor, Tensor]:
    """(y, state) by sums over taps in fp64, for autograd."""
    u, taps, seen = fir_terms(x)
    L = u.shape[2]
    z = torch.zeros_like(u)
    for k in range(taps.shape[1]):
        z = z + taps[:, k, None] * seen[:, :, k : k + L]
    if x.get("bias") is not None:
        z = z + x["bias"][:, None] * (u if x.get("gated_bias") else 1)
    return x["x2"] * masked(z, x), seen[:, :, L:]


def _bound_of_gradient(name: str, io: torch.dtype, own: torch.dtype) -> float:
    return BOUND[own] if name in ("x1", "x2", "v") else SUM_BOUND[own]


_checks = FirChecks(hyena_short, oracle.short, literal_short, BOUND, _bound_of_gradient)
check_short, check_short_gradients = _checks.forward, _checks.gradients


def reach_of_a_nan(layout: str, K: int, at: int, L: int, seed: int, device: str = "cpu") -> None:
    """Checks which tokens' gradients a NaN reaches, in x1 and in the gradient of y."""
    x1, x2, v = (laid_out(x.to(device, torch.bfloat16), layout) for x in gated_inputs(1, 66, L, seed))
    weight, _ = (x.to(device, torch.float32) for x in fir_parameters(66, 66, K, seed))
    grad = laid_out(torch.ones_like(x2), layout)
    after, before = range(at, min(at + K, L)), range(max(at - K + 1, 0), at + 1)
    for spoilt, hit in ((x1, {"x1": range(0), "x2": after, "v": [at]}), (grad, {"x1": before, "x2": [at], "v": before})):
        kept = spoilt[:, :, at].clone()
        spoilt[:, :, at] = torch.nan
        leaves = {"x1": x1.clone(), "x2": x2, "v": v}
        ours = {name: x.detach().requires_grad_() for name, x in leaves.items()}
        found = torch.autograd.grad(hyena_short(**ours, weight=weight), list(ours.values()), grad)
        for name, mine in zip(ours, found, strict=True):
            is_hit = torch.zeros(L, dtype=torch.bool)
            is_hit[list(hit[name])] = True
            assert torch.equal(mine.isnan().all(1)[0].cpu(), is_hit), name
            assert bool(mine[:, :, ~is_hit].isfinite().all()), name
        spoilt[:, :, at] = kept
