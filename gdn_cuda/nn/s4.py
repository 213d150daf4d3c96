"""S4: the convolution kernel of a diagonal plus low-rank system, and steps of the same system."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..structured import reference_s4 as s4
from ..structured.reference_s4 import System, full_state
from . import s4_step
from .dtypes import without_autocast
from .s4_base import SSMKernel, rows_of
from .s4_length import KnowsLength
from .s4_resolvent import kernel_by_cauchy

logger = logging.getLogger("gdn_cuda")


class S4Kernel(KnowsLength, SSMKernel):
    """S4's convolution kernel k_l = Re(C Ā^l B̄), of x' = dt (Λ − P Pᴴ) x + dt B u, discretized bilinearly.

    A = −tr(A_real) − i tr(A_imag), dt = tr(inv_dt). The first call converts C, in place, to C̃ = C (I − Ā^L) for L = l_max or
    its own length; a longer call doubles L until it suffices. `l_kernel`, next to C in the state_dict, is the L of C̃; all
    kernels with the same C use the same L.

    Shapes:
        param_config: A_real, A_imag (n_ssm, N), B (1, n_ssm, N, 2), C (channels, H, N, 2), P (rank, n_ssm, N, 2), inv_dt (H, 1)
          or (H, N); sizes N (half of each conjugate pair), H, channels, rank, repeat = H / n_ssm; real_transform,
          imag_transform and dt_transform among none, exp, relu, sigmoid, softplus; dt_fast (sinh), is_real, deterministic,
          verbose, fp64_sums (for poles so near the imaginary axis that sums in fp32 cancel)
        the kernel: (channels, H, L)

    Parameters:
        d_model, channels: H and channels of param_config
        l_max: the length of the kernel if a call has no L; None: the first call must have one

    Example:
        >>> H, N = 2, 4
        >>> config = {"N": N, "H": H, "channels": 1, "rank": 1, "repeat": 1}
        >>> config |= {"real_transform": "exp", "imag_transform": "none", "dt_transform": "exp"}
        >>> config |= {name: torch.nn.Parameter(torch.randn(1, H, N, 2)) for name in ("B", "C", "P")}
        >>> config |= {"A_real": torch.zeros(H, N), "A_imag": torch.randn(H, N), "inv_dt": torch.full((H, 1), -3.0)}
        >>> kernel = gdn_cuda.nn.S4Kernel(H, 64, 1, config)
        >>> k, _ = kernel(L=64)
        >>> y, state = kernel.step(torch.randn(3, H), kernel.default_state(3))
        >>> k.shape, y.shape, state.shape
        (torch.Size([1, 2, 64]), torch.Size([3, 1, 2]), torch.Size([3, 2, 8]))
    """

    def __init__(self, d_model: int, l_max: int | None, channels: int, param_config: Mapping[str, Any]):
        super().__init__(d_model, l_max, channels, param_config)
        if self.P is None and self.rank:
            raise ValueError(f"S4Kernel: P: expected (rank={self.rank}, …), got None")
        self._register_length()
        self._step_mode = "dense"
        self._linear: s4_step.LinearStep | None = None
        self._basis: Tensor | None = None  # for diagonal steps

    def forward(self, state: Tensor | None = None, rate: float = 1.0, L: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Returns k (channels, H, L), and k_state (…, channels, H, L) for a state (…, H, N) or (…, H, 2N), else None.

        L is by default l_max / rate, or the length of C̃. C̃ is computed for rate 1: at another rate k is the kernel of
        nearly the same C.
        """
        self._check_rate(rate)
        if state is not None:
            self._check_state(state, (self.N, 2 * self.N))
        L, length = self._lengths(L, rate)
        samples = round(length / rate)
        self._check_size(samples)
        system = self._system_for(length, rate)
        B = system.B
        if state is not None:
            B = torch.cat([_undiscretized(system, rows_of(state).to(torch.complex128)), B])
        if samples == 0:
            k = system.A.real.new_zeros(B.shape[0], self.channels, self.H, 0, dtype=self._real)
        else:
            sums = torch.complex128 if self.fp64_sums else self._complex
            k = kernel_by_cauchy(system, B, samples, sums)[..., :L].to(self._real)
        return k[-1], None if state is None else k[:-1].reshape(*state.shape[:-2], *k.shape[1:])

    def _largest_shape(self, L: int) -> tuple[int, ...]:
        """Shape of the Cauchy sums: complex, at half as many points as the kernel has."""
        return self.H, 1 + self.rank, self.channels + self.rank, L

    # ---- C̃

    def _lengths(self, L: int | None, rate: float) -> tuple[int, int]:
        """L, and the length of C̃ that it requires at this rate."""
        length = self._length or self.l_max or 0
        if L is None:
            if length == 0:
                raise ValueError("S4Kernel: L: expected a length, as l_max is None and no call had one, got None")
            return round(length / rate), length
        self._check_length(L)
        if L == 0:
            return 0, 0
        length = length or max(math.ceil(round(rate * L, 9)), 1)
        while round(length / rate) < L:
            length *= 2
        return L, length

    def _system_for(self, length: int, rate: float) -> System:
        """The system with a C̃ of at least that length. The module's C is converted in place, a substitute for it is not."""
        if self._length >= length:
            return self._system(rate)
        if self._stands_in:
            return self._system(rate)._replace(C=self._converted(length))
        with torch.no_grad():
            parts = torch.view_as_real(self._converted(length))
            self.C.copy_(parts if self.C.dim() == parts.dim() else parts[..., 0])
        self._set_length(length)
        if self.verbose:
            logger.info("S4Kernel: C is now converted for kernels of length %d", length)
        return self._system(rate)

    def _converted(self, wanted: int) -> Tensor:
        """C̃ for the wanted length: any length for an unconverted C, else its length times a power of two."""
        system, length = self._system(), self._length
        discrete, C = s4.discretized(system), system.C
        if length == 0:
            return s4.truncated_output(discrete, C, wanted)
        while length < wanted:
            C, length = s4.doubled_output(discrete, C, length), 2 * length
        return C

    # ---- Stepping, which treats the parameters as constants

    @torch.no_grad()
    def _setup_step(self, mode: str = "dense") -> None:
        """Computes the matrices of `step`: "dense" on (…,H,2N), "linear" in O(rank · N) on (…,H,N), "diagonal" in the
        eigenbasis.

        `step` calls it if nobody has (dense), or if a parameter has changed (in the last mode). It does not detect writes to
        `.data` and to inference tensors, and when compiled no changes at all.
        """
        if mode not in s4.STEP_MODES:
            raise ValueError(f"S4Kernel: mode: expected one of {s4.STEP_MODES}, got {mode!r}")
        system = self._system()
        discrete = s4.discretized(system)
        C = s4.original_output(discrete, system.C, self._length)
        self._linear = self._basis = None
        if mode == "diagonal":
            self._basis = torch.linalg.eig(discrete.A)[1]
            discrete, C = s4.diagonalized(discrete, C)
        elif mode == "dense":
            C = s4.with_conjugates(C)
        else:
            self._linear, C = s4_step.linear_step(system).to(self._complex), 2 * C
        self._step_mode = mode
        self._keep(discrete.A, discrete.B, C)

    def default_state(self, *batch: int) -> Tensor:
        """Zeros (…, H, 2N), or (…, H, N) for linear steps."""
        size = self.N if self._step_mode == "linear" else 2 * self.N
        return torch.zeros(*batch, self.H, size, dtype=self._complex, device=self.C.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns y (…, channels, H) and the next state, for an input u (…, H) and a state shaped as by `default_state`.
        Differentiable in these two; backward to parameters raises."""
        self._check_input(u, sequence=False)
        self._check_state(state, (self.N if self._step_mode == "linear" else 2 * self.N,), u.shape[:-1])
        if not self._is_current():
            self._setup_step(self._step_mode)
        u, state = u.to(self._real), state.to(self._complex)
        dA, dB, dC, *linear = self._constants(self.dA, self.dB, self.dC, *(self._linear or ()))
        if linear:
            with without_autocast(u):
                state = s4_step.LinearStep(*linear).advance(u, state)
        elif self._step_mode == "dense":
            state = torch.einsum("hmn,...hn->...hm", dA, state) + dB * u[..., None]
        else:
            state = dA * state + dB * u[..., None]
        return torch.einsum("chn,...hn->...ch", dC, state).real, state

    def read(self, state: Tensor) -> Tensor:
        """y (…, channels, H) of a state (…, H, N) or (…, H, 2N), as `step` returns it with that state; not for diagonal steps.
        Differentiable in everything."""
        self._check_state(state, (self.N, 2 * self.N))
        system = self._system()
        C = s4.original_output(s4.discretized(system), system.C, self._length)
        half = state[..., : self.N].to(torch.complex128)
        return 2 * torch.einsum("chn,...hn->...ch", C, half).real.to(self._real)

    def forward_state(self, u: Tensor, state: Tensor) -> Tensor:
        """The state after inputs u (…, H, L), from a state (…, H, N) or (…, H, 2N); in the eigenbasis if steps are diagonal.

        Differentiable in everything but the eigenbasis: backward through that to parameters raises.
        """
        self._check_input(u, sequence=True)
        self._check_state(state, (self.N, 2 * self.N), u.shape[:-2])
        if u.shape[-1] == 0:
            return self._unmoved(u, state)
        if self._step_mode == "diagonal" and not self._is_current():
            self._setup_step("diagonal")
        half = state.shape[-1] == self.N
        discrete = s4.discretized(self._system())
        wide = full_state(state.to(torch.complex128), self.N)
        basis = None if self._basis is None else self._constants(self._basis, function="forward_state")[0]
        if basis is not None:
            wide = torch.einsum("hmn,...hn->...hm", basis, wide)
        wide = s4_step.forward_state(discrete, u, wide)
        if basis is not None:
            wide = torch.linalg.solve(basis, wide[..., None]).squeeze(-1)
        return (wide[..., : self.N] if half else wide).to(self._complex)


def _undiscretized(system: System, state: Tensor) -> Tensor:
    """The B (…,H,N) whose discretization is Ā s: Δ⁻¹ s + (Λ − P Pᴴ) s / 2."""
    N = system.A.shape[-1]
    half = state[..., :N]
    full = full_state(state, N)
    P = s4.with_conjugates(system.P)
    projected = torch.einsum("rhn,bhn->bhr", P.conj(), full)
    applied = system.A * half - torch.einsum("rhm,bhr->bhm", system.P, projected)
    return half / system.dt + applied / 2
