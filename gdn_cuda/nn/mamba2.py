"""Mamba-2's layer, around `ssd_scan`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..conv.causal_conv1d import causal_conv1d
from ..layers.conv_scan import Heads, Options, conv_scan
from ..layers.mamba2_decode_layer import NO_LIMIT, STATES, TAPS, by_operators, mamba2_decode_layer
from ..layers.rms_norm_gated import rms_norm_gated
from ..operators.composed import composed
from ..operators.schema import refuse, require_tensor
from ..ssd import ssd_scan
from .dtypes import at_least_fp32, recurrence_dtype
from .tensors import after_token

if TYPE_CHECKING:
    from ..parallel import Context

# Where a step is one launch: 1.07 to 1.11 times as fast as two for one and four sequences of eight groups on an H200, and up to
# 1.4 times as slow for 16 and more, or one group (docs/benchmarks/scan.md).
_FEWEST_GROUPS, _MOST_SEQUENCES = 8, 8


class Mamba2State(NamedTuple):
    """The state of a Mamba-2 layer between tokens."""

    conv: Tensor  # (B, d_conv − 1, d_ssm + 2·ngroups·d_state): the last inputs of the convolution
    ssm: Tensor  # (B, heads, headdim, d_state)


class Mamba2(nn.Module):
    """Mamba-2's layer: out_proj(norm(ssd_scan(silu(conv1d(x, B, C)), dt), z)), where (z, x, B, C, dt) = in_proj(u).

    Parameters have the names, shapes and initial values of mamba_ssm's `Mamba2`, so checkpoints load; so do those of
    transformers' Mamba-2 mixers. x, B, C, z and dt are read in place, as views of the projection. Without states and context,
    backward computes the convolution again.

    Initially exp(A_log) is uniform on A_init_range, D is 1, and softplus(dt_bias) is log-uniform on [dt_min, dt_max], at least
    dt_init_floor. These three have the attribute `_no_weight_decay`, which training scripts read.

    Shapes:
        H = d_ssm / headdim heads, C = d_ssm + 2·ngroups·d_state channels of the convolution, d_inner = expand · d_model
        in_proj.weight (2·d_inner + 2·ngroups·d_state + H, d_model), conv1d.weight (C, 1, W), conv1d.bias (C), dt_bias and A_log
          (H), D (H) or (d_ssm), norm.weight (d_ssm), out_proj.weight (d_model, d_inner)
        u, y: (B, L, d_model)

    Parameters:
        d_model: the channels of u
        d_state: the states of a channel of the scan
        d_conv: W, the taps of the convolution
        conv_init: conv1d.weight is uniform on ± conv_init; None: as torch's Conv1d draws it
        expand: d_inner / d_model
        headdim: the channels of a head
        d_ssm: the channels of the scan, by default d_inner; the other d_inner − d_ssm are a gated MLP, silu(z₀) · x₀
        ngroups: the groups of heads that share B and C; the norm is over the channels of a group
        A_init_range: (lowest, highest) initial −A
        D_has_hdim: whether D is by channel, and not by head
        rmsnorm: whether the norm is there; without it the scan multiplies by silu(z)
        norm_before_gate: norm(y) · silu(z), and not norm(y · silu(z))
        dt_min, dt_max, dt_init_floor: the initial range of δ, and its lower bound
        dt_limit: the lower and upper bound of δ, in steps too
        bias, conv_bias: whether in_proj and out_proj have biases, and whether the convolution has
        chunk_size: changes nothing
        device, dtype: of the parameters; A_log, D and dt_bias are fp32, or fp64

    Example:
        >>> layer = gdn_cuda.nn.Mamba2(32, d_state=16, headdim=16)
        >>> y, state = layer(torch.randn(2, 10, 32), return_last_state=True)  # a prompt
        >>> y_next, state = layer.step(torch.randn(2, 32), state)
        >>> y.shape, y_next.shape, state.conv.shape, state.ssm.shape
        (torch.Size([2, 10, 32]), torch.Size([2, 32]), torch.Size([2, 3, 96]), torch.Size([2, 4, 16, 16]))
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: float = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        *,
        A_init_range: tuple[float, float] = (1, 16),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = NO_LIMIT,
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.conv_init = d_model, d_state, d_conv, conv_init
        self.d_inner = int(expand * d_model)
        self.d_ssm = self.d_inner if d_ssm is None else d_ssm
        self.headdim, self.ngroups, self.chunk_size = headdim, ngroups, chunk_size
        if not 0 < self.d_ssm <= self.d_inner or self.d_ssm % headdim:
            self._refuse("d_ssm", f"a multiple of headdim {headdim}, at most {self.d_inner}", self.d_ssm)
        self.nheads = self.d_ssm // headdim
        if ngroups < 1 or self.nheads % ngroups:
            self._refuse("ngroups", f"a divisor of the {self.nheads} heads", ngroups)
        if not 0 < A_init_range[0] <= A_init_range[1]:
            self._refuse("A_init_range", "(lowest, highest) above 0", A_init_range)
        self.D_has_hdim, self.rmsnorm, self.norm_before_gate = D_has_hdim, rmsnorm, norm_before_gate
        self.A_init_range, self.dt_min, self.dt_max, self.dt_init_floor = A_init_range, dt_min, dt_max, dt_init_floor
        self.dt_limit = (float(dt_limit[0]), float(dt_limit[1]))
        self.heads = Heads(self.nheads, headdim, ngroups, d_state)
        self.conv_dim = self.d_ssm + 2 * ngroups * d_state
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner + 2 * ngroups * d_state + self.nheads, bias=bias, **like)
        self.conv1d = nn.Conv1d(self.conv_dim, self.conv_dim, d_conv, groups=self.conv_dim, bias=conv_bias, **like)
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        like["dtype"] = recurrence_dtype(dtype)
        self.dt_bias = nn.Parameter(torch.empty(self.nheads, **like))
        self.A_log = nn.Parameter(torch.empty(self.nheads, **like))
        self.D = nn.Parameter(torch.empty(self.d_ssm if D_has_hdim else self.nheads, **like))
        self.reset_recurrence()
        like["dtype"] = dtype
        if rmsnorm:
            self.norm = nn.RMSNorm(self.d_ssm, 1e-5, **like)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **like)

    @torch.no_grad()
    def reset_recurrence(self) -> None:
        """Draws A_log, D and dt_bias anew, and marks them: after `to_empty`, which loses the marks."""
        self.A_log.uniform_(*self.A_init_range).log_()
        self.D.fill_(1)
        dt = torch.empty_like(self.dt_bias).uniform_(math.log(self.dt_min), math.log(self.dt_max)).exp_()
        dt.clamp_(min=self.dt_init_floor)
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        for parameter in (self.A_log, self.D, self.dt_bias):
            parameter._no_weight_decay = True

    def forward(
        self,
        u: Tensor,
        state: Mamba2State | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        seq_idx: Tensor | None = None,
        return_last_state: bool = False,
        context: Context | None = None,
    ) -> Tensor | tuple[Tensor, Mamba2State]:
        """y (B, L, d_model), or (y, last state); `state` is the state before the first token; None: zeros.

        `cu_seqlens` packs sequences along L of a batch of 1, as in `ssd_scan`; states are then of sequences. `seq_idx` (B, L),
        the number of each token's sequence, packs them in every row; such a call has no `state`, and the last state is that of
        each row's last sequence. With a context from `gdn_cuda.parallel.context` u has this rank's tokens of sequences that
        ranks share, without states, cu_seqlens and seq_idx.
        """
        self._check(u, "(B, L, {})", 3)
        if context is not None:
            from ..parallel.layer import check_tokens_of_rank

            states = {"state": state, "cu_seqlens": cu_seqlens, "seq_idx": seq_idx, "return_last_state": return_last_state}
            check_tokens_of_rank("Mamba2", context, "u", u, **states)
            return self._on_ranks(context, u)
        if seq_idx is not None:
            if state is not None:
                self._refuse("seq_idx", "None with a state", "a tensor")
            if cu_seqlens is not None:
                self._refuse("seq_idx", "None with cu_seqlens", "a tensor")
            seq_idx = seq_idx.to(torch.int32)
        if state is not None:
            self._check_state(u, state, u.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1)
        z0, x0, z, xBC, dt = self._projected(u)
        system = self._system(z, dt)
        weight, bias = self.conv1d.weight.squeeze(1), self.conv1d.bias
        if state is None and not return_last_state:
            options = Options(self.heads, "silu", self.dt_limit, seq_idx=seq_idx, cu_seqlens=cu_seqlens)
            y, _ = conv_scan(options, xBC, weight, bias, **system)
        else:
            past = None if state is None else state.conv.mT.to(xBC.dtype)
            rows, conv = causal_conv1d(xBC.mT, weight, bias, seq_idx, past, True, "silu", cu_seqlens=cu_seqlens)
            x, B, C = self.heads.split(rows.mT)
            y, last = ssd_scan(
                x=x,
                B=B,
                C=C,
                **system,
                cu_seqlens=cu_seqlens,
                seq_idx=seq_idx,
                initial_state=None if state is None else state.ssm,
                dt_softplus=True,
                dt_limit=self.dt_limit,
                return_last_state=True,
            )
        out: Tensor = self._finished(y.flatten(-2), z, z0, x0)
        if not return_last_state:
            return out
        conv = conv.mT.to(xBC.dtype, copy=True, memory_format=torch.contiguous_format)
        return out, Mamba2State(conv, last)

    def _on_ranks(self, context: Context, u: Tensor) -> Tensor:
        from ..parallel import causal_conv1d as convolve
        from ..parallel import ssd_scan as scan

        z0, x0, z, xBC, dt = self._projected(u)
        rows = convolve(xBC.mT, self.conv1d.weight.squeeze(1), self.conv1d.bias, "silu", context=context)
        x, B, C = self.heads.split(rows.mT.contiguous())
        system, limit = self._system(z, dt), self.dt_limit
        y = scan(x=x, B=B, C=C, **system, context=context, dt_softplus=True, dt_limit=limit)
        assert isinstance(y, Tensor)
        return self._finished(y.flatten(-2), z, z0, x0)

    def _system(self, z: Tensor, dt: Tensor) -> dict[str, Any]:
        """Arguments of the scan beside x, B and C."""
        gate = None if self.rmsnorm else z.unflatten(-1, (self.nheads, self.headdim))
        return {"dt": dt, "A": self._A(), "D": self._D(), "z": gate, "dt_bias": at_least_fp32(self.dt_bias)}

    def default_state(self, *batch: int) -> Mamba2State:
        """Zeros: (…, d_conv − 1, C) and (…, heads, headdim, d_state)."""
        conv = self.in_proj.weight.new_zeros(*batch, self.d_conv - 1, self.conv_dim)
        sizes = (*batch, self.nheads, self.headdim, self.d_state)
        return Mamba2State(conv, torch.zeros(sizes, dtype=at_least_fp32(self.A_log).dtype, device=self.A_log.device))

    def step(self, u: Tensor, state: Mamba2State) -> tuple[Tensor, Mamba2State]:
        """One token: y (B, d_model) for u (B, d_model), and the state, updated in place. Only `forward` has gradients; backward
        through a step raises."""
        self._check(u, "(B, {})", 2)
        self._check_state(u, state, u.shape[0])

        def run() -> Tensor:
            if state.ssm.dtype == torch.float64:
                return after_token(self.forward(u[:, None], state, return_last_state=True), state)
            z0, x0, z, xBC, dt = self._projected(u)
            one_launch = (
                self.d_conv == TAPS
                and self.d_state in STATES
                and self.ngroups >= _FEWEST_GROUPS
                and u.shape[0] <= _MOST_SEQUENCES
                and state.ssm.is_contiguous()
                and (torch.compiler.is_compiling() or state.ssm.data_ptr() % 16 == 0)
            )
            y = (mamba2_decode_layer if one_launch else by_operators)(
                xBC,
                dt,
                conv_weight=self.conv1d.weight.squeeze(1),
                conv_bias=self.conv1d.bias,
                A=self._A(),
                D=self._D(),
                dt_bias=at_least_fp32(self.dt_bias),
                z=None if self.rmsnorm else z,
                conv_pool=state.conv.mT,
                state_pool=state.ssm,
                groups=self.ngroups,
                dt_softplus=True,
                dt_limit=self.dt_limit,
            )
            return self._finished(y, z, z0, x0)

        written = {"state.conv": state.conv, "state.ssm": state.ssm}
        return composed("Mamba2.step", "forward", written, {"u": u}, run, module=self), state

    def extra_repr(self) -> str:
        heads = f"heads={self.nheads}, headdim={self.headdim}, d_ssm={self.d_ssm}, ngroups={self.ngroups}"
        return f"d_model={self.d_model}, d_state={self.d_state}, d_conv={self.d_conv}, {heads}"

    def _projected(self, u: Tensor) -> tuple[Tensor, ...]:
        """Views of in_proj(u): z₀ and x₀ of the gated MLP, z, the convolution's input x, B and C, and dt."""
        mlp = self.d_inner - self.d_ssm
        found: tuple[Tensor, ...] = self.in_proj(u).split([mlp, mlp, self.d_ssm, self.conv_dim, self.nheads], -1)
        return found

    def _finished(self, y: Tensor, z: Tensor, z0: Tensor, x0: Tensor) -> Tensor:
        """For y (…, d_ssm)."""
        if self.rmsnorm:
            options: dict[str, Any] = {"norm_before_gate": self.norm_before_gate, "group_size": self.d_ssm // self.ngroups}
            y = rms_norm_gated(y, z, self.norm.weight, self.norm.eps, **options)
        if z0.shape[-1]:
            y = torch.cat([F.silu(z0) * x0, y], -1)
        out: Tensor = self.out_proj(y)
        return out

    def _A(self) -> Tensor:
        return -torch.exp(at_least_fp32(self.A_log))

    def _D(self) -> Tensor:
        D = at_least_fp32(self.D)
        return D.unflatten(0, (self.nheads, self.headdim)) if self.D_has_hdim else D

    def _check(self, u: Tensor, shape: str, rank: int) -> None:
        if u.dim() != rank or u.shape[-1] != self.d_model or not u.is_floating_point():
            self._refuse("u", f"real numbers {shape.format(self.d_model)}", f"{u.dtype} {tuple(u.shape)}")

    def _check_state(self, u: Tensor, state: Mamba2State, sequences: Any) -> None:
        shapes = (sequences, self.d_conv - 1, self.conv_dim), (sequences, self.nheads, self.headdim, self.d_state)
        for name, x, shape in zip(("state.conv", "state.ssm"), state, shapes, strict=True):
            require_tensor("Mamba2", name, x)
            if x.shape != shape or not x.is_floating_point() or x.device != u.device:
                got = f"{tuple(x.shape)} on {x.device}, {x.dtype}"
                self._refuse(name, f"{shape} on {u.device}, real numbers", got)

    def _refuse(self, argument: str, expected: str, got: Any) -> NoReturn:
        refuse("Mamba2", argument, expected, got)
