"""The gated short convolution of LFM2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..conv.hyena_fir_step import hyena_fir_step
from ..conv.hyena_short import hyena_short
from ..operators.composed import as_one_call
from ..operators.dtypes import state_dtype
from .dtypes import at_least_fp32, layer_dtype
from .tensors import after_token

if TYPE_CHECKING:
    from ..parallel import Context


class ShortConv(nn.Module):
    """LFM2's short convolution: a projection to B, C and x, C ⊙ conv(B ⊙ x) with K taps, and a projection back.

    Parameters have the names, shapes and initial values of transformers' Lfm2ShortConv: in_proj, conv and out_proj.

    Shapes:
        u: (B, L, hidden_size), or (B, hidden_size) in a step; the result is like u
        state: (B, hidden_size, K − 1), fp32, the last values of B ⊙ x; None: the beginning of a sequence

    Parameters:
        hidden_size: channels of u
        kernel_size: K
        bias: whether projections and convolution have biases
        device, dtype: of the parameters

    Example:
        >>> layer = gdn_cuda.nn.ShortConv(8)
        >>> with torch.no_grad():
        ...     y, state = layer(torch.randn(3, 5, 8), return_state=True)
        ...     y_next, state = layer.step(torch.randn(3, 8), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8]), torch.Size([3, 8, 2]))
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int = 3,
        bias: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.hidden_size, self.kernel_size = hidden_size, kernel_size
        like = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=bias, **like)
        self.conv = nn.Conv1d(
            hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias, padding=kernel_size - 1, **like
        )
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=bias, **like)

    def forward(
        self, u: Tensor, state: Tensor | None = None, *, return_state: bool = False, context: Context | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Returns y (B, L, hidden_size), or (y, state); `state` is the state before the first token. With a context from
        `gdn_cuda.parallel.context` u has this rank's tokens of sequences that ranks share, and there are no states."""
        if u.dim() != 3 or u.shape[-1] != self.hidden_size:
            raise ValueError(f"ShortConv: u: expected (B, L, {self.hidden_size}), got {tuple(u.shape)}")
        B, C, x = F.linear(u, self.in_proj.weight, self.in_proj.bias).chunk(3, -1)
        if context is not None:
            from ..parallel.hyena import gated_convolution  # imports torch.distributed's device meshes
            from ..parallel.layer import check_tokens_of_rank

            check_tokens_of_rank("ShortConv", context, "u", u, state=state, return_state=return_state)
            rows: dict[str, Tensor | None] = {"weight": self.conv.weight, "bias": self.conv.bias}
            y = gated_convolution(context, hyena_short, B.mT, C.mT, x.mT, self.kernel_size, **rows, gated_bias=False)
            return F.linear(y.mT, self.out_proj.weight, self.out_proj.bias)
        y, state = hyena_short(B.mT, C.mT, x.mT, self.conv.weight, self.conv.bias, initial_state=state, return_state=True)
        y = F.linear(y.mT, self.out_proj.weight, self.out_proj.bias)
        return (y, state) if return_state else y

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns y (B, hidden_size) and `state`, updated in place, for one token u (B, hidden_size). Only `forward` has
        gradients; backward through a step raises."""
        if u.dim() != 2 or u.shape[-1] != self.hidden_size:
            raise ValueError(f"ShortConv: u: expected (B, {self.hidden_size}), got {tuple(u.shape)}")

        def run() -> Tensor:
            if state.dtype == torch.float64:
                return after_token(self.forward(u[:, None], state, return_state=True), state)
            B, C, x = F.linear(u, self.in_proj.weight, self.in_proj.bias).chunk(3, -1)
            y, _ = hyena_fir_step(at_least_fp32(B) * at_least_fp32(x), state, self.conv.weight, self.conv.bias)
            return F.linear((C * y).to(layer_dtype(u)), self.out_proj.weight, self.out_proj.bias)

        return as_one_call("ShortConv.step", "forward", {"state": state}, {"u": u}, run, self), state

    def default_state(self, batch: int) -> Tensor:
        """The state before the first token: zeros."""
        weight = self.conv.weight
        return weight.new_zeros(batch, self.hidden_size, self.kernel_size - 1, dtype=state_dtype(weight))

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, kernel_size={self.kernel_size}"
