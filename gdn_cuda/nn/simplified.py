"""What S5 and LRU share: a diagonal system between two products, over sequences and step by step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from ..scan.simplified_scan import simplified_scan  # of the package, mypy may take the module for it


class SimplifiedSSM(nn.Module):
    """Maps (batch, L, d_model) to the same by simplified_scan with d_state states, and adds D u."""

    D: nn.Parameter

    def __init__(self, d_model: int, d_state: int):
        super().__init__()
        for name, size in (("d_model", d_model), ("d_state", d_state)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{type(self).__name__}: {name}: expected a positive integer, got {size!r}")
        self.d_model, self.d_state = d_model, d_state

    @abstractmethod
    def system(self) -> dict[str, Any]:
        """delta, A, B, C and discretization for simplified_scan."""

    @property
    @abstractmethod
    def doubled(self) -> bool:
        """Whether each state stands for a conjugate pair."""

    @property
    def states(self) -> int:
        """How many states are computed: one of each conjugate pair."""
        return self.d_state

    def forward(self, u: Tensor, state: Tensor | None = None, *, return_last_state: bool = False) -> Any:
        """Returns y (batch, L, d_model), or (y, last state (batch, states)); `state` is the one before the first token."""
        self._check("u", u, 3, "(batch, L, d_model)", self.d_model)
        if state is not None:
            self._check("state", state, 2, "(batch, states)", self.states)
        real = self.D.dtype
        complex_u = u.mT.to(real).to(torch.complex64 if real == torch.float32 else torch.complex128)
        x, last = simplified_scan(complex_u, **self.system(), return_last_state=True, initial_state=state)
        y = (2 if self.doubled else 1) * x.real.mT + self.D * u.to(real)
        y = y.to(u.dtype)
        return (y, last) if return_last_state else y

    def default_state(self, *batch: int) -> Tensor:
        """Zeros (…, states)."""
        dtype = torch.complex64 if self.D.dtype == torch.float32 else torch.complex128
        return torch.zeros(*batch, self.states, dtype=dtype, device=self.D.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns y (batch, d_model) and the next state, for one token u (batch, d_model); as `forward` has them."""
        self._check("u", u, 2, "(batch, d_model)", self.d_model)
        y, state = self.forward(u[:, None], state, return_last_state=True)
        return y[:, 0], state

    def _check(self, argument: str, x: Tensor, rank: int, layout: str, last: int) -> None:
        if x.dim() != rank or x.shape[-1] != last:
            raise ValueError(
                f"{type(self).__name__}: {argument}: expected {layout} with a last dimension of {last}, got {tuple(x.shape)}"
            )
