"""FLA's Gated Delta Net layer."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..conv.causal_conv1d import causal_conv1d
from ..gdn import chunked_forward
from ..gdn.by_token import by_token
from ..layers.rms_norm_gated import rms_norm_gated
from ..operators.caller import name_errors_of
from ..operators.dtypes import state_dtype
from ..operators.schema import refuse
from .fla_arguments import widened

_NAME = "GatedDeltaNet"
_MODES, _ACTIVATIONS = ("chunk", "fused_recurrent"), ("swish", "silu", "sigmoid")
_LONGEST_STEP = 64  # tokens that FLA computes token by token outside training
_A_MAX, _DT_MIN, _DT_MAX, _DT_FLOOR = 16.0, 1e-3, 0.1, 1e-4


class GatedDeltaNet(nn.Module):
    """FLA's layer `fla.layers.GatedDeltaNet`: the same arguments, names and initial values of parameters, and results.

    It trains: every parameter and the input have gradients, also of padded and packed batches. A seed gives FLA's initial
    values, and state dicts go from either to the other. Caches are FLA's: `past_key_values[layer_idx]` has recurrent_state
    (N, HV, V, K) and conv_state, three of (N, D, conv_size); `past_key_values.update` stores them.

    Shapes:
        hidden_states: (B, T, hidden_size); the first result is like it; packed by cu_seqlens (N + 1,), B is 1
        attention_mask: (B, T or more), 0 for padding, of which the last T columns count; outputs of padding are 0

    Parameters:
        hidden_size: size of a token
        expand_v: size of a value head over that of a key head
        head_dim: size of a query and key head
        num_heads: query and key heads
        num_v_heads: value heads, a multiple of num_heads; None: as many
        mode: "fused_recurrent" computes all calls token by token, in the bits of decode, also in training; "chunk" only those
          of up to 64 tokens outside training. Gradients are the same
        use_gate: whether the output's norm has a gate, g_proj
        use_short_conv: whether queries, keys and values pass a short convolution; otherwise SiLU alone
        allow_neg_eigval: whether beta is twice the sigmoid
        conv_size: taps of the convolution
        conv_bias: whether the convolution has a bias
        layer_idx: the layer's index in caches
        norm_eps: added to the mean square in the output's norm
        output_gate_activation: "swish", "silu" or "sigmoid"

    Example:
        >>> layer = gdn_cuda.compat.fla.GatedDeltaNet(64, head_dim=32, num_heads=2)
        >>> output, _, _ = layer(torch.randn(2, 70, 64))
        >>> output.square().mean().backward()
        >>> output.shape, bool(layer.A_log.grad.isfinite().all())
        (torch.Size([2, 70, 64]), True)
    """

    def __init__(
        self,
        hidden_size: int = 2048,
        expand_v: float = 2,
        head_dim: int = 256,
        num_heads: int = 6,
        num_v_heads: int | None = None,
        mode: str = "chunk",
        use_gate: bool = True,
        use_short_conv: bool = True,
        allow_neg_eigval: bool = False,
        conv_size: int = 4,
        conv_bias: bool = False,
        layer_idx: int | None = None,
        norm_eps: float = 1e-5,
        output_gate_activation: str = "swish",
        **others: Any,
    ):
        super().__init__()
        v_heads = num_heads if num_v_heads is None else num_v_heads
        if mode not in _MODES:
            refuse(_NAME, "mode", " or ".join(map(repr, _MODES)), repr(mode))
        if output_gate_activation not in _ACTIVATIONS:
            refuse(_NAME, "output_gate_activation", "'swish', 'silu' or 'sigmoid'", repr(output_gate_activation))
        if num_heads < 1 or v_heads < 1 or v_heads % num_heads:
            refuse(_NAME, "num_v_heads", f"a multiple of num_heads={num_heads}", v_heads)
        if not math.isclose(head_dim * expand_v, int(head_dim * expand_v), rel_tol=1e-5):
            refuse(_NAME, "expand_v", f"a whole number of columns, times head_dim={head_dim}", expand_v)
        self.mode, self.hidden_size, self.expand_v = mode, hidden_size, expand_v
        self.use_gate, self.use_short_conv, self.allow_neg_eigval = use_gate, use_short_conv, allow_neg_eigval
        self.conv_size, self.conv_bias, self.layer_idx, self.norm_eps = conv_size, conv_bias, layer_idx, norm_eps
        self.head_dim, self.num_heads, self.num_v_heads = head_dim, num_heads, v_heads
        self.head_k_dim, self.head_v_dim = head_dim, int(head_dim * expand_v)
        self.key_dim, self.value_dim = num_heads * self.head_k_dim, v_heads * self.head_v_dim
        self.output_gate_activation = output_gate_activation

        # The order is FLA's: a seed gives the same values.
        self.q_proj = nn.Linear(hidden_size, self.key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.a_proj = nn.Linear(hidden_size, v_heads, bias=False)
        self.b_proj = nn.Linear(hidden_size, v_heads, bias=False)
        self.A_log = _without_decay(torch.empty(v_heads, dtype=torch.float32).uniform_(0, _A_MAX).log())
        exponent = torch.rand(v_heads) * (math.log(_DT_MAX) - math.log(_DT_MIN)) + math.log(_DT_MIN)
        dt = exponent.exp().clamp(min=_DT_FLOOR)
        self.dt_bias = _without_decay(dt + torch.log(-torch.expm1(-dt)))  # softplus of it is dt
        if use_short_conv:
            self.q_conv1d = self._conv1d(self.key_dim)
            self.k_conv1d = self._conv1d(self.key_dim)
            self.v_conv1d = self._conv1d(self.value_dim)
        else:
            warnings.warn("GatedDeltaNet: without its short convolutions the layer models much less", stacklevel=2)
        if use_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.o_norm = nn.RMSNorm(self.head_v_dim, norm_eps, dtype=None if use_gate else torch.float32)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)

    def _conv1d(self, channels: int) -> nn.Conv1d:
        return nn.Conv1d(channels, channels, self.conv_size, padding=self.conv_size - 1, groups=channels, bias=self.conv_bias)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        *,
        cu_seqlens: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None, Any]:
        """Returns the output, None and `past_key_values`, which is updated. `cu_seqlens` goes before `attention_mask`;
        `output_attentions` and other keywords change nothing."""
        if hidden_states.dim() != 3 or hidden_states.shape[-1] != self.hidden_size:
            refuse(_NAME, "hidden_states", f"(B, T, hidden_size={self.hidden_size})", tuple(hidden_states.shape))
        index = -1 if self.layer_idx is None else self.layer_idx
        if past_key_values is not None and index < 0:
            refuse(_NAME, "past_key_values", "None in a layer that was made without layer_idx", "a cache")
        batch, length, _ = hidden_states.shape
        cached = None
        if past_key_values is not None and len(past_key_values) > index:
            cached = past_key_values[index]
        is_step = (length <= _LONGEST_STEP and not self.training) or self.mode == "fused_recurrent"
        x, kept = hidden_states, None
        if cu_seqlens is None and attention_mask is not None:
            x, kept, cu_seqlens = _unpadded(x, attention_mask)

        q, k, v, conv_state = self._qkv(x, cached, bool(use_cache), cu_seqlens)
        out, recurrent_state = self._recurrence(x, q, k, v, cached, bool(use_cache), cu_seqlens, is_step)
        if past_key_values is not None:
            states = {"recurrent_state": recurrent_state, "conv_state": conv_state}
            past_key_values.update(layer_idx=index, offset=length, **states)
        gate = self.g_proj(x).unflatten(-1, (self.num_v_heads, self.head_v_dim)) if self.use_gate else None
        y = self.o_proj(rms_norm_gated(out, gate, self.o_norm.weight, self.norm_eps, self.output_gate_activation).flatten(-2))
        if kept is not None:
            y = y.new_zeros(batch * length, self.hidden_size).index_copy(0, kept, y.squeeze(0)).view(batch, length, -1)
        return y, None, past_key_values

    def _qkv(
        self, x: Tensor, cached: Any, use_cache: bool, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...] | None]:
        """Queries, keys and values by head, and states of the convolution, the last conv_size inputs."""
        sizes, states = (self.key_dim, self.key_dim, self.value_dim), None
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        if self.use_short_conv:
            convs = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
            weight = torch.cat([conv.weight[:, 0] for conv in convs])
            bias = torch.cat([conv.bias for conv in convs if conv.bias is not None]) if self.conv_bias else None
            before = None if cached is None or cached["conv_state"] is None else torch.cat(cached["conv_state"], 1)
            qkv, after = conv_by_token(qkv, weight, bias, before, use_cache, "silu", cu_seqlens)
            states = None if after is None else after.split(sizes, 1)
        else:
            qkv = F.silu(qkv)
        q, k, v = qkv.split(sizes, -1)
        q, k = (y.unflatten(-1, (self.num_heads, self.head_k_dim)) for y in (q, k))
        return q, k, v.unflatten(-1, (self.num_v_heads, self.head_v_dim)), states

    def _recurrence(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cached: Any,
        use_cache: bool,
        cu_seqlens: Tensor | None,
        is_step: bool,
    ) -> tuple[Tensor, Tensor | None]:
        gates: dict[str, Any] = {"gate": self.a_proj(x), "beta": self.b_proj(x), "A_log": self.A_log, "dt_bias": self.dt_bias}
        gates |= {"beta_is_logit": True, "allow_negative_eigenvalues": self.allow_neg_eigval, "cu_seqlens": cu_seqlens}
        state = None if cached is None else cached["recurrent_state"]
        options: dict[str, Any] = {"use_qk_l2norm": True, "output_final_state": use_cache}
        if is_step:
            state = widened(type(self).__name__, state, v, "past_key_values")
            return by_token(q, k, v, state=state, **gates, **options)
        return chunked_forward(q, k, v, state=state, **gates, **options, state_dtype=state_dtype(v))

    def extra_repr(self) -> str:
        heads = f"num_heads={self.num_heads}, num_v_heads={self.num_v_heads}"
        return f"hidden_size={self.hidden_size}, {heads}, head_k_dim={self.head_k_dim}, head_v_dim={self.head_v_dim}"


def _without_decay(x: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(x)
    parameter._no_weight_decay = True
    return parameter


def _unpadded(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens that a mask (B, T or more) keeps as one packed row, their indices in (B·T,), and cu_seqlens."""
    if mask.dim() != 2 or mask.shape[0] != x.shape[0] or mask.shape[1] < x.shape[1]:
        refuse(_NAME, "attention_mask", f"(B={x.shape[0]}, T={x.shape[1]} or more)", tuple(mask.shape))
    mask = mask[:, mask.shape[1] - x.shape[1] :] != 0
    kept = mask.flatten().nonzero()[:, 0]
    return x.flatten(0, 1)[kept][None], kept, F.pad(mask.sum(1).cumsum(0), (1, 0))


def conv_by_token(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    activation: str | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """The convolution of x (B, T, D) by a weight (D, W), with FLA's states (N, D, W), the last W inputs. All have gradients."""
    if initial_state is None and not output_final_state:
        return causal_conv1d(x.mT, weight, bias, activation=activation, cu_seqlens=cu_seqlens).mT, None
    # A first tap of 0 gives the convolution a state of W inputs.
    taps = F.pad(weight, (1, 0))
    state = None if initial_state is None else initial_state.to(x.dtype)
    out, after = causal_conv1d(x.mT, taps, bias, None, state, True, activation, cu_seqlens=cu_seqlens)
    return out.mT, after.to(x.dtype) if output_final_state else None


name_errors_of(GatedDeltaNet)
