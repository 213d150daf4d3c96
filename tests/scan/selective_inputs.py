"""Inputs of selective scans for tests: random, of every form that the operator takes."""

from __future__ import annotations

import math
from typing import Any

import torch
from oracle import REAL_ONLY
from torch import Tensor

import gdn_cuda

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Invalid cu_seqlens of 271 tokens: sequences overlap, run backwards, or are out of range.
INVALID_OFFSETS = (
    [0, 271, 0, 271, 0],
    [300, 200, 100, 0, -100],
    [-(2**63), 2**63 - 1, 5, -(2**63), 2**62],
    [0, 70, 70, 71, 2**32],
)


class Draw:
    """Normal and uniform values of one seed, drawn in fp64 on the CPU so that they do not depend on dtype and device."""

    def __init__(self, seed: int, device: str = "cpu"):
        self.generator, self.device = torch.Generator().manual_seed(seed), device

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        drawn = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(*shape, generator=self.generator, dtype=drawn).to(self.device, dtype)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32, low: float = 0, high: float = 1) -> Tensor:
        drawn = torch.rand(*shape, generator=self.generator, dtype=torch.float64)
        return (low + (high - low) * drawn).to(self.device, dtype)


def channels_last(x: Tensor) -> Tensor:
    """The same values as the transposed view of a (B, L, D) tensor."""
    return x.mT.contiguous().mT


def selective_inputs(
    seed: int,
    discretization: str = "mamba",
    *,
    batch: int = 2,
    dim: int = 4,
    length: int = 70,
    N: int = 3,
    is_complex: bool = False,
    groups: int | None = None,
    B: str = "varying",
    C: str = "varying",
    in_pairs: bool = False,
    bare: bool = False,
    cu_seqlens: list[int] | None = None,
    dtype: torch.dtype = torch.float32,
    wide_coefficients: bool = False,
    last: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Arguments of selective_scan. `groups`: None for B and C without a dimension of groups. `bare`: required arguments only;
    otherwise with D, z, delta_bias, softplus, an initial state, and delta_a if it is read. `last`: channels are contiguous."""
    draw = Draw(seed, device)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    varying = real if wide_coefficients else dtype
    sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
    A = draw.uniform(dim, N, dtype=real, low=-1.5, high=-0.05)
    if discretization == "rglru":
        A = draw.uniform(dim, N, dtype=real, low=0.1, high=0.95)
    if is_complex:
        assert discretization not in REAL_ONLY
        A = torch.complex(A, 3 * draw.normal(dim, N, dtype=real))

    def rows(low: float, high: float) -> Tensor:
        x = draw.uniform(batch, dim, length, dtype=dtype, low=low, high=high)
        return channels_last(x) if last else x

    def coefficient(form: str) -> Tensor:
        if form == "constant":
            return draw.normal(dim, N, dtype=A.dtype)
        leading = (batch, N) if groups is None else (batch, groups, N)
        if in_pairs:
            return draw.normal(*leading, 2 * length, dtype=varying)
        return draw.normal(*leading, length, dtype=A.dtype if is_complex else varying)

    x: dict[str, Any] = {"u": rows(-1.7, 1.7), "delta": rows(0.01, 1.0), "A": A, "B": coefficient(B), "C": coefficient(C)}
    x["discretization"] = discretization
    if cu_seqlens is not None:
        x["cu_seqlens"] = torch.tensor(cu_seqlens, device=device)
    if bare:
        return x
    x |= {"D": draw.normal(dim, dtype=real), "z": rows(-3, 3), "delta_bias": draw.normal(dim, dtype=real)}
    x |= {"delta": rows(-2, 2), "delta_softplus": True, "initial_state": draw.normal(sequences, dim, N, dtype=A.dtype)}
    if discretization not in REAL_ONLY:
        x["delta_a"] = rows(0.01, 1.0)
    return x


def model_inputs(
    seed: int,
    batch: int,
    dim: int,
    length: int,
    N: int,
    dtype: torch.dtype = torch.bfloat16,
    *,
    last: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Inputs of a Mamba layer at initialisation: A = −1 … −N, and δ log-uniform in 0.001 … 0.1 by bias and softplus."""
    draw = Draw(seed, device)

    def rows(scale: float = 1) -> Tensor:
        x = scale * draw.normal(batch, dim, length)
        return (channels_last(x) if last else x).to(dtype)

    steps = torch.exp(draw.uniform(dim, low=math.log(0.001), high=math.log(0.1)))
    return {
        "u": rows(),
        "delta": rows(0.1),
        "A": -torch.arange(1.0, N + 1, device=device).repeat(dim, 1),
        "B": draw.normal(batch, N, length, dtype=dtype),
        "C": draw.normal(batch, N, length, dtype=dtype),
        "D": torch.ones(dim, device=device),
        "z": rows(),
        "delta_bias": steps + torch.log(-torch.expm1(-steps)),  # the inverse of softplus
        "delta_softplus": True,
    }


def equal_steps(x: dict[str, Any], rate: float) -> dict[str, Any]:
    """With poles of this rate and equal step sizes: a decay near one is rounded in the same direction at every token."""
    return x | {"A": x["A"] - x["A"].real - rate, "delta": torch.full_like(x["delta"], 0.37)}


def identity_scan(u: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """A selective_scan whose out is u. Returns out, and the gradient of u if the gradient of out is u: both are u, bit for bit
    except signs of zeros, infinities and NaN. Most tensors have the layout `last`."""
    batch, dim, length = u.shape
    ones, zeros = (torch.full((dim, 1), x, device=u.device) for x in (1.0, 0.0))
    delta = torch.ones(batch, length, 1, dtype=u.dtype, device=u.device)
    delta = channels_last(delta.expand(batch, length, dim).mT) if last else delta.mT.expand(batch, dim, length)
    leaf = u.detach().requires_grad_()
    out = gdn_cuda.selective_scan(leaf, delta, -ones, zeros, zeros, ones[:, 0], delta_a=delta)
    (gradient,) = torch.autograd.grad(out, leaf, u)
    return out.detach(), gradient


def check_at_the_root(seed: int, device: str = "cpu") -> None:
    """rglru with δ = 0, which keeps the state: the infinite derivative of its root √(1 − Ā²) counts as 0 in gradients."""
    draw = Draw(seed, device)
    u, C, start = draw.normal(2, 3, 5), draw.normal(2, 4, 5), draw.normal(2, 3, 4)
    A, B, grad = draw.uniform(3, 4, low=0.1, high=0.9), torch.ones(3, 4, device=device), draw.normal(2, 3, 5)
    leaves = [torch.zeros_like(u).requires_grad_(), A.requires_grad_(), u.requires_grad_()]
    out = gdn_cuda.selective_scan(leaves[2], leaves[0], leaves[1], B, C, discretization="rglru", initial_state=start)
    found = torch.autograd.grad(out, leaves, grad)
    later = torch.einsum("bnt,bdt->bdnt", C, grad).flip(-1).cumsum(-1).flip(-1)  # the gradient of the state after each token
    expected = torch.einsum("bdnt,bdn->bdt", later, start * A.detach().log())
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-6)
    assert not found[1].any() and not found[2].any()
