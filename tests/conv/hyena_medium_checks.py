"""hyena_medium's definition and bounds for hyena_fir_checks.py."""

from __future__ import annotations

import hyena_oracle as oracle
import torch
from hyena_fir_checks import FirChecks, Inputs, fir_terms, masked
from torch import Tensor

from gdn_cuda import hyena_medium

BOUND = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}
# Gradients of weights and biases are sums of products of values of 24 bits for fp32 tensors, and 16 for others.
SUM_BOUND = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-4, torch.float16: 2e-4}


def literal_medium(x: Inputs) -> tuple[Tensor, Tensor]:
    """(y, state) by sums over taps in fp64, for autograd."""
    u, taps, seen = fir_terms(x)
    K, L = taps.shape[1], u.shape[2]
    z = x["bias"][:, None] * u
    for j in range(min(K, seen.shape[2])):
        z = z + taps[:, j, None] * seen[:, :, K - 1 - j : K - 1 - j + L]
    return x["x2"] * masked(z, x), seen[:, :, L:]


def _bound_of_gradient(name: str, io: torch.dtype, own: torch.dtype) -> float:
    return max(SUM_BOUND[io], BOUND[own]) if name in ("weight", "bias") else BOUND[io]


_checks = FirChecks(hyena_medium, oracle.medium, literal_medium, BOUND, _bound_of_gradient)
check_medium, check_medium_gradients = _checks.forward, _checks.gradients
