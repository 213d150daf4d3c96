"""A Gated Delta Net layer, as Qwen3-Next, Qwen3.5, OLMo-Hybrid and FLA have it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..gdn.state_codes import require_scales, zero_states
from ..layers import gdn_decode_layer, gdn_prefill_layer
from ..layers.decode_layer import MOST_TOKENS, TAPS, by_operators
from ..operators.composed import as_one_call
from ..operators.dtypes import state_dtype
from .dtypes import recurrence_dtype
from .separate import merge_parameters, separate_parameters

if TYPE_CHECKING:
    from ..parallel import Context

_DT_MIN, _DT_MAX = 0.001, 0.1  # the initial range of softplus(dt_bias)
_FUSED_DTYPES, _FUSED_STATES = (torch.bfloat16, torch.float16), (torch.float32, torch.bfloat16, torch.int8)
_FUSED_HEAD_K, _FUSED_HEAD_V = (64, 96, 128, 192, 256), range(8, 257, 8)
# Names in Qwen3.5, OLMo-Hybrid and FLA.
_SEPARATE = {
    "in_proj_qkvz.weight": (("in_proj_qkv", "in_proj_z"), ("q_proj", "k_proj", "v_proj", "g_proj")),
    "in_proj_ba.weight": (("in_proj_b", "in_proj_a"), ("b_proj", "a_proj")),
    "conv1d.weight": (("q_conv1d", "k_conv1d", "v_conv1d"),),
    "conv1d.bias": (("q_conv1d", "k_conv1d", "v_conv1d"),),
    "norm.weight": (("o_norm",),),
    "out_proj.weight": (("o_proj",),),
}


class GatedDeltaNetState(NamedTuple):
    """Slots of two pools, which calls update in place."""

    conv: Tensor  # (slots, C, columns), each slot (columns, C) in memory
    recurrent: Tensor  # (slots, Hv, dv, dk)
    scales: Tensor | None = None  # (slots, Hv, dv, dk / 32), fp32, of recurrent states of int8


class GatedDeltaNet(nn.Module):
    """A Gated Delta Net layer: training by `forward` without a state; prompts by `forward` and tokens by `step`, with states in
    slots of pools.

    Projections q, k, v, z, b and a of the input, `gdn_prefill_layer` or `gdn_decode_layer`, and the output projection.

    Without a state, `forward` has gradients for x and all parameters, also of packed sequences, under autocast,
    `torch.compile(fullgraph=True)` and activation checkpointing. Calls with a state have none: run them under
    `torch.no_grad()`; in grad mode backward through their results or states raises.

    Initially exp(A_log) is uniform on (0, 16) and softplus(dt_bias) log-uniform on (0.001, 0.1), as in FLA, and both parameters
    have the attribute `_no_weight_decay`, which training scripts read.

    `load_state_dict` takes a layer's parameters from transformers' Qwen3-Next with layout "qwen3_next"; with "qwen3_5" from its
    Qwen3.5 and OLMo-Hybrid (with allow_negative_eigenvalues, norm_eps=1e-5) and from FLA's GatedDeltaNet, whose separate
    projections and convolutions become one.

    Shapes:
        C = 2 Hk dk + Hv dv channels of the convolution
        in_proj_qkvz: D → 2 Hk dk + 2 Hv dv; in_proj_ba: D → 2 Hv; conv1d.weight: (C, 1, 4); A_log, dt_bias: (Hv,), fp32
          at least; norm.weight: (dv,); out_proj: Hv dv → D
        x: (B, L, D), the result is like x; packed by cu_seqlens (sequences + 1,), B is 1

    Parameters:
        hidden_size: D
        heads: (Hk, Hv), key heads and value heads
        head_k_dim, head_v_dim: dk, the size of a query or key; dv, that of a value
        layout: order of in_proj_qkvz and in_proj_ba: "qwen3_next" by key heads, or "qwen3_5" q, k, v, z and b, a
        norm_eps: added to the mean square in the output's norm
        conv_bias: whether the convolution has a bias
        allow_negative_eigenvalues: whether beta is twice the sigmoid
        device, dtype: of the parameters; A_log and dt_bias are fp32 at least

    Example:
        >>> layer = gdn_cuda.nn.GatedDeltaNet(32, heads=(1, 2), head_k_dim=64, head_v_dim=16, dtype=torch.bfloat16)
        >>> layer(torch.randn(2, 70, 32).bfloat16()).square().mean().backward()  # training
        >>> layer.A_log.grad.shape
        torch.Size([2])
        >>> state, slots = layer.new_state(slots=4), torch.tensor([3, 1])
        >>> with torch.no_grad():  # inference
        ...     y = layer(torch.randn(2, 70, 32).bfloat16(), state, state_indices=slots)
        ...     y_next = layer.step(torch.randn(2, 1, 32).bfloat16(), state, state_indices=slots)
        >>> y.shape, y_next.shape, state.recurrent.shape
        (torch.Size([2, 70, 32]), torch.Size([2, 1, 32]), torch.Size([4, 2, 16, 64]))
    """

    def __init__(
        self,
        hidden_size: int,
        heads: tuple[int, int] = (16, 32),
        head_k_dim: int = 128,
        head_v_dim: int = 128,
        *,
        layout: str = "qwen3_next",
        norm_eps: float = 1e-6,
        conv_bias: bool = False,
        allow_negative_eigenvalues: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if layout not in ("qwen3_next", "qwen3_5"):
            raise ValueError(f"GatedDeltaNet: layout: expected 'qwen3_next' or 'qwen3_5', got {layout!r}")
        if len(heads) != 2 or heads[0] < 1 or heads[1] < 1 or heads[1] % heads[0]:
            raise ValueError(f"GatedDeltaNet: heads: expected (Hk, Hv) with Hv a multiple of Hk, got {heads}")
        self.hidden_size, self.heads, self.head_k_dim, self.head_v_dim = hidden_size, heads, head_k_dim, head_v_dim
        self.layout, self.norm_eps, self.allow_negative_eigenvalues = layout, norm_eps, allow_negative_eigenvalues
        self.channels, rows = 2 * heads[0] * head_k_dim + heads[1] * head_v_dim, heads[1] * head_v_dim
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj_qkvz = nn.Linear(hidden_size, self.channels + rows, bias=False, **like)
        self.in_proj_ba = nn.Linear(hidden_size, 2 * heads[1], bias=False, **like)
        self.conv1d = nn.Conv1d(self.channels, self.channels, TAPS, groups=self.channels, bias=conv_bias, **like)
        like["dtype"] = recurrence_dtype(dtype)
        self.A_log = nn.Parameter(torch.empty(heads[1], **like))
        self.dt_bias = nn.Parameter(torch.empty(heads[1], **like))
        self.reset_recurrence()
        like["dtype"] = dtype
        self.norm = nn.RMSNorm(head_v_dim, norm_eps, **like)
        self.out_proj = nn.Linear(rows, hidden_size, bias=False, **like)
        self.register_load_state_dict_pre_hook(_merge_parameters)

    @torch.no_grad()
    def reset_recurrence(self) -> None:
        """Draws A_log and dt_bias anew, and marks them: after `to_empty`, which loses the marks."""
        smallest = torch.finfo(self.A_log.dtype).tiny  # 0 would be drawn, too
        self.A_log.uniform_(smallest, 16).log_()
        dt = torch.empty_like(self.dt_bias).uniform_(math.log(_DT_MIN), math.log(_DT_MAX)).exp_()
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        for parameter in (self.A_log, self.dt_bias):
            parameter._no_weight_decay = True

    def new_state(self, slots: int, columns: int = TAPS - 1, dtype: torch.dtype | None = None) -> GatedDeltaNetState:
        """Pools of zeros. `columns`: columns of the convolution's states, T + 2 if steps verify T tokens; `dtype`: dtype of the
        recurrent states, by default fp32, or fp64 for parameters in fp64; int8 has scales."""
        weight = self.conv1d.weight
        strides = columns * self.channels, 1, self.channels  # not a view: autograd would forbid a call to write it
        conv = torch.empty_strided((slots, self.channels, columns), strides, device=weight.device, dtype=weight.dtype).zero_()
        sizes = (slots, self.heads[1], self.head_v_dim, self.head_k_dim)
        return GatedDeltaNetState(conv, *zero_states(sizes, dtype or state_dtype(weight), weight.device))

    def forward(
        self,
        x: Tensor,
        state: GatedDeltaNetState | None = None,
        *,
        state_indices: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        has_initial_state: Tensor | None = None,
        null_slot: int | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Prompts with a state, and sequences to train on without; arguments as of `gdn_prefill_layer`. Without a state,
        sequences start from zeros, and the call has gradients. With a context from `gdn_cuda.parallel.context` too, x has this
        rank's tokens of sequences that ranks share, and the context, not cu_seqlens, says which."""
        self._check(x)
        if context is not None:
            from ..parallel.layer import check_tokens_of_rank, layer_on_ranks  # imports torch.distributed's device meshes

            check_tokens_of_rank("GatedDeltaNet", context, "x", x, state=state, cu_seqlens=cu_seqlens)
        if state is not None:
            more: dict[str, Any] = {"state_indices": state_indices, "null_slot": null_slot}
            more |= {"cu_seqlens": cu_seqlens, "has_initial_state": has_initial_state}
            return self._run("GatedDeltaNet", gdn_prefill_layer, x, state, more)
        for name, given in (("state_indices", state_indices), ("has_initial_state", has_initial_state)):
            if given is not None:
                raise ValueError(f"GatedDeltaNet: {name}: expected None without a state, got a tensor")
        if context is None:
            inner = gdn_prefill_layer(**self._arguments(x), cu_seqlens=cu_seqlens)
        else:
            inner = layer_on_ranks(context, **self._arguments(x))
        out: Tensor = self.out_proj(inner)
        return out

    def step(
        self,
        x: Tensor,
        state: GatedDeltaNetState,
        *,
        state_indices: Tensor | None = None,
        num_accepted_tokens: Tensor | None = None,
        null_slot: int | None = None,
    ) -> Tensor:
        """A token or a few of every sequence; arguments as of `gdn_decode_layer`. Inputs that it does not support,
        for example fp32, are computed by a sequence of operators."""
        self._check(x)
        more = {"state_indices": state_indices, "num_accepted_tokens": num_accepted_tokens, "null_slot": null_slot}
        dims_fit = self.head_k_dim in _FUSED_HEAD_K and self.head_v_dim in _FUSED_HEAD_V
        dtypes_fit = x.dtype in _FUSED_DTYPES and state.recurrent.dtype in _FUSED_STATES
        fused = dims_fit and dtypes_fit and x.shape[1] <= MOST_TOKENS
        return self._run("GatedDeltaNet.step", gdn_decode_layer if fused else by_operators, x, state, more)

    def _run(
        self, function: str, layer: Callable[..., Tensor], x: Tensor, state: GatedDeltaNetState, more: dict[str, Any]
    ) -> Tensor:
        def run() -> Tensor:
            pools = {"conv_pool": state.conv, "state_pool": state.recurrent, "state_scales": state.scales}
            out: Tensor = self.out_proj(layer(**self._arguments(x), **pools, **more))
            return out

        require_scales("GatedDeltaNet", "state.scales", state.recurrent, state.scales)
        written = {f"state.{name}": pool for name, pool in state._asdict().items() if pool is not None}
        return as_one_call(function, "forward without a state", written, {"x": x}, run, self)

    def _arguments(self, x: Tensor) -> dict[str, Any]:
        return {
            "qkvz": self.in_proj_qkvz(x),
            "ba": self.in_proj_ba(x),
            "conv_weight": self.conv1d.weight[:, 0],
            "conv_bias": self.conv1d.bias,
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
            "norm_weight": self.norm.weight,
            "norm_eps": self.norm_eps,
            "heads": self.heads,
            "dk": self.head_k_dim,
            "dv": self.head_v_dim,
            "layout": self.layout,
            "allow_negative_eigenvalues": self.allow_negative_eigenvalues,
        }

    def _check(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.hidden_size:
            raise ValueError(f"GatedDeltaNet: x: expected (B, L, hidden_size={self.hidden_size}), got {tuple(x.shape)}")

    def extra_repr(self) -> str:
        heads = f"heads={self.heads}, head_k_dim={self.head_k_dim}, head_v_dim={self.head_v_dim}"
        return f"hidden_size={self.hidden_size}, {heads}, layout={self.layout!r}"


def _merge_parameters(layer: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, choices in _SEPARATE.items():
        projects = name.startswith("in_proj") and separate_parameters(state_dict, prefix, name, choices)
        if projects and layer.layout != "qwen3_5":
            raise ValueError(f"GatedDeltaNet: layout: expected 'qwen3_5' for separate projections, got {layer.layout!r}")
    merge_parameters(state_dict, prefix, _SEPARATE)
