"""The real-gated linear recurrent unit of Griffin and RecurrentGemma."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..operators.dtypes import state_dtype
from ..scan import rglru_scan
from .dtypes import layer_dtype, recurrence_dtype

if TYPE_CHECKING:
    from ..parallel import Context

_LEAST, _MOST = 0.9, 0.999  # initial a^c, as in the paper


class RGLRU(nn.Module):
    """RG-LRU (Griffin): gates from blocks of the input, and a recurrence in every channel.

    r = σ(W_a u + b_a), i = σ(W_x u + b_x), a = σ(Λ)^(c r), h_t = a h_{t−1} + √(1 − a²) i u_t. W_a and W_x are block-diagonal. Λ
    is initialised so that a^c is uniform in [0.9, 0.999]. The first token of a sequence has the multiplier 1, and the
    derivative of the root is bounded, both as in RecurrentGemma.

    Shapes:
        u: (B, L, width), or (B, width) in a step; y has u's shape
        state: (B, width), fp32; None and `default_state` begin a sequence
        reset: (B, L), bool or integer: not 0 at tokens that begin a sequence

    Parameters:
        width: channels of u
        num_blocks: how many blocks W_a and W_x have, a divisor of width
        c: the constant of the formula
        max_sqrt_gradient: upper bound of the root's derivative; None: no bound
        device, dtype: of the parameters; Λ is fp32

    Example:
        >>> layer = gdn_cuda.nn.RGLRU(8, 2)
        >>> y, state = layer(torch.randn(3, 5, 8), return_last_state=True)
        >>> y_next, state = layer.step(torch.randn(3, 8), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8]), torch.Size([3, 8]))
    """

    def __init__(
        self,
        width: int,
        num_blocks: int,
        *,
        c: float = 8.0,
        max_sqrt_gradient: float | None = 1000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if num_blocks < 1 or width < 1 or width % num_blocks != 0:
            raise ValueError(f"RGLRU: num_blocks: expected a divisor of width={width}, got {num_blocks}")
        self.width, self.num_blocks, self.c, self.max_sqrt_gradient = width, num_blocks, c, max_sqrt_gradient
        block = width // num_blocks
        like = {"device": device, "dtype": dtype}
        self.Lambda = nn.Parameter(torch.empty(width, device=device, dtype=recurrence_dtype(dtype)))  # a is near one
        self.input_gate_weight = nn.Parameter(torch.empty(num_blocks, block, block, **like))
        self.input_gate_bias = nn.Parameter(torch.empty(width, **like))
        self.recurrent_gate_weight = nn.Parameter(torch.empty(num_blocks, block, block, **like))
        self.recurrent_gate_bias = nn.Parameter(torch.empty(width, **like))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        log_a = self.Lambda.uniform_(_LEAST, _MOST).log() / self.c
        self.Lambda.copy_(-torch.log(torch.expm1(-log_a)))  # the logit of a
        for name in ("input_gate", "recurrent_gate"):
            weight = getattr(self, f"{name}_weight")
            nn.init.normal_(weight, std=math.sqrt(1 / weight.shape[-1]))
            nn.init.zeros_(getattr(self, f"{name}_bias"))

    def forward(
        self,
        u: Tensor,
        state: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        return_last_state: bool = False,
        context: Context | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Returns y (B, L, width), or (y, last state (B, width)); `state` is the state before the first token. With a context
        from `gdn_cuda.parallel.context` u and reset have this rank's tokens of sequences that ranks share, and there are no
        states."""
        if u.dim() != 3 or u.shape[-1] != self.width:
            raise ValueError(f"RGLRU: u: expected (B, L, width={self.width}), got {tuple(u.shape)}")
        u = u.to(layer_dtype(u))
        gated = u * self._gate(u, self.input_gate_weight, self.input_gate_bias)
        rate = self._gate(u, self.recurrent_gate_weight, self.recurrent_gate_bias)
        decay = torch.exp(
            self.c * nn.functional.logsigmoid(self.Lambda.to(state_dtype(u)))
        )  # raised to the power r in the scan
        if context is not None:
            from ..parallel.layer import check_tokens_of_rank  # imports torch.distributed's device meshes

            check_tokens_of_rank("RGLRU", context, "u", u, state=state, return_last_state=return_last_state)
            return self._on_ranks(context, gated.transpose(1, 2), rate.transpose(1, 2), decay[:, None], reset)
        if state is not None and (state.shape != (len(u), self.width) or not state.is_floating_point()):
            got = f"{state.dtype} {tuple(state.shape)}"
            raise ValueError(f"RGLRU: state: expected real numbers (B, width) = ({len(u)}, {self.width}), got {got}")
        if state is not None and u.shape[1] > 0:
            reset = _with_first(reset, _begins(state)[:, None], u.shape[1])
        out, last = rglru_scan(
            gated.transpose(1, 2),
            rate.transpose(1, 2),
            decay[:, None],
            True,
            initial_state=None if state is None else state[..., None],
            reset=reset,
            first_multiplier=True,
            max_sqrt_gradient=self.max_sqrt_gradient,
        )
        out = out.transpose(1, 2)
        if not return_last_state:
            return out
        if u.shape[1] == 0:
            return out, self.default_state(u.shape[0]) if state is None else state
        return out, last[..., 0] + 0.0  # −0.0 + 0.0 is 0.0: the state after a token is never the −0.0 that begins a sequence

    def _on_ranks(self, context: Context, gated: Tensor, rate: Tensor, decay: Tensor, reset: Tensor | None) -> Tensor:
        from ..parallel.scans import rglru_scan as scan_on_ranks

        bound = self.max_sqrt_gradient
        out, _ = scan_on_ranks(gated, rate, decay, reset, context=context, first_multiplier=True, max_sqrt_gradient=bound)
        return out.transpose(1, 2)

    def default_state(self, *batch: int) -> Tensor:
        """The state before the first token (…, width), −0.0 in all channels: a sequence begins as with state=None.

        Positive zeros are an ordinary state: the token after them does not have the multiplier 1.
        """
        like = self.input_gate_weight
        return torch.full((*batch, self.width), -0.0, dtype=state_dtype(like), device=like.device)

    def step(self, u: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns y (B, width) and the next state, for one token u (B, width), as `forward`."""
        if u.dim() != 2 or u.shape[-1] != self.width:
            raise ValueError(f"RGLRU: u: expected (B, width={self.width}), got {tuple(u.shape)}")
        y, last = self.forward(u[:, None], state, return_last_state=True)
        return y[:, 0], last

    def _gate(self, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        blocks = torch.einsum("blhi,hij->blhj", u.unflatten(-1, (self.num_blocks, -1)), weight)
        return torch.sigmoid(blocks.flatten(-2) + bias).to(u.dtype)

    def extra_repr(self) -> str:
        return f"width={self.width}, num_blocks={self.num_blocks}, c={self.c}"


def _begins(state: Tensor) -> Tensor:
    """(B,): whether every channel of a state is −0.0, as in `default_state`. Compares bits, which needs the fewest launches."""
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16}[state.element_size()]
    return (state.detach().view(bits) == torch.iinfo(bits).min).all(-1)


def _with_first(reset: Tensor | None, first: Tensor, L: int) -> Tensor:
    """(B, L): `reset`, or `first` (B, 1) at the first token."""
    if reset is None:
        return first if L == 1 else nn.functional.pad(first, (0, L - 1))
    return torch.cat([(reset[:, :1] != 0) | first, reset[:, 1:] != 0], 1)
