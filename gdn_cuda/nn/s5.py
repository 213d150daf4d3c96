"""S5: the layer of Smith et al., "Simplified State Space Layers for Sequence Modeling", 2023."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..operators.dtypes import from_pairs
from .dtypes import at_least_fp32
from .hippo import diagonalized_hippo
from .simplified import SimplifiedSSM, normal

DISCRETIZATIONS = ("bilinear", "zoh", "dirac")


class S5(SimplifiedSSM):
    """x' = A x + B u, y = C x + D u, discretized by "bilinear", "zoh" or "dirac" in steps of exp(log_step) · step_rescale.

    A is initialised with the eigenvalues of `blocks` normal parts of HiPPO-LegS, of d_state / blocks states each, B and C in
    the basis of their eigenvectors, and steps log-uniform in [dt_min, dt_max].

    Shapes:
        u, y: (batch, L, d_model), any real dtype
        state: (batch, P), complex64 (complex128 for parameters in fp64), with P = d_state / 2 with conj_sym, otherwise d_state
        parameters: A (P, 2), B (P, d_model, 2), C (d_model, P, 2), D (d_model,), log_step (P,); fp32 but for D where
          `dtype` is bf16 or fp16

    Parameters:
        d_model: channels of u and y
        d_state: states, those of conjugates included
        blocks: the parts that A is initialised with, a divisor of d_state; with conj_sym each of an even size
        dt_min, dt_max: the initial range of steps
        discretization: "bilinear", "zoh" or "dirac"
        conj_sym: whether half of the states are computed, each for itself and its conjugate, so y is twice the real part
        clip_eigs: whether Re A is kept at −1e-4 or below
        step_rescale: multiplies all steps, for inputs at another sampling rate
        device, dtype: of the parameters; all but D are fp32 at least

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
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
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
        self.step_rescale, self.blocks, self.dt_min, self.dt_max = step_rescale, blocks, dt_min, dt_max
        P = self.states
        self._make(device, dtype, A=(P, 2), B=(P, d_model, 2), C=(d_model, P, 2), D=(d_model,), log_step=(P,))

    def drawn(self) -> dict[str, Tensor]:
        eigenvalues, vectors = diagonalized_hippo(self.d_state // self.blocks)
        kept = self.states // self.blocks
        vectors = torch.block_diag(*[vectors[:, :kept]] * self.blocks)  # (d_state, P)
        # Lecun-normal matrices of the system before it is diagonalized, a real B and a complex C.
        B = normal(self.d_state, self.d_model, dtype=torch.float64) / math.sqrt(self.d_model)
        C = normal(self.d_model, self.d_state, dtype=torch.complex128) * math.sqrt(2 / self.d_state)
        D, place = normal(self.d_model), torch.rand(self.states, dtype=torch.float32, device="cpu").double()
        return {
            "A": _pairs(eigenvalues[:kept].repeat(self.blocks)),
            "B": _pairs(vectors.mH @ B.to(vectors.dtype)),
            "C": _pairs(C @ vectors),
            "D": D,
            "log_step": math.log(self.dt_min) + place * (math.log(self.dt_max) - math.log(self.dt_min)),
        }

    @property
    def doubled(self) -> bool:
        return self.conj_sym

    @property
    def states(self) -> int:
        return self.d_state // 2 if self.conj_sym else self.d_state

    def system(self) -> dict[str, Any]:
        real, imaginary = at_least_fp32(self.A).unbind(-1)
        if self.clip_eigs:
            real = real.clamp(max=-1e-4)
        return {
            "delta": self.step_rescale * torch.exp(at_least_fp32(self.log_step)),
            "A": torch.complex(real, imaginary),
            "B": from_pairs(at_least_fp32(self.B)),
            "C": from_pairs(at_least_fp32(self.C)),
            "discretization": self.discretization,
        }

    def extra_repr(self) -> str:
        sizes = f"d_model={self.d_model}, d_state={self.d_state}, blocks={self.blocks}"
        return f"{sizes}, discretization={self.discretization!r}, conj_sym={self.conj_sym}"


def _pairs(x: Tensor) -> Tensor:
    """Complex values as (real, imaginary) pairs, because not every optimizer supports complex parameters."""
    return torch.view_as_real(x.resolve_conj())
