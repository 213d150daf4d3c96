"""S4D: the convolution kernel of a diagonal system, and steps of the same system."""

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
    """S4D's convolution kernel K_l = 2 Re Σ C B̄ Ā^l, discretized by `param_config["disc"]`, "zoh" or "bilinear".

    A = −tr(A_real) − i tr(A_imag), dt = tr(inv_dt).

    Shapes:
        param_config: A_real, A_imag (n_ssm, N), B (1, n_ssm, N, 2), C (channels, H, N, 2), inv_dt (H, 1) or (H, N); sizes
          N, H, channels, rank, repeat = H / n_ssm; real_transform, imag_transform and dt_transform among none, exp, relu,
          sigmoid, softplus; dt_fast (sinh), is_real, deterministic, verbose
        the kernel: (channels, H, L)

    Parameters:
        d_model, channels: H and channels of param_config
        l_max: the length of the kernel if a call has no L; None: every call must have one

    Example:
        >>> H, N = 2, 4
        >>> config = {"N": N, "H": H, "channels": 1, "rank": 1, "repeat": 1, "disc": "zoh"}
        >>> config |= {"real_transform": "exp", "imag_transform": "none", "dt_transform": "exp"}
        >>> config |= {name: torch.nn.Parameter(torch.randn(1, H, N, 2)) for name in ("B", "C")}
        >>> config |= {"A_real": torch.zeros(H, N), "A_imag": torch.randn(H, N), "inv_dt": torch.full((H, 1), -3.0)}
        >>> kernel = gdn_cuda.nn.S4DKernel(H, 64, 1, config)
        >>> k, _ = kernel()
        >>> y, state = kernel.step(torch.randn(3, H), kernel.default_state(3))
        >>> k.shape, y.shape, state.shape
        (torch.Size([1, 2, 64]), torch.Size([3, 1, 2]), torch.Size([3, 2, 4]))
    """

    def __init__(self, d_model: int, l_max: int | None, channels: int, param_config: Mapping[str, Any]):
        super().__init__(d_model, l_max, channels, param_config)
        self.disc = param_config.get("disc", "zoh")
        if self.disc not in s4d.DISCRETIZATIONS:
            raise ValueError(f"S4DKernel: disc: expected one of {s4d.DISCRETIZATIONS}, got {self.disc!r}")

    def forward(self, L: int | None = None, state: Tensor | None = None, rate: float = 1.0) -> tuple[Tensor, Tensor | None]:
        """Returns K (channels, H, L), and K_state (…, channels, H, L) for a state (…, H, N), else None.

        L is by default l_max / rate.
        """
        self._check_rate(rate)
        if L is None:
            if self.l_max is None:
                raise ValueError("S4DKernel: L: expected a length, as l_max is None, got None")
            L = round(self.l_max / rate)
        self._check_length(L)
        self._check_size(L)
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
        """Computes dA, dB (H,N) and dC (channels,H,N) for `step`, which calls this at first and after a parameter changed."""
        system = self._system()
        discrete = s4d.discretized(system, self.disc)
        self._keep(discrete.A, discrete.B, system.C)

    def default_state(self, *batch: int) -> Tensor:
        """Zeros (…, H, N)."""
        return torch.zeros(*batch, self.H, self.N, dtype=self._complex, device=self.C.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns y (…, channels, H) and the next state, for an input u (…, H) and a state (…, H, N). Differentiable in these
        two; backward to parameters raises."""
        self._check_input(u, sequence=False)
        self._check_state(state, (self.N,), u.shape[:-1])
        if not self._is_current():
            self._setup_step()
        u, state = u.to(self._real), state.to(self._complex)
        dA, dB, dC = self._constants(self.dA, self.dB, self.dC)
        state = dA * state + dB * u[..., None]
        return 2 * torch.einsum("chn,...hn->...ch", dC, state).real, state

    def read(self, state: Tensor) -> Tensor:
        """y (…, channels, H) of a state, as `step` returns it with that state. Differentiable in everything."""
        self._check_state(state, (self.N,))
        return 2 * torch.einsum("chn,...hn->...ch", self._system().C.to(self._complex), state.to(self._complex)).real

    def forward_state(self, u: Tensor, state: Tensor) -> Tensor:
        """The state after the inputs u (…, H, L): Ā^L s + Σ_l Ā^{L−1−l} B̄ u_l. Differentiable in everything."""
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
