"""LRU: the Linear Recurrent Unit of Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .simplified import SimplifiedSSM


class LRU(SimplifiedSSM):
    """x_t = λ x_{t−1} + γ B u_t, y_t = Re(C x_t) + D u_t, with λ = exp(−exp(ν_log) + i exp(θ_log)) and γ = exp(γ_log).

    λ begins uniform in the ring r_min ≤ |λ| ≤ r_max, its phase uniform in [0, max_phase), and γ as √(1 − |λ|²), which keeps the
    size of the state whatever |λ| is.

    Shapes:
        u, y: (batch, L, d_model), any real dtype
        state: (batch, d_state), complex
        parameters: nu_log, theta_log, gamma_log (d_state,), B (d_state, d_model, 2), C (d_model, d_state, 2), D (d_model,)

    Parameters:
        d_model: channels of u and y
        d_state: how many complex states there are
        r_min, r_max: between which |λ| begins, 0 ≤ r_min < r_max ≤ 1
        max_phase: below which the phase of λ begins

    Example:
        >>> layer = gdn_cuda.nn.LRU(4, 8)
        >>> u = torch.randn(2, 16, 4)
        >>> y, state = layer(u, return_last_state=True)
        >>> y_next, state = layer.step(torch.randn(2, 4), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([2, 16, 4]), torch.Size([2, 4]), torch.Size([2, 8]))
    """

    def __init__(
        self, d_model: int, d_state: int, r_min: float = 0.0, r_max: float = 1.0, max_phase: float = 2 * math.pi
    ) -> None:
        super().__init__(d_model, d_state)
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"LRU: r_min, r_max: expected 0 ≤ r_min < r_max ≤ 1, got {r_min} and {r_max}")
        if not max_phase > 0:
            raise ValueError(f"LRU: max_phase: expected a positive number, got {max_phase}")
        # In (0, 1]: a radius of 0 or a phase of 0 has no logarithm, nor has the decay of a radius of 1.
        place, angle = (1 - torch.rand(d_state, dtype=torch.float64) for _ in range(2))
        square = (place * (r_max**2 - r_min**2) + r_min**2).clamp(max=1 - 1e-7)
        self.nu_log = nn.Parameter(torch.log(-0.5 * torch.log(square)).float())
        self.theta_log = nn.Parameter(torch.log(max_phase * angle).float())
        self.gamma_log = nn.Parameter(0.5 * torch.log1p(-square).float())
        self.B = nn.Parameter(torch.randn(d_state, d_model, 2) / math.sqrt(2 * d_model))
        self.C = nn.Parameter(torch.randn(d_model, d_state, 2) / math.sqrt(d_state))
        self.D = nn.Parameter(torch.randn(d_model))

    @property
    def doubled(self) -> bool:
        return False

    def system(self) -> dict[str, Any]:
        """A = ln λ, scanned in steps of 1, so that neither a phase nor a decay near one is rounded to λ."""
        A = torch.complex(-torch.exp(self.nu_log), torch.exp(self.theta_log))
        B = torch.exp(self.gamma_log)[:, None] * torch.view_as_complex(self.B)
        delta: Tensor = torch.ones_like(self.nu_log)
        return {"delta": delta, "A": A, "B": B, "C": torch.view_as_complex(self.C), "discretization": "dirac"}
