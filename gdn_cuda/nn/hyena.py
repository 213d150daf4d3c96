"""The Hyena layers of StripedHyena 2 and Evo 2, without their input and output projections."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..conv import (
    Projections,
    causal_conv1d,
    hyena_fir_step,
    hyena_long,
    hyena_medium,
    hyena_modal_step,
    hyena_short,
    split_projections,
)
from ..operators.composed import composed
from ..operators.dtypes import state_dtype
from ..operators.registration import check_call
from ..operators.transposed import contiguous_mT
from .dtypes import at_least_fp32, layer_dtype, recurrence_dtype
from .tensors import after_token

if TYPE_CHECKING:
    from ..parallel import Context

_CONVOLUTION_FROM = (
    128  # from this number of taps on, filters are convolutions with a bias D; shorter ones are correlations without one
)
_LONGEST_SHORT = 32  # most taps of hyena_short
_GAMMA = (0.01, 0.1)  # initial poles are e^(−γ / e) with γ uniform in this range, and residues are small, as in savanna
_RESIDUES = 0.1


class HyenaState(NamedTuple):
    """The state from which a HyenaCascade continues."""

    fir: Tensor  # (B, 3 hidden_size, short_filter_length − 1)
    inner: Tensor  # (B, hidden_size, K − 1) of an explicit filter, (B, hidden_size, state_size) of an implicit one


class HyenaCascade(nn.Module):
    """A Hyena layer: a short causal filter of the three projections, and x2 ⊙ (h * (x1 ⊙ v)).

    Parameters have the names and shapes of vortex's `blocks.N.filter`, whose
    state_dict fits: short_filter_weight, short_filter_bias, h and D, or residues, log_poles and D.

    Shapes:
        u: (B, L, 3 hidden_size), or (B, 3 hidden_size) in a step; the result (B, L, hidden_size) or (B, hidden_size)
        padding_mask: (B, L), multiplies the filters' outputs; HCL's inner filter has none
        state: a HyenaState; None: the beginning of a sequence

    Parameters:
        hidden_size: channels of each projection
        fir_inner_filter_length: None is Evo 2's HCL, whose filter h is implicit; 128 taps and more are HCM, with the bias D;
          fewer are HCS
        hyena_filter_groups: number of filters h, each for a group of contiguous channels; None: one per channel
        short_filter_length: taps of the filter of the projections
        short_filter_bias: whether that filter has a bias
        state_size: real poles of an implicit filter
        layout, num_attention_heads: `layout` and `n_heads` of `split_projections`; Evo 2's is "interleaved"
        hyena_flip_x1x2: whether x1 and x2 are swapped
        device, dtype: of the parameters; log_poles and residues are fp32, or fp64

    Example:
        >>> layer = gdn_cuda.nn.HyenaCascade(8, 7, hyena_filter_groups=2)
        >>> with torch.no_grad():
        ...     y, state = layer(torch.randn(3, 5, 24), return_state=True)
        ...     y_next, state = layer.step(torch.randn(3, 24), state)
        >>> y.shape, y_next.shape, state.inner.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8]), torch.Size([3, 8, 6]))
    """

    def __init__(
        self,
        hidden_size: int,
        fir_inner_filter_length: int | None = None,
        *,
        hyena_filter_groups: int | None = None,
        short_filter_length: int = 3,
        short_filter_bias: bool = False,
        state_size: int = 16,
        layout: str = "interleaved",
        num_attention_heads: int = 1,
        hyena_flip_x1x2: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        groups = hidden_size if hyena_filter_groups is None else hyena_filter_groups
        if groups < 1 or hidden_size % groups != 0:
            raise ValueError(f"HyenaCascade: hyena_filter_groups: expected a divisor of {hidden_size}, got {groups}")
        self.hidden_size, self.fir_inner_filter_length = hidden_size, fir_inner_filter_length
        self.layout, self.num_attention_heads, self.hyena_flip_x1x2 = layout, num_attention_heads, hyena_flip_x1x2
        like = {"device": device, "dtype": dtype}
        self.short_filter_weight = nn.Parameter(torch.empty(3 * hidden_size, 1, short_filter_length, **like))
        self.register_parameter(
            "short_filter_bias", nn.Parameter(torch.empty(3 * hidden_size, **like)) if short_filter_bias else None
        )
        has_D = fir_inner_filter_length is None or fir_inner_filter_length >= _CONVOLUTION_FROM
        self.register_parameter("D", nn.Parameter(torch.empty(hidden_size, **like)) if has_D else None)
        if fir_inner_filter_length is not None:
            self.h = nn.Parameter(torch.empty(groups, 1, fir_inner_filter_length, **like))
        else:  # fp32: poles are near one
            like["dtype"] = recurrence_dtype(dtype)
            self.log_poles = nn.Parameter(torch.empty(groups, state_size, 1, **like))
            self.residues = nn.Parameter(torch.empty(groups, state_size, **like))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        bound = self.short_filter_weight.shape[-1] ** -0.5
        nn.init.uniform_(self.short_filter_weight, -bound, bound)
        if self.short_filter_bias is not None:
            nn.init.zeros_(self.short_filter_bias)
        if self.D is not None:
            nn.init.zeros_(self.D)
        if self.fir_inner_filter_length is not None:
            nn.init.normal_(self.h, std=self.fir_inner_filter_length**-0.5)
        else:
            self.log_poles.uniform_(*_GAMMA).mul_(-math.exp(-1))
            nn.init.normal_(self.residues, std=_RESIDUES * self.residues.shape[1] ** -0.5)

    def forward(
        self,
        u: Tensor,
        state: HyenaState | None = None,
        *,
        padding_mask: Tensor | None = None,
        return_state: bool = False,
        context: Context | None = None,
    ) -> Tensor | tuple[Tensor, HyenaState]:
        """Returns y (B, L, hidden_size), or (y, state); `state` is the state before the first token. With a context from
        `gdn_cuda.parallel.context` u and padding_mask have this rank's tokens of sequences that ranks share, and there are no
        states."""
        if u.dim() != 3 or u.shape[-1] != 3 * self.hidden_size:
            raise ValueError(f"HyenaCascade: u: expected (B, L, {3 * self.hidden_size}), got {tuple(u.shape)}")
        channels = contiguous_mT(u.to(layer_dtype(u)))  # channels-last, interleaved x1, x2 and v would have stride 3
        if context is not None:
            from ..parallel.layer import check_tokens_of_rank  # imports torch.distributed's device meshes

            check_tokens_of_rank("HyenaCascade", context, "u", u, state=state, return_state=return_state)
            return self._on_ranks(context, channels, padding_mask)
        before = None if state is None else state.fir
        filtered = causal_conv1d(  # gradients of states that nobody reads would take a slower kernel
            channels, self.short_filter_weight[:, 0], self.short_filter_bias, None, before, return_final_states=return_state
        )
        z, fir = filtered if return_state else (filtered, None)
        if padding_mask is not None:
            z = z * padding_mask[:, None].to(z.dtype)
        x2, x1, v = self._split(z)
        inner = None if state is None else state.inner
        if self.fir_inner_filter_length is None:
            y, inner = hyena_long(x1, x2, v, self.residues, self.log_poles, self.D, initial_state=inner, return_state=True)
        elif self.fir_inner_filter_length <= _LONGEST_SHORT:
            y, inner = hyena_short(x1, x2, v, self.h, padding_mask=padding_mask, initial_state=inner, return_state=True)
        else:
            taps = self._taps_and_bias()
            y, inner = hyena_medium(x1, x2, v, *taps, padding_mask=padding_mask, initial_state=inner, return_state=True)
        return (y.mT, HyenaState(fir, inner)) if return_state else y.mT

    def _taps_and_bias(self) -> tuple[Tensor, Tensor]:
        """The current token is multiplied by a correlation's last tap, and by a convolution's first."""
        if self.D is not None:
            return self.h, self.D
        return self.h.flip(-1), self.h.new_zeros(self.hidden_size)

    def _on_ranks(self, context: Context, channels: Tensor, padding_mask: Tensor | None) -> Tensor:
        from ..parallel import causal_conv1d as conv_on_ranks
        from ..parallel.hyena import gated_convolution
        from ..parallel.hyena import hyena_long as long_on_ranks

        z = conv_on_ranks(channels, self.short_filter_weight[:, 0], self.short_filter_bias, context=context)
        if padding_mask is not None:
            z = z * padding_mask[:, None].to(z.dtype)
        x2, x1, v = self._split(z)
        taps = self.fir_inner_filter_length
        if taps is None:
            return long_on_ranks(context, x1, x2, v, self.residues, self.log_poles, self.D).mT
        if taps <= _LONGEST_SHORT:
            given: dict[str, Any] = {"weight": self.h, "gated_bias": False}
            return gated_convolution(context, hyena_short, x1, x2, v, taps, padding_mask, **given).mT
        weight, bias = self._taps_and_bias()
        return gated_convolution(context, hyena_medium, x1, x2, v, taps, padding_mask, weight=weight, bias=bias).mT

    def step(self, u: Tensor, state: HyenaState) -> tuple[Tensor, HyenaState]:
        """Returns y (B, hidden_size) and `state`, updated in place, for one token u (B, 3 hidden_size). Only `forward` has
        gradients; backward through a step raises."""
        if u.dim() != 2 or u.shape[-1] != 3 * self.hidden_size:
            raise ValueError(f"HyenaCascade: u: expected (B, {3 * self.hidden_size}), got {tuple(u.shape)}")
        u, implicit = u.to(layer_dtype(u)), self.fir_inner_filter_length is None
        by_forward = state.fir.dtype == torch.float64

        def inner(x2: Tensor, x1: Tensor, v: Tensor) -> dict[str, Any]:
            """Arguments of the call that follows the filter of the projections."""
            if implicit:
                step = {"x2": x2, "x1": x1, "v": v, "D": self.D, "residues": self.residues, "log_poles": self.log_poles}
                return step | {"state": state.inner}
            is_convolution = self.D is not None
            step = {"u": at_least_fp32(x1) * at_least_fp32(v), "fir_state": state.inner, "weight": self.h, "bias": self.D}
            return step | {"gated_bias": is_convolution, "flip_filter": is_convolution}

        def checks() -> None:
            """Checks the second call before the first one writes; filtering keeps the shape and dtype of projections."""
            if by_forward:  # `forward` checks, and writes the state last
                return
            step = inner(*self._split(u))
            check_call(
                "hyena_modal_step" if implicit else "hyena_fir_step", **step, out=torch.empty_like(next(iter(step.values())))
            )

        def run() -> Tensor:
            if by_forward:
                return after_token(self.forward(u[:, None], state, return_state=True), state)
            z, _ = hyena_fir_step(u, state.fir, self.short_filter_weight, self.short_filter_bias)
            x2, x1, v = self._split(z)
            if implicit:
                y, _ = hyena_modal_step(**inner(x2, x1, v))
                return y
            filtered, _ = hyena_fir_step(**inner(x2, x1, v))
            return (x2 * filtered).to(u.dtype)

        written = {"state.fir": state.fir, "state.inner": state.inner}
        return composed("HyenaCascade.step", "forward", written, {"u": u}, run, checks, self), state

    def default_state(self, batch: int) -> HyenaState:
        """The state before the first token: zeros."""
        zeros, dtype = self.short_filter_weight.new_zeros, state_dtype(self.short_filter_weight)
        explicit = self.fir_inner_filter_length
        width = self.residues.shape[1] if explicit is None else explicit - 1
        return HyenaState(
            zeros(batch, 3 * self.hidden_size, self.short_filter_weight.shape[-1] - 1, dtype=dtype),
            zeros(batch, self.hidden_size, width, dtype=dtype),
        )

    def _split(self, z: Tensor) -> Projections:
        return split_projections(z, self.num_attention_heads, self.layout, self.hyena_flip_x1x2)

    def extra_repr(self) -> str:
        inner = self.fir_inner_filter_length
        groups, size = self.residues.shape if inner is None else (self.h.shape[0], inner)
        sizes = f"hidden_size={self.hidden_size}, {'state_size' if inner is None else 'fir_inner_filter_length'}={size}"
        return f"{sizes}, hyena_filter_groups={groups}, short_filter_length={self.short_filter_weight.shape[-1]}"
