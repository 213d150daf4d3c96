"""The backward of chunked_forward in the emulator, as GPUs before Hopper run it, against the recurrence in fp64."""

from __future__ import annotations

import pytest
import torch
from emulated import emulated
from gradient_cases import GradientCase, cotangents, error, gradients_of, inputs, oracle

from gdn_cuda import chunked_forward

A100 = {"capability": 80, "multiprocessors": 108, "shared_bytes": 163 << 10}
BOUNDS = {"query": 5e-3, "key": 5e-3, "value": 5e-3, "state": 5e-3, "beta": 8e-3, "gate": 8e-3, "A_log": 8e-3, "dt_bias": 8e-3}
KERNELS = {"gdn/backward_mma_states", "gdn/backward_mma_gradients", "gdn/chunk_gates_backward"}

DIMENSIONS = [(40, 64), (64, 72), (96, 192), (128, 128), (192, 8), (256, 72)]
CASES = [
    GradientCase(lengths=(70, 0, 1, 130), heads=(2, 4)),
    GradientCase(heads=(1, 4), gates=(0.01, 0.01, 100.0, 0.01)),
    GradientCase(gates=1e-5),
    GradientCase(keys="repeated", beta=2.0, gates=1e-3),
    GradientCase(keys="near", beta=2.0, gates=1e-3, state=False, last=False),
    GradientCase(keys="zero"),
    GradientCase(beta="zeros"),
    GradientCase(resets=True, options={"use_qk_l2norm": True}),
    GradientCase(lengths=(65, 65), out=False),
    GradientCase(options={"A_log": True, "beta_is_logit": True, "allow_negative_eigenvalues": True, "use_qk_l2norm": True}),
    GradientCase(options={"gate_is_linear": True}, resets=True),
]


def check(case: GradientCase, seed: int, dtype: torch.dtype, factor: float = 1.0) -> None:
    x = inputs(case, seed, dtype)
    grads = cotangents(case, seed, x)
    with emulated(**A100) as launched:
        found = gradients_of(chunked_forward, x, grads)
    assert {name.partition("{")[0] for name in launched()} >= KERNELS
    wanted = oracle(x, grads)
    for name, gradient in found.items():
        bound = factor * (15e-3 if name in ("gate", "A_log", "dt_bias") and case.keys != "random" else BOUNDS[name])
        by_head = {"value": -2, "beta": -1, "gate": -1, "state": 1}.get(name)
        assert error(gradient, wanted[name], by_head) < bound, name
    if case.resets:
        is_reset = x["gate"] == (0 if case.options.get("gate_is_linear") else -torch.inf)
        assert is_reset.any() and not found["gate"][is_reset].any()
    if case.beta == "zeros":
        assert not found["value"][x["beta"] == 0].any()


@pytest.mark.parametrize("dk, dv", DIMENSIONS)
@pytest.mark.parametrize("dtype, factor", [(torch.bfloat16, 1.0), (torch.float16, 0.25)])
def test_head_dimensions(dk: int, dv: int, dtype: torch.dtype, factor: float, seed: int) -> None:
    check(GradientCase(lengths=(130,), heads=(1, 2), dk=dk, dv=dv), seed, dtype, factor)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_recurrence(case: GradientCase, seed: int) -> None:
    check(case, seed, torch.bfloat16)


def test_heads_in_groups_that_fit_the_workspace(seed: int) -> None:
    """The same bits as all heads at once."""
    x = inputs(GradientCase(lengths=(70,), heads=(3, 6)), seed)
    grads = cotangents(GradientCase(lengths=(70,), heads=(3, 6)), seed, x)
    with emulated(**A100):
        at_once = gradients_of(chunked_forward, x, grads)
        with pytest.raises(ValueError, match=r"chunked_forward: workspace: expected at least \d+ bytes") as refused:
            gradients_of(chunked_forward, x | {"workspace": 1000}, grads)
        of_one = int(str(refused.value).split("at least ")[1].split()[0])
        in_groups = gradients_of(chunked_forward, x | {"workspace": 2 * of_one}, grads)
    assert all(torch.equal(at_once[name], in_groups[name]) for name in at_once)
