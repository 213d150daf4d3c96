"""Calls of hyena_short, and their gradients, that tests compare with its definition in fp64, on a CPU, in the emulator and on a
GPU."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs
from torch import Tensor

from gdn_cuda import hyena_short

BOUND = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 3e-3, torch.float16: 1e-3}
LAYOUTS = ("tokens", "channels", "neither")


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The numbers of x in memory of their own, with neighbours along `layout`."""
    if layout == "channels":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "neither":
        B, D, L = x.shape
        spread = torch.full((B, D, 3, L, 2), torch.nan, dtype=x.dtype, device=x.device)[:, :, 1, :, 0]
        return spread.copy_(x)
    return x.contiguous()


def check_short(
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
    given = {"bias": bias} | {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
    y, state = hyena_short(x1, x2, v, weight, **given, return_state=True)
    expected, after = (torch.from_numpy(x) for x in oracle.short(x1, x2, v, weight, **given))
    assert y.dtype == dtype and y.device == x1.device
    if y.numel():
        assert y.stride(1 if layout == "channels" else 2) == 1 or L < 2
        # Of few numbers, all may be rounded by half an ulp.
        assert rel_rms(y.cpu(), expected) < (BOUND[dtype] if y.numel() > 100 else 1.5 * BOUND[dtype])
    torch.testing.assert_close(state.cpu().double(), after, rtol=1e-6, atol=0)


# Gradients of weights and biases are sums of products of numbers as they were given, rounded once to their dtype.
SUM_BOUND = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}


def literal_short(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(y, state) by sums over taps in fp64, for autograd."""
    u = x["x1"] * x["v"]
    B, D, L = u.shape
    taps = x["weight"].repeat_interleave(D // max(1, x["weight"].shape[0]), 0)[:, 0]
    K = taps.shape[1]
    before = x["initial_state"] if x.get("initial_state") is not None else u.new_zeros(B, D, K - 1)
    seen = torch.cat([before, u], 2)
    z = torch.zeros_like(u)
    for k in range(K):
        z = z + taps[:, k, None] * seen[:, :, k : k + L]
    if x.get("bias") is not None:
        z = z + x["bias"][:, None] * (u if x.get("gated_bias") else 1)
    if x.get("padding_mask") is not None:
        z = z * x["padding_mask"][:, None].double()
    return x["x2"] * z, seen[:, :, L:]


def check_short_gradients(
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
    found = hyena_short(**x | ours, return_state=True)
    rng = torch.Generator().manual_seed(seed + 4)
    grads = [torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y.dtype) for y in found]
    given = [laid_out(grads[0].to(device), layout), grads[1].to(device)]
    of_ours = torch.autograd.grad(found, list(ours.values()), given)
    mask = None if x.get("padding_mask") is None else x["padding_mask"].cpu()
    expected = literal_short(x | exact | {"padding_mask": mask})
    wanted = torch.autograd.grad(
        expected, list(exact.values()), [y.double() for y in grads], allow_unused=True, materialize_grads=True
    )
    for name, mine, theirs in zip(ours, of_ours, wanted, strict=True):
        assert (mine.shape, mine.dtype, mine.device) == (x[name].shape, x[name].dtype, x[name].device), name
        bound = BOUND[mine.dtype] if name in ("x1", "x2", "v") else SUM_BOUND[mine.dtype]
        if mine.numel():
            assert rel_rms(mine.cpu(), theirs) < (bound if mine.numel() > 100 else 1.5 * bound), name


def reach_of_a_nan(layout: str, K: int, at: int, L: int, seed: int, device: str = "cpu") -> None:
    """Which tokens' gradients a NaN reaches: of x1, and of the gradient of y."""
    x1, x2, v = (laid_out(x.to(device, torch.bfloat16), layout) for x in gated_inputs(1, 66, L, seed))
    weight, _ = (x.to(device, torch.float32) for x in fir_parameters(66, 66, K, seed))
    grad = laid_out(torch.ones_like(x2), layout)
    behind, before = range(at, min(at + K, L)), range(max(at - K + 1, 0), at + 1)
    for spoilt, hit in ((x1, {"x1": range(0), "x2": behind, "v": [at]}), (grad, {"x1": before, "x2": [at], "v": before})):
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
