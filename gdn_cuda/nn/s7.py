"""S7: a simplified state space layer whose A, B and C depend on the input."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..operators.dtypes import state_dtype
from ..operators.transposed import contiguous_mT
from ..scan import s7_scan
from .dtypes import at_least_fp32, layer_dtype

_LEAST, _MOST = 0.9, 0.999  # initial decays


class S7(nn.Module):
    """S7: x_t = (1 − 1/(A_t² + ½)) x_{t−1} + B_t u_t + b_t, y_t = C_t x_t + D u_t.

    A_t, B_t, C_t and b_t are affine in u_t. The decay is the paper's stable reparametrization, in (−1, 1) for every A. Biases
    are initialised so that decays are uniform in [0.9, 0.999] and B and C keep variances; the weights are initially small.

    Shapes:
        u: (batch, L, d_model), or (batch, d_model) in a step; y has u's shape
        state: (batch, d_state); None: zeros

    Parameters:
        d_model: channels of u
        d_state: how many states there are
        device, dtype: of the parameters

    Example:
        >>> layer = gdn_cuda.nn.S7(4, 3)
        >>> y, state = layer(torch.randn(2, 5, 4), return_last_state=True)
        >>> y_next, state = layer.step(torch.randn(2, 4), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([2, 5, 4]), torch.Size([2, 4]), torch.Size([2, 3]))
    """

    def __init__(
        self, d_model: int, d_state: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ):
        super().__init__()
        if d_model < 1 or d_state < 1:
            raise ValueError(f"S7: d_model, d_state: expected positive sizes, got {d_model} and {d_state}")
        self.d_model, self.d_state = H, N = d_model, d_state
        like = {"device": device, "dtype": dtype}
        self._rows = (N, N * H, H * N, N)  # rows of A, B, C and b in one projection
        self.weight = nn.Parameter(torch.empty(sum(self._rows), H, **like))
        self.bias = nn.Parameter(torch.empty(sum(self._rows), **like))
        self.D = nn.Parameter(torch.empty(H, **like))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        A, B, C, b = self.bias.split(self._rows)
        decay = torch.empty(self.d_state, device=A.device).uniform_(_LEAST, _MOST)
        A.copy_((1 / (1 - decay) - 0.5).sqrt())
        nn.init.normal_(B, std=math.sqrt(1 / self.d_model))
        nn.init.normal_(C, std=math.sqrt(1 / self.d_state))
        nn.init.zeros_(b)
        for part, scale in zip(self.weight.split(self._rows), (1, 1 / self.d_model, 1 / self.d_state, 1), strict=True):
            nn.init.normal_(part, std=0.1 * math.sqrt(scale / self.d_model))
        nn.init.ones_(self.D)

    def forward(
        self, u: Tensor, state: Tensor | None = None, *, return_last_state: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Returns y (batch, L, d_model), or (y, last state (batch, d_state)); `state` is the state before the first token."""
        if u.dim() != 3 or u.shape[-1] != self.d_model:
            raise ValueError(f"S7: u: expected (batch, L, d_model={self.d_model}), got {tuple(u.shape)}")
        tokens = contiguous_mT(u.to(layer_dtype(u)))
        A, B, C, b = self._projected(tokens)
        y, last = s7_scan(tokens, A, B, C, b, True)
        if state is not None:  # adds the decayed initial state to the states that started from zero
            left = torch.cumprod(torch.cat([state[..., None].double(), _decay(A.double())], -1), -1).to(state_dtype(u))
            y = y + torch.einsum("bhnl,bnl->bhl", C, left[..., 1:].to(C.dtype))
            last = last + left[..., -1]
        y = (y.mT + self.D * u).to(tokens.dtype)
        return (y, last) if return_last_state else y

    def default_state(self, *batch: int) -> Tensor:
        """Zeros (…, d_state)."""
        return torch.zeros(*batch, self.d_state, dtype=state_dtype(self.weight), device=self.weight.device)

    def step(self, u: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns y (batch, d_model) and the next state, for one token u (batch, d_model), in plain torch."""
        if u.dim() != 2 or u.shape[-1] != self.d_model:
            raise ValueError(f"S7: u: expected (batch, d_model={self.d_model}), got {tuple(u.shape)}")
        u = u.to(layer_dtype(u))
        A, B, C, b = (at_least_fp32(x[..., 0]) for x in self._projected(u[..., None]))
        added = (B * u[:, None]).sum(-1) + b
        state = added if state is None else _decay(A) * state + added
        return ((C * state[:, None]).sum(-1) + self.D * u).to(u.dtype), state

    def _projected(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A, B, C and b of tokens (batch, d_model, L), which are contiguous along L."""
        A, B, C, b = (self.weight @ tokens + self.bias[:, None]).to(tokens.dtype).split(self._rows, 1)
        H, N = self.d_model, self.d_state
        return A, B.unflatten(1, (N, H)), C.unflatten(1, (H, N)), b

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, d_state={self.d_state}"


def _decay(A: Tensor) -> Tensor:
    return 1 - 1 / (A * A + 0.5)
