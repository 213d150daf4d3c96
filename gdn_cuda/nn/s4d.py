"""S4D: the convolution kernel of a diagonal system, and the same system step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..structured import log_vandermonde, log_vandermonde_transpose
from ..structured import reference_s4d as s4d
from ..structured.reference_common import product_error
from .s4_base import SSMKernel, rows_of


class S4DKernel(SSMKernel):
    """K_l = 2 Re Σ C B̄ Ā^l, discretized by `param_config["disc"]`, "zoh" or "bilinear".

    param_config: A_real, A_imag (n_ssm,N), B (1,n_ssm,N,2), C (channels,H,N,2), inv_dt (H,1) or (H,N); numbers N, H, channels,
    rank, repeat = H / n_ssm; real_, imag_ and dt_transform among none, exp, relu, sigmoid, softplus; dt_fast (sinh), is_real,
    deterministic, verbose. A = −tr(A_real) − i tr(A_imag), dt = tr(inv_dt).
    """

    def __init__(self, d_model: int, l_max: int | None, channels: int, param_config: Mapping[str, Any]):
        super().__init__(d_model, l_max, channels, param_config)
        self.disc = param_config.get("disc", "zoh")
        if self.disc not in s4d.DISCRETIZATIONS:
            raise ValueError(f"S4DKernel: disc: expected one of {s4d.DISCRETIZATIONS}, got {self.disc!r}")

    def forward(self, L: int | None = None, state: Tensor | None = None, rate: float = 1.0) -> tuple[Tensor, Tensor | None]:
        """(K (channels,H,L), K_state (…,channels,H,L) or None for a state (…,H,N)); L is l_max / rate by default."""
        self._check_rate(rate)
        if L is None:
            if self.l_max is None:
                raise ValueError("S4DKernel: L: expected a length, as l_max is None, got None")
            L = round(self.l_max / rate)
        self._check_length(L)
        system = self._system(rate)
        discrete = s4d.discretized(system, self.disc)
        start = discrete.B[None]
        if state is not None:
            self._check_state(state, (self.N,))
            start = torch.cat([rows_of(state) * discrete.A, start])
        residues = (start[:, None] * system.C).to(self._complex)
        k = log_vandermonde(residues, discrete.log_A.to(self._complex), L)
        return k[-1], None if state is None else k[:-1].reshape(*state.shape[:-2], *k.shape[1:])

    # ---- Stepping, which treats the parameters as constants

    @torch.no_grad()
    def _setup_step(self) -> None:
        """Makes dA, dB (H,N) and dC (channels,H,N) for `step`, which does so itself at first and when a parameter changed."""
        system = self._system()
        discrete = s4d.discretized(system, self.disc)
        self._keep(discrete.A, discrete.B, system.C)

    def default_state(self, *batch: int) -> Tensor:
        """Zeros, (…,H,N)."""
        return torch.zeros(*batch, self.H, self.N, dtype=self._complex, device=self.C.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(y (…,channels,H), next state) from u (…,H) and state (…,H,N)."""
        self._check_input(u, sequence=False)
        self._check_state(state, (self.N,), u.shape[:-1])
        if not self._is_current():
            self._setup_step()
        u, state = u.to(self._real), state.to(self._complex)
        state = self.dA * state + self.dB * u[..., None]
        return 2 * torch.einsum("chn,...hn->...ch", self.dC, state).real, state

    def forward_state(self, u: Tensor, state: Tensor) -> Tensor:
        """The state behind u (…,H,L): Ā^L s + Σ_l Ā^{L−1−l} B̄ u_l. Differentiable in everything."""
        self._check_input(u, sequence=True)
        self._check_state(state, (self.N,), u.shape[:-2])
        L = u.shape[-1]
        if L == 0:
            return self._unmoved(u, state)
        discrete = s4d.discretized(self._system(), self.disc)
        x = discrete.log_A
        lost = torch.complex(*(product_error(part, torch.tensor(float(L)).to(part)) for part in (x.real, x.imag)))
        whole = ((x * L).exp() * lost.exp()).to(self._complex)
        added = log_vandermonde_transpose(u.flip(-1).to(self._real), discrete.B.to(self._complex), x.to(self._complex), L)
        return (whole * state + added).to(self._complex)
