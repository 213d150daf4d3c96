"""gdn_cuda.compat.mamba_ssm.mamba_inner_fn: the block by its definition in fp64, and its gradients."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
import torch.nn.functional as F
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.compat import mamba_ssm

BATCH, DIM, N, L, RANK = 2, 6, 4, 9, 3


def inputs(rng: torch.Generator, is_complex: bool, variable: tuple[bool, bool], more: bool) -> dict[str, Any]:
    def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=dtype)

    scan_dtype = torch.complex128 if is_complex else torch.float64
    states = 2 * N if is_complex else N
    A = draw(DIM, N, dtype=scan_dtype)
    x: dict[str, Any] = {
        "xz": draw(BATCH, 2 * DIM, L),
        "conv1d_weight": draw(DIM, 1, 4),
        "conv1d_bias": draw(DIM) if more else None,
        "x_proj_weight": 0.3 * draw(RANK + sum(variable) * states, DIM),
        "delta_proj_weight": draw(DIM, RANK),
        "out_proj_weight": draw(5, DIM),
        "out_proj_bias": draw(5) if more else None,
        "A": torch.complex(-A.real.abs() - 0.1, A.imag) if is_complex else -A.abs() - 0.1,
        "B": None if variable[0] else draw(DIM, N, dtype=scan_dtype),
        "C": None if variable[1] else draw(DIM, N, dtype=scan_dtype),
    }
    if more:
        x |= {"D": draw(DIM), "delta_bias": draw(DIM), "B_proj_bias": draw(states), "C_proj_bias": draw(states)}
        if not is_complex and all(variable):
            x |= {"b_rms_weight": draw(N), "c_rms_weight": draw(N), "dt_rms_weight": draw(DIM), "b_c_dt_rms_eps": 1e-3}
    return x


def normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def definition(x: dict[str, Any]) -> Tensor:
    first, gate = x["xz"][:, :DIM], x["xz"][:, DIM:]
    seen = F.pad(first, (3, 0))
    u = torch.stack([(x["conv1d_weight"][:, 0] * seen[:, :, t : t + 4]).sum(-1) for t in range(L)], -1)
    u = F.silu(u if x["conv1d_bias"] is None else u + x["conv1d_bias"][:, None])
    projected, eps = u.mT @ x["x_proj_weight"].T, x.get("b_c_dt_rms_eps", 1e-6)
    delta = normed(projected[..., :RANK] @ x["delta_proj_weight"].T, x.get("dt_rms_weight"), eps).mT
    states = N * (2 if x["A"].is_complex() else 1)

    def coefficients(name: str, first: int) -> Tensor:
        if x[name] is not None:
            return x[name]
        rows = projected[..., first : first + states]
        rows = rows if x.get(f"{name}_proj_bias") is None else rows + x[f"{name}_proj_bias"]
        rows = normed(rows, x.get(f"{name.lower()}_rms_weight"), eps)
        if not x["A"].is_complex():
            return rows.mT
        return torch.view_as_real(torch.complex(rows[..., ::2], rows[..., 1::2]).mT).flatten(2)

    B, C = coefficients("B", RANK), coefficients("C", projected.shape[-1] - states)
    delta = delta if x.get("delta_bias") is None else delta + x["delta_bias"][:, None]
    y, _ = oracle.selective_scan(u, F.softplus(delta), x["A"], B, C, x.get("D"))
    out = (y * F.silu(gate)).mT @ x["out_proj_weight"].T
    return out if x["out_proj_bias"] is None else out + x["out_proj_bias"]


def to_fp32(x: dict[str, Any], rows: bool) -> dict[str, Any]:
    def narrow(y: Any) -> Any:
        if not isinstance(y, Tensor):
            return y
        return y.detach().to(torch.complex64 if y.is_complex() else torch.float32).requires_grad_()

    narrowed = {name: narrow(y) for name, y in x.items()}
    if rows:
        narrowed["xz"] = x["xz"].float().mT.contiguous().mT.requires_grad_()
    return narrowed


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("variable", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("is_complex", [False, True])
def test_the_block_and_its_gradients(
    is_complex: bool, variable: tuple[bool, bool], more: bool, rows: bool, rng: torch.Generator
) -> None:
    wide = inputs(rng, is_complex, variable, more)
    given = to_fp32(wide, rows)
    for y in wide.values():
        if isinstance(y, Tensor):
            y.requires_grad_()
    expected, out = definition(wide), mamba_ssm.mamba_inner_fn(**given)
    assert rel_rms(out, expected) < 1e-5
    gradient = torch.randn(expected.shape, generator=rng, dtype=torch.float64)
    expected.backward(gradient)
    out.backward(gradient.float())
    for name, y in wide.items():
        if isinstance(y, Tensor) and y.grad is not None:
            assert rel_rms(given[name].grad, y.grad) < 1e-4, name
    if "dt_rms_weight" not in wide:
        assert torch.equal(mamba_ssm.mamba_inner_ref(**given), out)


def test_bf16_activations_beside_fp32_weights(rng: torch.Generator) -> None:
    """As models cast them: projections in bf16, parameters of the scan and of the convolution in fp32."""
    wide = inputs(rng, False, (True, True), True)
    projections = ("xz", "x_proj_weight", "delta_proj_weight", "out_proj_weight")
    given = {
        name: y.to(torch.bfloat16 if name in projections else torch.float32) if isinstance(y, Tensor) else y
        for name, y in wide.items()
    }
    out = mamba_ssm.mamba_inner_fn(**given)
    assert out.dtype == torch.bfloat16 and rel_rms(out, definition(wide)) < 3e-2
