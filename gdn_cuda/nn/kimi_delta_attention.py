"""A Kimi Delta Attention layer, as Kimi Linear, GLM-5-Next and FLA have it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from ..gdn.state_codes import require_scales, zero_states
from ..layers.kda_decode_layer import TAPS, by_operators, kda_decode_layer
from ..layers.kda_prefill_layer import kda_prefill_layer
from ..operators.composed import as_one_call
from ..operators.dtypes import state_dtype
from ..operators.schema import refuse
from .dtypes import recurrence_dtype
from .separate import merge_parameters

if TYPE_CHECKING:
    from ..parallel import Context

_DT_MIN, _DT_MAX, _DT_FLOOR = 0.001, 0.1, 1e-4  # the initial range of softplus(dt_bias), and its lower bound
_FUSED_DTYPES, _FUSED_STATES = (torch.bfloat16, torch.float16), (torch.float32, torch.bfloat16, torch.int8)
_FUSED_HEAD_K, _FUSED_HEAD_V, _FUSED_TAPS = (64, 96, 128, 192, 256), range(8, 257, 8), range(2, TAPS + 1)
_CONVOLUTIONS = (("q_conv1d", "k_conv1d", "v_conv1d"),)
# Names in FLA, in Moonshot's checkpoints, and in transformers.
_SEPARATE = {
    "in_proj_qkv.weight": (("q_proj", "k_proj", "v_proj"),),
    "in_proj_fgb.weight": (
        ("f_proj.0", "g_proj.0", "b_proj"),
        ("f_a_proj", "g_a_proj", "b_proj"),
        ("forget_gate.f_a_proj", "g_a_proj", "b_proj"),
    ),
    "conv1d.weight": _CONVOLUTIONS,
    "conv1d.bias": _CONVOLUTIONS,
    "f_proj.weight": (("f_proj.1",), ("f_b_proj",), ("forget_gate.f_b_proj",)),
    "g_proj.weight": (("g_proj.1",), ("g_b_proj",)),
    "g_proj.bias": (("g_proj.1",), ("g_b_proj",)),
    "A_log": (("forget_gate",),),
    "dt_bias": (("forget_gate",),),
    "norm.weight": (("o_norm",),),
    "out_proj.weight": (("o_proj",),),
}


class KimiDeltaAttentionState(NamedTuple):
    """Slots of two pools, which calls update in place."""

    conv: Tensor  # (slots, C, columns), each slot (columns, C) in memory
    recurrent: Tensor  # (slots, Hv, dv, dk)
    scales: Tensor | None = None  # (slots, Hv, dv, dk / 32), fp32, of recurrent states of int8


class KimiDeltaAttention(nn.Module):
    """A Kimi Delta Attention layer: `forward` without a state; prompts by `forward` and tokens by `step`, with states in slots
    of pools.

    Projections q, k, v and b of the input, f and g of rank `gate_rank`, `kda_prefill_layer` or `kda_decode_layer`, and the
    output projection. Calls have gradients without a state, and none with one: run those under `torch.no_grad()`; in grad mode
    backward through their results or states raises.

    Initially exp(A_log) is uniform on (1, 16), with lower_bound 1, and softplus(dt_bias) log-uniform on (0.001, 0.1), as in
    FLA, and both parameters have the attribute `_no_weight_decay`, which training scripts read.

    `load_state_dict` takes a layer's parameters from FLA's KimiDeltaAttention (with gate_bias=True), from Moonshot's
    checkpoints of Kimi Linear, and from transformers' Kimi Linear and GLM-5-Next, whose separate projections and convolutions
    become one.

    Shapes:
        C = 2 Hk dk + Hv dv channels of the convolution
        in_proj_qkv: D → C; in_proj_fgb: D → 2 gate_rank + Hv; f_proj: gate_rank → Hv dk, g_proj: gate_rank → Hv dv;
          conv1d.weight: (C, 1, W); A_log: (Hv,), dt_bias: (Hv dk,), fp32 at least; norm.weight: (dv,); out_proj: Hv dv → D
        x: (B, L, D), the result is like x; packed by cu_seqlens (sequences + 1,), B is 1

    Parameters:
        hidden_size: D
        heads: (Hk, Hv), key heads and value heads
        head_k_dim, head_v_dim: dk, the size of a query or key; dv, that of a value
        conv_size: W, the taps of the convolution
        conv_bias: whether the convolution has a bias
        lower_bound: below 0: the bound of the gates' logarithms, as in `fused_kda_gating`; None: none
        gate_rank: the channels between the two projections of f and of g; None: dv
        gate_bias: whether g_proj has a bias
        norm_eps: added to the mean square in the output's norm
        allow_negative_eigenvalues: whether beta is twice the sigmoid
        device, dtype: of the parameters; A_log and dt_bias are fp32 at least

    Example:
        >>> layer = gdn_cuda.nn.KimiDeltaAttention(32, heads=(1, 2), head_k_dim=64, head_v_dim=16, dtype=torch.bfloat16)
        >>> state, slots = layer.new_state(slots=4), torch.tensor([3, 1])
        >>> with torch.no_grad():
        ...     y = layer(torch.randn(2, 70, 32).bfloat16(), state, state_indices=slots)
        ...     y_next = layer.step(torch.randn(2, 1, 32).bfloat16(), state, state_indices=slots)
        >>> y.shape, y_next.shape, state.recurrent.shape
        (torch.Size([2, 70, 32]), torch.Size([2, 1, 32]), torch.Size([4, 2, 16, 64]))
    """

    def __init__(
        self,
        hidden_size: int,
        heads: tuple[int, int] = (32, 32),
        head_k_dim: int = 128,
        head_v_dim: int = 128,
        *,
        conv_size: int = TAPS,
        conv_bias: bool = False,
        lower_bound: float | None = None,
        gate_rank: int | None = None,
        gate_bias: bool = False,
        norm_eps: float = 1e-5,
        allow_negative_eigenvalues: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if len(heads) != 2 or heads[0] < 1 or heads[1] < 1 or heads[1] % heads[0]:
            self._refuse("heads", "(Hk, Hv) with Hv a multiple of Hk", heads)
        if lower_bound is not None and not -math.inf < lower_bound < 0:
            self._refuse("lower_bound", "a finite number below 0, or None", lower_bound)
        self.hidden_size, self.heads, self.head_k_dim, self.head_v_dim = hidden_size, heads, head_k_dim, head_v_dim
        self.conv_size, self.lower_bound, self.norm_eps = conv_size, lower_bound, norm_eps
        self.gate_rank = head_v_dim if gate_rank is None else gate_rank
        self.allow_negative_eigenvalues = allow_negative_eigenvalues
        self.channels, rows = 2 * heads[0] * head_k_dim + heads[1] * head_v_dim, heads[1] * head_v_dim
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj_qkv = nn.Linear(hidden_size, self.channels, bias=False, **like)
        self.in_proj_fgb = nn.Linear(hidden_size, 2 * self.gate_rank + heads[1], bias=False, **like)
        self.f_proj = nn.Linear(self.gate_rank, heads[1] * head_k_dim, bias=False, **like)
        self.g_proj = nn.Linear(self.gate_rank, rows, bias=gate_bias, **like)
        self.conv1d = nn.Conv1d(self.channels, self.channels, conv_size, groups=self.channels, bias=conv_bias, **like)
        like["dtype"] = recurrence_dtype(dtype)
        self.A_log = nn.Parameter(torch.empty(heads[1], **like))
        self.dt_bias = nn.Parameter(torch.empty(heads[1] * head_k_dim, **like))
        self.reset_recurrence()
        like["dtype"] = dtype
        self.norm = nn.RMSNorm(head_v_dim, norm_eps, **like)
        self.out_proj = nn.Linear(rows, hidden_size, bias=False, **like)
        self.register_load_state_dict_pre_hook(_merge_parameters)

    @torch.no_grad()
    def reset_recurrence(self) -> None:
        """Draws A_log and dt_bias anew, and marks them: after `to_empty`, which loses the marks."""
        if self.lower_bound is None:
            self.A_log.uniform_(1, 16).log_()
        else:
            self.A_log.zero_()
        dt = torch.empty_like(self.dt_bias).uniform_(math.log(_DT_MIN), math.log(_DT_MAX)).exp_().clamp_(min=_DT_FLOOR)
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        for parameter in (self.A_log, self.dt_bias):
            parameter._no_weight_decay = True

    def new_state(self, slots: int, columns: int | None = None, dtype: torch.dtype | None = None) -> KimiDeltaAttentionState:
        """Pools of zeros. `columns`: columns of the convolution's states, by default conv_size − 1; `dtype`: dtype of the
        recurrent states, by default fp32, or fp64 for parameters in fp64; int8 has scales."""
        weight, columns = self.conv1d.weight, self.conv_size - 1 if columns is None else columns
        strides = columns * self.channels, 1, self.channels  # not a view: autograd would forbid a call to write it
        conv = torch.empty_strided((slots, self.channels, columns), strides, device=weight.device, dtype=weight.dtype).zero_()
        sizes = (slots, self.heads[1], self.head_v_dim, self.head_k_dim)
        return KimiDeltaAttentionState(conv, *zero_states(sizes, dtype or state_dtype(weight), weight.device))

    def forward(
        self,
        x: Tensor,
        state: KimiDeltaAttentionState | None = None,
        *,
        state_indices: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        has_initial_state: Tensor | None = None,
        null_slot: int | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Prompts with a state, and sequences that start from zeros without; arguments as of `kda_prefill_layer`. With a
        context from `gdn_cuda.parallel.context`, x has this rank's tokens of sequences that ranks share, and the context, not
        cu_seqlens, says which."""
        self._check(x)
        if context is not None:
            from ..parallel.layer import check_tokens_of_rank, kda_layer_on_ranks  # imports torch.distributed's device meshes

            check_tokens_of_rank("KimiDeltaAttention", context, "x", x, state=state, cu_seqlens=cu_seqlens)
        if state is not None:
            more: dict[str, Any] = {"state_indices": state_indices, "null_slot": null_slot, "cu_seqlens": cu_seqlens}
            more |= {"has_initial_state": has_initial_state, "key_heads": self.heads[0]}
            return self._run("KimiDeltaAttention", lambda: self._arguments(x), kda_prefill_layer, x, state, more)
        for name, given in (("state_indices", state_indices), ("has_initial_state", has_initial_state)):
            if given is not None:
                self._refuse(name, "None without a state", "a tensor")
        layer = partial(kda_prefill_layer, cu_seqlens=cu_seqlens) if context is None else partial(kda_layer_on_ranks, context)
        out: Tensor = self.out_proj(layer(**self._arguments(x), key_heads=self.heads[0]))
        return out

    def step(
        self,
        x: Tensor,
        state: KimiDeltaAttentionState,
        *,
        state_indices: Tensor | None = None,
        null_slot: int | None = None,
    ) -> Tensor:
        """A token of every sequence, x (B, 1, D); arguments as of `kda_decode_layer`. Inputs that it does not support, for
        example fp32, are computed by a sequence of operators."""
        self._check(x)
        if x.shape[1] != 1:
            self._refuse("x", f"(B, 1, hidden_size={self.hidden_size})", tuple(x.shape))
        dims_fit = self.head_k_dim in _FUSED_HEAD_K and self.head_v_dim in _FUSED_HEAD_V and self.conv_size in _FUSED_TAPS
        fused = dims_fit and x.dtype in _FUSED_DTYPES and state.recurrent.dtype in _FUSED_STATES
        layer = kda_decode_layer if fused else by_operators
        more = {"state_indices": state_indices, "null_slot": null_slot}
        return self._run("KimiDeltaAttention.step", lambda: self._arguments(x[:, 0]), layer, x, state, more)

    def _run(
        self,
        function: str,
        arguments: Callable[[], dict[str, Any]],
        layer: Callable[..., Tensor],
        x: Tensor,
        state: KimiDeltaAttentionState,
        more: dict[str, Any],
    ) -> Tensor:
        def run() -> Tensor:
            pools = {"conv_pool": state.conv, "state_pool": state.recurrent, "state_scales": state.scales}
            out: Tensor = self.out_proj(layer(**arguments(), **pools, **more))
            return out.view(x.shape)

        require_scales("KimiDeltaAttention", "state.scales", state.recurrent, state.scales)
        written = {f"state.{name}": pool for name, pool in state._asdict().items() if pool is not None}
        return as_one_call(function, "forward without a state", written, {"x": x}, run, self)

    def _arguments(self, x: Tensor) -> dict[str, Any]:
        """The arguments of a layer between its projections, for x (…, D)."""
        f, g, b = self.in_proj_fgb(x).split([self.gate_rank, self.gate_rank, self.heads[1]], -1)
        return {
            "qkv": self.in_proj_qkv(x),
            "a": self.f_proj(f).unflatten(-1, (self.heads[1], self.head_k_dim)),
            "b": b,
            "z": self.g_proj(g),
            "conv_weight": self.conv1d.weight[:, 0],
            "conv_bias": self.conv1d.bias,
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
            "lower_bound": self.lower_bound,
            "norm_weight": self.norm.weight,
            "norm_eps": self.norm_eps,
            "allow_negative_eigenvalues": self.allow_negative_eigenvalues,
        }

    def _check(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.hidden_size:
            self._refuse("x", f"(B, L, hidden_size={self.hidden_size})", tuple(x.shape))

    def _refuse(self, argument: str, expected: str, got: Any) -> NoReturn:
        refuse("KimiDeltaAttention", argument, expected, got)

    def extra_repr(self) -> str:
        heads = f"heads={self.heads}, head_k_dim={self.head_k_dim}, head_v_dim={self.head_v_dim}"
        return f"hidden_size={self.hidden_size}, {heads}, lower_bound={self.lower_bound}"


def _merge_parameters(_: nn.Module, state_dict: dict[str, Any], prefix: str, *__: Any) -> None:
    merge_parameters(state_dict, prefix, _SEPARATE)
    for name in ("A_log", "dt_bias"):  # A_log is (1, 1, Hv, 1) in some
        if isinstance(given := state_dict.get(prefix + name), Tensor):
            state_dict[prefix + name] = given.flatten()
