"""Compares hyena_short and hyena_medium, and their gradients, with their definitions in fp64, on a CPU, in the emulator and on
a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs
from torch import Tensor

LAYOUTS = ("tokens", "channels", "neither")
Inputs = dict[str, Any]


def laid_out(x: Tensor, layout: str) -> Tensor:
    """A copy of x, contiguous along `layout`."""
    if layout == "channels":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "neither":
        B, D, L = x.shape
        spread = torch.full((B, D, 3, L, 2), torch.nan, dtype=x.dtype, device=x.device)[:, :, 1, :, 0]
        return spread.copy_(x)
    return x.contiguous()


def fir_terms(x: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """u, the taps of every channel, and the inputs they multiply (the state, then u); for autograd."""
    u = x["x1"] * x["v"]
    B, D, _ = u.shape
    taps = x["weight"].repeat_interleave(D // max(1, x["weight"].shape[0]), 0)[:, 0]
    before = x["initial_state"] if x.get("initial_state") is not None else u.new_zeros(B, D, taps.shape[1] - 1)
    return u, taps, torch.cat([before, u], 2)


def masked(z: Tensor, x: Inputs) -> Tensor:
    return z if x.get("padding_mask") is None else z * x["padding_mask"][:, None].double()


@dataclass(frozen=True)
class FirChecks:
    operator: Callable[..., Any]
    oracle: Callable[..., Any]  # (y, state) in numpy
    literal: Callable[[Inputs], tuple[Tensor, Tensor]]  # the same in torch
    bounds: dict[torch.dtype, float]  # relative RMS errors
    bound_of_gradient: Callable[[str, torch.dtype, torch.dtype], float]  # by the argument, x1's dtype and the argument's own

    def _inputs(
        self,
        B: int,
        D: int,
        L: int,
        K: int,
        seed: int,
        dtype: torch.dtype,
        layout: str,
        groups: int | None = None,
        weights: torch.dtype = torch.float32,
        device: str = "cpu",
        **options: Any,
    ) -> Inputs:
        drawn = zip(("x1", "x2", "v"), gated_inputs(B, D, L, seed), strict=True)
        x: Inputs = {name: laid_out(y.to(device, dtype), layout) for name, y in drawn}
        x["weight"], x["bias"] = (y.to(device, weights) for y in fir_parameters(groups or D, D, K, seed))
        return x | {name: y.to(device) if isinstance(y, Tensor) else y for name, y in options.items()}

    def forward(
        self,
        B: int,
        D: int,
        L: int,
        K: int,
        seed: int,
        dtype: torch.dtype = torch.bfloat16,
        layout: str = "tokens",
        **options: Any,
    ) -> None:
        x = self._inputs(B, D, L, K, seed, dtype, layout, **options)
        y, state = self.operator(**x, return_state=True)
        expected, after = (torch.from_numpy(each) for each in self.oracle(**x))
        assert y.dtype == dtype and y.device == x["x1"].device
        if y.numel():
            assert y.stride(1 if layout == "channels" else 2) == 1 or L < 2
            assert _is_near(y, expected, self.bounds[dtype])
        torch.testing.assert_close(state.cpu().double(), after, rtol=1e-6, atol=0)

    def gradients(
        self,
        B: int,
        D: int,
        L: int,
        K: int,
        seed: int,
        dtype: torch.dtype = torch.bfloat16,
        layout: str = "tokens",
        **options: Any,
    ) -> None:
        """Gradients of y and the state for every tensor passed."""
        x = self._inputs(B, D, L, K, seed, dtype, layout, **options)
        leaves = {name: y for name, y in x.items() if isinstance(y, Tensor) and name != "padding_mask"}
        ours = {name: y.detach().requires_grad_() for name, y in leaves.items()}
        exact = {name: y.detach().cpu().double().requires_grad_() for name, y in leaves.items()}
        found = self.operator(**x | ours, return_state=True)
        rng = torch.Generator().manual_seed(seed + 4)
        grads = [torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y.dtype) for y in found]
        given = [laid_out(grads[0].to(found[0].device), layout), grads[1].to(found[1].device)]
        gradients = torch.autograd.grad(found, list(ours.values()), given)
        mask = None if x.get("padding_mask") is None else x["padding_mask"].cpu()
        expected = self.literal(x | exact | {"padding_mask": mask})
        wanted = torch.autograd.grad(
            expected, list(exact.values()), [y.double() for y in grads], allow_unused=True, materialize_grads=True
        )
        for name, mine, theirs in zip(ours, gradients, wanted, strict=True):
            assert (mine.shape, mine.dtype, mine.device) == (x[name].shape, x[name].dtype, x[name].device), name
            if mine.numel() and bool(theirs.any()):
                assert _is_near(mine, theirs, self.bound_of_gradient(name, dtype, mine.dtype)), name
            else:
                assert not bool(mine.any()), name


def _is_near(got: Tensor, expected: Tensor, bound: float) -> bool:
    """If there are few values, all may be rounded by half an ulp."""
    return rel_rms(got.cpu(), expected) < (bound if got.numel() > 100 else 1.5 * bound)
