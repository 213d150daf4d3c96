"""The base of S5 and LRU: a diagonal system between two matrix products, over sequences and step by step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..scan.simplified_scan import simplified_scan  # from the module, because for mypy scan.simplified_scan is the module
from .dtypes import KeepsRecurrence, at_least_fp32, layer_dtype, recurrence_dtype

if TYPE_CHECKING:
    from ..parallel import Context


class SimplifiedSSM(KeepsRecurrence):
    """Maps (batch, L, d_model) to the same shape: simplified_scan with d_state states, plus D u."""

    B: nn.Parameter  # (states, d_model, 2)
    C: nn.Parameter  # (d_model, states, 2)
    D: nn.Parameter

    def __init__(self, d_model: int, d_state: int):
        super().__init__()
        for name, size in (("d_model", d_model), ("d_state", d_state)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{type(self).__name__}: {name}: expected a positive integer, got {size!r}")
        self.d_model, self.d_state = d_model, d_state

    def _make(self, device: torch.device | str | None, dtype: torch.dtype | None, **shapes: tuple[int, ...]) -> None:
        """Makes the parameters, with the values of `drawn`; all but D belong to the recurrence."""
        for name, shape in shapes.items():
            made = torch.empty(shape, device=device, dtype=dtype if name == "D" else recurrence_dtype(dtype))
            self.register_parameter(name, nn.Parameter(made))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws all parameters anew, on the CPU: a seed gives the same ones on every device."""
        for name, x in self.drawn().items():
            getattr(self, name).copy_(x)

    def recurrence(self) -> Iterator[nn.Parameter]:
        return (parameter for name, parameter in self.named_parameters() if name != "D")

    @abstractmethod
    def drawn(self) -> dict[str, Tensor]:
        """Initial values of all parameters."""

    @abstractmethod
    def system(self) -> dict[str, Any]:
        """delta, A, B, C and discretization for simplified_scan."""

    @property
    @abstractmethod
    def doubled(self) -> bool:
        """Whether each state represents a conjugate pair."""

    @property
    def states(self) -> int:
        """How many states are computed: one of each conjugate pair."""
        return self.d_state

    @property
    def _complex(self) -> torch.dtype:
        return torch.complex128 if self.B.dtype == torch.float64 else torch.complex64

    def forward(
        self, u: Tensor, state: Tensor | None = None, *, return_last_state: bool = False, context: Context | None = None
    ) -> Any:
        """Returns y (batch, L, d_model), or (y, last state (batch, states)); `state` is the state before the first token.

        With a context from `gdn_cuda.parallel.context` u has this rank's tokens of sequences that ranks share, and there are no
        states."""
        self._check("u", u, 3, "(batch, L, d_model)", self.d_model)
        if context is not None:
            from ..parallel.layer import check_tokens_of_rank  # imports torch.distributed's device meshes

            check_tokens_of_rank(type(self).__name__, context, "u", u, state=state, return_last_state=return_last_state)
        if state is not None:
            self._check("state", state, 2, "(batch, states)", self.states)
        real = at_least_fp32(self.B).dtype
        complex_u = u.mT.to(real).to(self._complex)
        if context is None:
            x, last = simplified_scan(complex_u, **self.system(), return_last_state=True, initial_state=state)
        else:
            from ..parallel.scans import simplified_scan as scan_on_ranks

            x, last = scan_on_ranks(complex_u, **self.system(), context=context)
        y = (2 if self.doubled else 1) * x.real.mT + self.D.to(real) * u.to(real)
        y = y.to(layer_dtype(u))
        return (y, last) if return_last_state else y

    def default_state(self, *batch: int) -> Tensor:
        """Zeros (…, states)."""
        return torch.zeros(*batch, self.states, dtype=self._complex, device=self.B.device)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns y (batch, d_model) and the next state, for one token u (batch, d_model), as `forward`."""
        self._check("u", u, 2, "(batch, d_model)", self.d_model)
        y, state = self.forward(u[:, None], state, return_last_state=True)
        return y[:, 0], state

    def _check(self, argument: str, x: Tensor, rank: int, layout: str, last: int) -> None:
        if x.dim() != rank or x.shape[-1] != last:
            raise ValueError(
                f"{type(self).__name__}: {argument}: expected {layout} with a last dimension of {last}, got {tuple(x.shape)}"
            )


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed values drawn in `dtype`, as fp64 or complex128."""
    x = torch.randn(*shape, dtype=dtype, device="cpu")
    return x.to(torch.complex128 if x.is_complex() else torch.float64)
