"""Gradients of chunked_forward on CPUs, against autograd of the literal recurrence in fp64."""

from __future__ import annotations

import pytest
import torch
from gradient_cases import GradientCase, cotangents, error, gradients_of, inputs, oracle

from gdn_cuda import chunked_forward

CASES = [
    *(GradientCase(lengths=(length,)) for length in (1, 63, 64, 65, 300)),
    GradientCase(lengths=(70, 0, 1, 130), heads=(2, 4), dk=96, dv=192),
    GradientCase(heads=(1, 8), gates=(0.01, 0.01, 100.0, 0.01, 0.01, 0.01, 0.01, 0.01)),
    *(GradientCase(gates=strongest) for strongest in (1e-5, 10.0, 30.0, 100.0)),
    *(
        GradientCase(keys=keys, beta=2.0, gates=1e-3, state=state, last=state)
        for keys in ("repeated", "near")
        for state in (True, False)
    ),
    GradientCase(keys="zero"),
    *(GradientCase(beta=beta) for beta in ("zeros", 1e-4)),
    GradientCase(resets=True),
    GradientCase(last=False, state=False),
    GradientCase(out=False),
    GradientCase(options={"use_qk_l2norm": True, "scale": -0.3}),
    GradientCase(options={"A_log": True, "beta_is_logit": True, "use_qk_l2norm": True}),
    GradientCase(options={"beta_is_logit": True, "allow_negative_eigenvalues": True}),
    GradientCase(options={"gate_is_linear": True}, resets=True),
    GradientCase(lengths=(40, 60), options={"A_log": True}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_recurrence(case: GradientCase, seed: int) -> None:
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        x = inputs(case, seed, dtype)
        grads = cotangents(case, seed, x)
        found, wanted = gradients_of(chunked_forward, x, grads), oracle(x, grads)
        for name, gradient in found.items():
            assert gradient.dtype == x[name].dtype and gradient.shape == x[name].shape
            assert error(gradient, wanted[name]) < bound, (name, dtype)
        if case.resets:
            is_reset = x["gate"] == (0 if case.options.get("gate_is_linear") else -torch.inf)
            assert is_reset.any() and not found["gate"][is_reset].any()
