"""S6, the selective state-space model, and the Mamba block around it. Tensors are (B, L, D), as linear layers give them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..operators.composed import as_one_call, composed
from ..operators.registration import check_call
from ..scan import selective_scan, selective_state_update
from .dtypes import at_least_fp32, recurrence_dtype
from .tensors import after_token

if TYPE_CHECKING:
    from ..parallel import Context

DISCRETIZATIONS = ("mamba", "zoh", "bilinear", "dirac")  # the discretizations for A < 0


class S6(nn.Module):
    """The selective state-space model of Mamba: δ, B and C are projections of the input u.

    x_t = Ā_t x_{t−1} + (B̄u)_t and y_t = C_t x_t + D u_t for every channel, with A = −e^{A_log} and δ = softplus(dt_proj(·)),
    discretized as in `selective_scan`. Initially A = −1 … −N and D = 1, dt_proj's bias makes δ log-uniform on [dt_min, dt_max],
    at least dt_init_floor, and its weight is uniform on ± dt_rank^−½.

    Shapes:
        x_proj: D → R + 2N, without bias; dt_proj: R → D; A_log (D, N); D (D)
        u, z: (B, L, D); y: (B, L, D); states: (B, D, N), fp32; parameters in fp64 have states in fp64

    Parameters:
        d_model: D, the channels of u
        d_state: N, the states of a channel
        dt_rank: R, an integer, or "auto" for ⌈D / 16⌉
        dt_min, dt_max, dt_init_floor: the initial range of δ, and its lower bound
        discretization: "mamba", "zoh", "bilinear" or "dirac"
        device, dtype: of the parameters; A_log and D are fp32, or fp64

    Example:
        >>> layer = gdn_cuda.nn.S6(8, d_state=4)
        >>> y, state = layer(torch.randn(2, 16, 8), return_last_state=True)
        >>> y_next, state = layer.step(torch.randn(2, 8), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([2, 16, 8]), torch.Size([2, 8]), torch.Size([2, 8, 4]))
    """

    scan: Callable[..., Any] = staticmethod(selective_scan)  # a subclass may replace it by a function with the same arguments

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        dt_rank: int | str = "auto",
        *,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        discretization: str = "mamba",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self._name = type(self).__name__
        if discretization not in DISCRETIZATIONS:
            raise ValueError(f"{self._name}: discretization: expected one of {DISCRETIZATIONS}, got {discretization!r}")
        self.d_inner, self.d_state, self.discretization = d_model, d_state, discretization
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else int(dt_rank)
        self.dt_min, self.dt_max, self.dt_init_floor = dt_min, dt_max, dt_init_floor
        self.x_proj = nn.Linear(d_model, self.dt_rank + 2 * d_state, bias=False, device=device, dtype=dtype)
        self.dt_proj = nn.Linear(self.dt_rank, d_model, device=device, dtype=dtype)
        like: dict[str, Any] = {"device": device, "dtype": recurrence_dtype(dtype)}
        self.A_log = nn.Parameter(torch.empty(d_model, d_state, **like))
        self.D = nn.Parameter(torch.empty(d_model, **like))
        self.reset_recurrence()

    @torch.no_grad()
    def reset_recurrence(self) -> None:
        """Draws dt_proj, A_log and D anew, as in the paper."""
        self.A_log.copy_(torch.arange(1, self.d_state + 1, device=self.A_log.device).log().expand_as(self.A_log))
        self.D.fill_(1)
        nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        low, high = math.log(self.dt_min), math.log(self.dt_max)
        dt = torch.empty_like(self.D).uniform_(low, high).exp().clamp_(min=self.dt_init_floor)
        self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        # Attributes that training scripts for Mamba read: no weight decay, and no zeros for this bias.
        self.A_log._no_weight_decay = self.D._no_weight_decay = self.dt_proj.bias._no_reinit = True

    def forward(
        self,
        u: Tensor,
        state: Tensor | None = None,
        *,
        z: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        return_last_state: bool = False,
        context: Context | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """y (B, L, D), times silu(z) if z is given; or (y, last state). `state`: before the first token; None: zeros.

        `cu_seqlens` packs sequences along L of a batch of 1, as in `selective_scan`; states are then (sequences, D, N). With a
        context from `gdn_cuda.parallel.context` u and z have this rank's tokens of sequences that ranks share, and there are no
        states and no cu_seqlens.
        """
        self._check(u, "(B, L, {})", 3, self.d_inner)
        scan: Callable[..., Any] = self.scan
        more: dict[str, Any] = {"initial_state": state, "cu_seqlens": cu_seqlens}
        if context is not None:
            from ..parallel import selective_scan as scan_on_ranks  # imports torch.distributed's device meshes

            self._check_tokens_of_rank(context, u, state, cu_seqlens, return_last_state)
            scan, more = scan_on_ranks, {"context": context}
        delta, B, C = self._selected(u)
        return _tokens(
            scan(
                u.to(delta.dtype).mT,
                delta.mT,
                self._A(),
                B.mT,
                C.mT,
                at_least_fp32(self.D),
                None if z is None else z.mT,
                at_least_fp32(self.dt_proj.bias),
                delta_softplus=True,
                return_last_state=return_last_state,
                discretization=self.discretization,
                **more,
            )
        )

    def default_state(self, *batch: int) -> Tensor:
        """Zeros (…, D, N)."""
        return torch.zeros(*batch, self.d_inner, self.d_state, dtype=at_least_fp32(self.A_log).dtype, device=self.A_log.device)

    def step(self, u: Tensor, state: Tensor, z: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One token: y (B, D) for u (B, D), and the state, updated in place. Only `forward` has gradients; backward through a
        step raises."""
        self._check(u, "(B, {})", 2, self.d_inner)

        def run() -> Tensor:
            if state.dtype == torch.float64:
                gate = None if z is None else z[:, None]
                return after_token(S6.forward(self, u[:, None], state, z=gate, return_last_state=True), state)
            return selective_state_update(**self._step(u, state, z))

        return as_one_call(f"{self._name}.step", "forward", {"state": state}, {"u": u, "z": z}, run, self), state

    def _step(self, u: Tensor, state: Tensor, z: Tensor | None) -> dict[str, Any]:
        dt, B, C = self._selected(u)
        step = {
            "state": state,
            "x": u.to(dt.dtype),
            "dt": dt,
            "A": self._A(),
            "B": B,
            "C": C,
            "D": at_least_fp32(self.D),
            "z": z,
        }
        step |= {"dt_bias": at_least_fp32(self.dt_proj.bias), "dt_softplus": True, "discretization": self.discretization}
        return step

    def extra_repr(self) -> str:
        sizes = f"d_inner={self.d_inner}, d_state={self.d_state}, dt_rank={self.dt_rank}"
        return f"{sizes}, discretization={self.discretization!r}"

    def _A(self) -> Tensor:
        return -torch.exp(at_least_fp32(self.A_log))

    def _selected(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """δ before bias and softplus, B and C."""
        low, B, C = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], -1)
        return F.linear(low, self.dt_proj.weight), B, C

    def _check_tokens_of_rank(
        self, context: Context, u: Tensor, state: Any, cu_seqlens: Tensor | None, return_last_state: bool
    ) -> None:
        from ..parallel.layer import check_tokens_of_rank

        states = {"state": state, "cu_seqlens": cu_seqlens, "return_last_state": return_last_state}
        check_tokens_of_rank(self._name, context, "u", u, **states)

    def _check(self, u: Tensor, shape: str, rank: int, width: int) -> None:
        if u.dim() != rank or u.shape[-1] != width or not u.is_floating_point():
            got = f"{u.dtype} {tuple(u.shape)}"
            raise ValueError(f"{self._name}: u: expected real numbers {shape.format(width)}, got {got}")


def _tokens(scanned: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
    return scanned.mT if isinstance(scanned, Tensor) else (scanned[0].mT, scanned[1])


class MambaState(NamedTuple):
    """The state of a Mamba block between tokens."""

    conv: Tensor  # (B, d_conv − 1, d_inner): the last inputs of the convolution
    ssm: Tensor  # (B, d_inner, d_state)


class Mamba(S6):
    """The Mamba block: out_proj(S6(silu(conv1d(x))) · silu(z)), where (x, z) = in_proj(u).

    The convolution is causal and depthwise, over d_conv tokens. Parameters have the names and initial values of mamba_ssm's
    `Mamba`, so checkpoints load. No tensor is transposed: the scan reads (B, L, D) in place.

    Shapes:
        in_proj.weight (2·d_inner, d_model), conv1d.weight (d_inner, 1, W), conv1d.bias (d_inner), x_proj.weight (dt_rank + 2N,
          d_inner), dt_proj.weight (d_inner, dt_rank), dt_proj.bias (d_inner), A_log (d_inner, N), D (d_inner), out_proj.weight
          (d_model, d_inner)
        u, y: (B, L, d_model)

    Parameters:
        d_model: the channels of u
        d_state: N, the states of a channel of the scan
        d_conv: W, the taps of the convolution
        expand: the scan has d_inner = expand · d_model channels
        dt_rank: an integer, or "auto" for ⌈d_model / 16⌉
        dt_min, dt_max, dt_init_floor, discretization: as in `gdn_cuda.nn.S6`
        conv_bias, bias: whether the convolution has a bias, and whether in_proj and out_proj have
        device, dtype: of the parameters; A_log and D are fp32, or fp64

    Example:
        >>> block = gdn_cuda.nn.Mamba(16)
        >>> y, state = block(torch.randn(2, 10, 16), return_last_state=True)  # a prompt
        >>> y_next, state = block.step(torch.randn(2, 16), state)
        >>> y.shape, y_next.shape, state.conv.shape, state.ssm.shape
        (torch.Size([2, 10, 16]), torch.Size([2, 16]), torch.Size([2, 3, 32]), torch.Size([2, 32, 16]))
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: float = 2,
        dt_rank: int | str = "auto",
        *,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        discretization: str = "mamba",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        d_inner = int(expand * d_model)
        super().__init__(
            d_inner,
            d_state,
            math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank,
            dt_min=dt_min,
            dt_max=dt_max,
            dt_init_floor=dt_init_floor,
            discretization=discretization,
            device=device,
            dtype=dtype,
        )
        self.d_model, self.d_conv = d_model, d_conv
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=bias, device=device, dtype=dtype)
        self.conv1d = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner, bias=conv_bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(d_inner, d_model, bias=bias, device=device, dtype=dtype)

    def forward(  # type: ignore[override]
        self,
        u: Tensor,
        state: MambaState | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        return_last_state: bool = False,
        context: Context | None = None,
    ) -> Tensor | tuple[Tensor, MambaState]:
        """y (B, L, d_model), or (y, last state); `state` is the state before the first token; None: zeros.

        `cu_seqlens` packs sequences along L of a batch of 1; they begin and end without states. With a context from
        `gdn_cuda.parallel.context` u has this rank's tokens of sequences that ranks share, without states and cu_seqlens.
        """
        self._check(u, "(B, L, {})", 3, self.d_model)
        if context is not None:
            self._check_tokens_of_rank(context, u, state, cu_seqlens, return_last_state)
            return self._on_ranks(context, u)
        if cu_seqlens is not None and (state is not None or return_last_state):
            raise ValueError(f"{self._name}: cu_seqlens: expected None where states are given or returned, got a tensor")
        x, z = self.in_proj(u).chunk(2, -1)
        past = x.new_zeros(x.shape[0], self.d_conv - 1, self.d_inner) if state is None else state.conv.to(x.dtype)
        seen = torch.cat([past, x], 1)
        x = self._convolved(seen, cu_seqlens).to(x.dtype)
        ssm = None if state is None else state.ssm
        scanned = super().forward(x, ssm, z=z, cu_seqlens=cu_seqlens, return_last_state=return_last_state)
        if isinstance(scanned, Tensor):
            return self.out_proj(scanned)
        return self.out_proj(scanned[0]), MambaState(seen[:, u.shape[1] :].clone(), scanned[1])

    def _on_ranks(self, context: Context, u: Tensor) -> Tensor:
        from ..parallel import causal_conv1d

        x, z = self.in_proj(u).chunk(2, -1)
        weight = self.conv1d.weight.squeeze(1)
        x = causal_conv1d(x.mT, weight, self.conv1d.bias, "silu", context=context).mT
        out: Tensor = self.out_proj(super().forward(x, z=z, context=context))
        return out

    def default_state(self, *batch: int) -> MambaState:
        """Zeros: (…, d_conv − 1, d_inner) and (…, d_inner, N)."""
        return MambaState(self.in_proj.weight.new_zeros(*batch, self.d_conv - 1, self.d_inner), super().default_state(*batch))

    def step(self, u: Tensor, state: MambaState) -> tuple[Tensor, MambaState]:  # type: ignore[override]
        """One token: y (B, d_model) for u (B, d_model), and the state, updated in place. Only `forward` has gradients; backward
        through a step raises."""
        self._check(u, "(B, {})", 2, self.d_model)
        shape, conv = (u.shape[0], self.d_conv - 1, self.d_inner), state.conv
        if conv.shape != shape or not conv.is_floating_point() or conv.device != u.device:
            expected, got = f"{shape} on {u.device}, real numbers", f"{tuple(conv.shape)} on {conv.device}, {conv.dtype}"
            raise ValueError(f"{self._name}: state.conv: expected {expected}, got {got}")

        def run() -> Tensor:
            if state.ssm.dtype == torch.float64:
                return after_token(self.forward(u[:, None], state, return_last_state=True), state)
            x, z = self.in_proj(u).chunk(2, -1)
            seen = torch.cat([conv.to(x.dtype), x[:, None]], 1)
            step = self._step(self._convolved(seen).squeeze(1).to(x.dtype), state.ssm, z)
            if not torch.compiler.is_compiling():  # the convolution's state is written first
                check_call("selective_state_update", **step, update_state=True, out=torch.empty_like(step["x"]))
            conv.copy_(seen[:, 1:])
            out: Tensor = self.out_proj(selective_state_update(**step))
            return out

        written = {"state.conv": conv, "state.ssm": state.ssm}
        return composed(f"{self._name}.step", "forward", written, {"u": u}, run, module=self), state

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, {super().extra_repr()}, d_conv={self.d_conv}"

    def _convolved(self, seen: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        """silu of the causal convolution of (B, W − 1 + L, d_inner), in fp32 at least; (B, L, d_inner).

        W multiply-adds: torch's convolution would transpose its input and its output.
        """
        weight, width = at_least_fp32(self.conv1d.weight).squeeze(1), self.d_conv
        L = seen.shape[1] - width + 1
        total = weight.new_zeros(self.d_inner) if self.conv1d.bias is None else at_least_fp32(self.conv1d.bias)
        for tap in range(width):
            x = seen[:, tap : tap + L]
            if cu_seqlens is not None and tap < width - 1:
                x = torch.where(_positions(cu_seqlens, L)[:, None] >= width - 1 - tap, x, 0)
            total = torch.addcmul(total, x, weight[:, tap])
        return F.silu(total)


def _positions(cu_seqlens: Tensor, L: int) -> Tensor:
    """(L): how many tokens of the same sequence precede each token."""
    token = torch.arange(L, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return token - cu_seqlens[torch.searchsorted(cu_seqlens, token, right=True) - 1]
