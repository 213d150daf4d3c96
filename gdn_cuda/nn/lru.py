"""LRU: the Linear Recurrent Unit of Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..operators.dtypes import from_pairs
from .dtypes import at_least_fp32
from .simplified import SimplifiedSSM, normal


class LRU(SimplifiedSSM):
    """x_t = λ x_{t−1} + γ B u_t, y_t = Re(C x_t) + D u_t, with λ = exp(−exp(ν_log) + i exp(θ_log)) and γ = exp(γ_log).

    λ is initialised uniformly in the ring r_min ≤ |λ| ≤ r_max, with phases uniform in [0, max_phase), and γ with √(1 − |λ|²),
    so that the size of the state does not depend on |λ|.

    Shapes:
        u, y: (batch, L, d_model), any real dtype
        state: (batch, d_state), complex64, or complex128 for parameters in fp64
        parameters: nu_log, theta_log, gamma_log (d_state,), B (d_state, d_model, 2), C (d_model, d_state, 2), D (d_model,);
          fp32 but for D where `dtype` is bf16 or fp16

    Parameters:
        d_model: channels of u and y
        d_state: how many complex states there are
        r_min, r_max: the initial range of |λ|, 0 ≤ r_min < r_max ≤ 1
        max_phase: upper bound of the initial phase of λ
        device, dtype: of the parameters; all but D are fp32 at least

    Example:
        >>> layer = gdn_cuda.nn.LRU(4, 8)
        >>> u = torch.randn(2, 16, 4)
        >>> y, state = layer(u, return_last_state=True)
        >>> y_next, state = layer.step(torch.randn(2, 4), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([2, 16, 4]), torch.Size([2, 4]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, d_state)
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"LRU: r_min, r_max: expected 0 ≤ r_min < r_max ≤ 1, got {r_min} and {r_max}")
        if not max_phase > 0:
            raise ValueError(f"LRU: max_phase: expected a positive number, got {max_phase}")
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        sizes = {"nu_log": (d_state,), "theta_log": (d_state,), "gamma_log": (d_state,)}
        self._make(device, dtype, **sizes, B=(d_state, d_model, 2), C=(d_model, d_state, 2), D=(d_model,))

    def drawn(self) -> dict[str, Tensor]:
        # In (0, 1]: a radius of 0 or a phase of 0 has no logarithm, nor has the decay of a radius of 1.
        place, angle = (1 - torch.rand(self.d_state, dtype=torch.float64, device="cpu") for _ in range(2))
        square = (place * (self.r_max**2 - self.r_min**2) + self.r_min**2).clamp(max=1 - 1e-7)
        return {
            "nu_log": torch.log(-0.5 * torch.log(square)),
            "theta_log": torch.log(self.max_phase * angle),
            "gamma_log": 0.5 * torch.log1p(-square),
            "B": normal(self.d_state, self.d_model, 2) / math.sqrt(2 * self.d_model),
            "C": normal(self.d_model, self.d_state, 2) / math.sqrt(self.d_state),
            "D": normal(self.d_model),
        }

    @property
    def doubled(self) -> bool:
        return False

    def system(self) -> dict[str, Any]:
        """A = ln λ with steps of 1, so that phases and decays near one are not rounded as λ would be."""
        nu_log, theta_log, gamma_log = (at_least_fp32(x) for x in (self.nu_log, self.theta_log, self.gamma_log))
        A = torch.complex(-torch.exp(nu_log), torch.exp(theta_log))
        B = torch.exp(gamma_log)[:, None] * from_pairs(at_least_fp32(self.B))
        delta: Tensor = torch.ones_like(nu_log)
        return {"delta": delta, "A": A, "B": B, "C": from_pairs(at_least_fp32(self.C)), "discretization": "dirac"}

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, d_state={self.d_state}"
