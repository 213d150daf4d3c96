"""S5: the layer of Smith et al., "Simplified State Space Layers for Sequence Modeling", 2023."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .simplified import SimplifiedSSM

DISCRETIZATIONS = ("bilinear", "zoh", "dirac")


def diagonalized_hippo(size: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the normal part of HiPPO-LegS, A + p pᵗ with p_n = √(n + ½); imaginary parts ascend.

    A[n, k] = −√(2n + 1) √(2k + 1) below the diagonal, −(n + 1) on it. The sum is −½ on the diagonal, and but for that
    skew-symmetric, so a Hermitian solver finds its eigenvalues exactly enough.
    """
    n = torch.arange(size, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    A = -torch.tril(root[:, None] * root) + torch.diag(n)
    normal = A + torch.sqrt(n + 0.5)[:, None] * torch.sqrt(n + 0.5)
    skew = normal + 0.5 * torch.eye(size, dtype=torch.float64)
    imaginary, vectors = torch.linalg.eigh(-1j * skew)
    return torch.complex(torch.full_like(imaginary, -0.5), imaginary), vectors


class S5(SimplifiedSSM):
    """x' = A x + B u, y = C x + D u, discretized by "bilinear", "zoh" or "dirac" in steps of exp(log_step) · step_rescale.

    A begins as the eigenvalues of `blocks` normal parts of HiPPO-LegS, of d_state / blocks states each, B and C are made in
    their eigenvectors, and steps are log-uniform in [dt_min, dt_max].

    Shapes:
        u, y: (batch, L, d_model), any real dtype
        state: (batch, P), complex, with P = d_state / 2 for conj_sym, else d_state
        parameters: A (P, 2), B (P, d_model, 2), C (d_model, P, 2), D (d_model,), log_step (P,)

    Parameters:
        d_model: channels of u and y
        d_state: states, those of conjugates included
        blocks: how many parts A begins with, a divisor of d_state into even sizes, or with conj_sym=False any sizes
        dt_min, dt_max: between which steps begin
        discretization: "bilinear", "zoh" or "dirac"
        conj_sym: whether half of the states are computed, each for itself and its conjugate, and twice the real part is y
        clip_eigs: whether Re A is kept at −1e-4 or below
        step_rescale: a factor of all steps, such as for inputs at another rate

    Example:
        >>> layer = gdn_cuda.nn.S5(4, 8, blocks=2)
        >>> u = torch.randn(2, 16, 4)
        >>> y, state = layer(u, return_last_state=True)
        >>> y_next, state = layer.step(torch.randn(2, 4), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([2, 16, 4]), torch.Size([2, 4]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        blocks: int = 1,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        discretization: str = "zoh",
        conj_sym: bool = True,
        clip_eigs: bool = False,
        step_rescale: float = 1.0,
    ) -> None:
        super().__init__(d_model, d_state)
        per_block = 2 if conj_sym else 1
        if blocks < 1 or d_state % (blocks * per_block):
            expected = f"a divisor of d_state={d_state}" + (" into blocks of an even size" if conj_sym else "")
            raise ValueError(f"S5: blocks: expected {expected}, got {blocks}")
        if discretization not in DISCRETIZATIONS:
            raise ValueError(f"S5: discretization: expected one of {DISCRETIZATIONS}, got {discretization!r}")
        if not 0 < dt_min <= dt_max:
            raise ValueError(f"S5: dt_min, dt_max: expected 0 < dt_min ≤ dt_max, got {dt_min} and {dt_max}")
        self.discretization, self.conj_sym, self.clip_eigs = discretization, conj_sym, clip_eigs
        self.step_rescale = step_rescale
        eigenvalues, vectors = diagonalized_hippo(d_state // blocks)
        kept = len(eigenvalues) // per_block
        vectors = torch.block_diag(*[vectors[:, :kept]] * blocks)  # (d_state, P)
        # Lecun-normal numbers of the system before it is diagonalized, real in B and complex in C.
        B = torch.randn(d_state, d_model, dtype=torch.float64) / math.sqrt(d_model)
        C = torch.randn(d_model, d_state, dtype=torch.complex128) * math.sqrt(2 / d_state)
        self.A = nn.Parameter(_pairs(eigenvalues[:kept].repeat(blocks)))
        self.B = nn.Parameter(_pairs(vectors.mH @ B.to(vectors.dtype)))
        self.C = nn.Parameter(_pairs(C @ vectors))
        self.D = nn.Parameter(torch.randn(d_model))
        log_step = math.log(dt_min) + torch.rand(self.states) * (math.log(dt_max) - math.log(dt_min))
        self.log_step = nn.Parameter(log_step)

    @property
    def doubled(self) -> bool:
        return self.conj_sym

    @property
    def states(self) -> int:
        return self.d_state // 2 if self.conj_sym else self.d_state

    def system(self) -> dict[str, Any]:
        real, imaginary = self.A.unbind(-1)
        if self.clip_eigs:
            real = real.clamp(max=-1e-4)
        return {
            "delta": self.step_rescale * torch.exp(self.log_step),
            "A": torch.complex(real, imaginary),
            "B": torch.view_as_complex(self.B),
            "C": torch.view_as_complex(self.C),
            "discretization": self.discretization,
        }


def _pairs(x: Tensor) -> Tensor:
    """Complex numbers as pairs of fp32 numbers, which every optimizer takes."""
    return torch.view_as_real(x.resolve_conj().to(torch.complex64)).clone()
