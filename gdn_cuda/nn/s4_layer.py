"""S4 and S4D as layers: initialised systems, the kernels' convolution, a skip, a nonlinearity and a projection."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..conv.fft_causal_conv import fft_causal_conv
from ..structured.reference_s4d import DISCRETIZATIONS
from . import hippo
from .dtypes import KeepsRecurrence, layer_dtype, recurrence_dtype
from .s4 import S4Kernel
from .s4_base import SSMKernel
from .s4d import S4DKernel

_LEAST_DECAY = 1e-4  # decays are stored as logarithms, and FouT's are 0
_TRANSFORMS = {"real_transform": "exp", "imag_transform": "none", "dt_transform": "exp"}


class StateSpaceLayer(KeepsRecurrence):
    """Base class of S4 and S4D. A subclass lists its initialisations and calls `_make` at the end of its `__init__`."""

    INITS: tuple[str, ...]
    kernel: Any

    def __init__(
        self,
        d_model: int,
        d_state: int,
        init: str,
        dt_min: float,
        dt_max: float,
        bidirectional: bool,
        activation: str | None,
        output: str | None,
    ):
        super().__init__()
        self._name = type(self).__name__
        self._check_options(d_model, d_state, init, dt_min, dt_max, activation, output)
        self.d_model, self.d_state, self.init = d_model, d_state, init
        self.dt_min, self.dt_max, self.bidirectional = dt_min, dt_max, bidirectional
        self.activation, self.output = activation, output

    def _check_options(
        self, d_model: int, d_state: int, init: str, dt_min: float, dt_max: float, activation: str | None, output: str | None
    ) -> None:
        def expect(holds: bool, argument: str, expected: str, got: str) -> None:
            if not holds:
                raise ValueError(f"{self._name}: {argument}: expected {expected}, got {got}")

        expect(init in self.INITS, "init", f"one of {self.INITS}", repr(init))
        for name, size in (("d_model", d_model), ("d_state", d_state)):
            whole = isinstance(size, int) and not isinstance(size, bool)
            expect(whole and size > 0, name, "a positive integer", repr(size))
        expect(init == "real" or d_state % 2 == 0, "d_state", "an even number, of conjugate pairs", str(d_state))
        expect(0 < dt_min <= dt_max, "dt_min, dt_max", "0 < dt_min ≤ dt_max", f"{dt_min} and {dt_max}")
        expect(activation in (None, "gelu"), "activation", "'gelu' or None", repr(activation))
        expect(output in (None, "linear", "glu"), "output", "'glu', 'linear' or None", repr(output))

    # ---- Parameters

    @abstractmethod
    def _modes(self) -> hippo.Modes: ...

    def _make(
        self,
        kernel: type[SSMKernel],
        l_max: int | None,
        options: dict[str, Any],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Creates the kernel, with a system for every channel, and all parameters."""
        real = self.init == "real"
        H, N, pair = self.d_model, self.d_state if real else self.d_state // 2, () if real else (2,)
        sizes = {"N": N, "H": H, "channels": 2 if self.bidirectional else 1, "rank": 0, "repeat": 1} | options
        shapes: dict[str, tuple[int, ...]] = {"A_real": (H, N), "A_imag": (H, N), "inv_dt": (H, 1)}
        shapes |= {"B": (1, H, N, *pair), "C": (sizes["channels"], H, N, *pair), "P": (1, H, N, *pair)}
        for name in ("A_imag",) * real + ("P",) * (sizes["rank"] == 0):
            del shapes[name]
        like: dict[str, Any] = {"device": device, "dtype": recurrence_dtype(dtype)}
        parameters = {name: nn.Parameter(torch.empty(shape, **like)) for name, shape in shapes.items()}
        self.kernel = kernel(H, l_max, sizes["channels"], parameters | sizes | _TRANSFORMS | {"is_real": real})
        like["dtype"] = dtype
        self.D = nn.Parameter(torch.empty(H, **like))
        self._draw()
        self.out_proj = None if self.output is None else nn.Linear(H, 2 * H if self.output == "glu" else H, **like)

    def reset_parameters(self) -> None:
        """Draws new values for all parameters; those of the system on the CPU, so that a seed gives the same values on any
        device."""
        self._draw()
        if self.out_proj is not None:
            self.out_proj.reset_parameters()

    @torch.no_grad()
    def _draw(self) -> None:
        modes, kernel = self._modes(), self.kernel
        drawn = {
            "A_real": (-modes.eigenvalues.real).clamp(min=_LEAST_DECAY).log(),
            "A_imag": -modes.eigenvalues.imag,
            "B": modes.B,
            "P": modes.P,
            "C": torch.randn(kernel.channels, self.d_model, kernel.N, dtype=torch.complex128, device="cpu"),
            "inv_dt": torch.empty(self.d_model, 1, dtype=torch.float64, device="cpu").uniform_(
                math.log(self.dt_min), math.log(self.dt_max)
            ),
        }
        for name, x in drawn.items():
            parameter = getattr(kernel, name)
            if parameter is not None:
                as_pairs = torch.view_as_real(x) if x.is_complex() and self.init != "real" else x.real
                parameter.copy_(as_pairs)
        self.D.copy_(torch.randn(self.d_model, dtype=torch.float64, device="cpu"))

    def recurrence(self) -> Iterator[nn.Parameter]:
        return self.kernel.parameters()

    # ---- Sequences and tokens

    def forward(self, u: Tensor, state: Tensor | None = None, *, return_last_state: bool = False) -> Any:
        """Returns y (B, L, d_model), or (y, last state); `state` is the state before the first token, or zeros."""
        self._check("u", u, 3, "B, L, {}")
        if self.bidirectional and (state is not None or return_last_state):
            asked = "return_last_state" if state is None else "state"
            raise ValueError(f"{self._name}: {asked}: expected none for a bidirectional layer, which has no states, got one")
        tokens = u.mT.to(self.kernel._real)
        k, left = self.kernel(state=state, L=u.shape[1])
        y = fft_causal_conv(tokens, k[0], self.D.to(tokens.dtype))
        if left is not None:
            y = y + left[:, 0]
        if self.bidirectional:  # from the next token on: k[0] has the current token
            later = fft_causal_conv(tokens.flip(-1), k[1])
            y = y + F.pad(later, (1, 0))[..., : u.shape[1]].flip(-1)
        y = self._output(y.mT, u)
        if not return_last_state:
            return y
        return y, self.kernel.forward_state(tokens, self.default_state(len(u)) if state is None else state)

    def default_state(self, *batch: int) -> Tensor:
        """Zeros (…, d_model, N), one state per conjugate pair."""
        state: Tensor = self.kernel.default_state(*batch)
        return state

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns y (B, d_model) and the next state, for one token u (B, d_model). Without grad mode it is much faster,
        since the matrices of a step are cached."""
        self._check("u", u, 2, "B, {}")
        if self.bidirectional:
            raise ValueError(f"{self._name}: bidirectional: expected False for steps, got True")
        kernel = self.kernel
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.recurrence()):
            state = kernel.forward_state(u[..., None], state)
            y = kernel.read(state)
        else:
            y, state = kernel.step(u, state)
        return self._output(y[:, 0] + self.D.to(y.dtype) * u.to(y.dtype), u), state

    def _output(self, y: Tensor, u: Tensor) -> Tensor:
        y = y.to(layer_dtype(u))
        if self.activation == "gelu":
            y = F.gelu(y)
        if self.out_proj is not None:
            y = self.out_proj(y)
        return F.glu(y) if self.output == "glu" else y

    def _check(self, argument: str, x: Tensor, rank: int, layout: str) -> None:
        if x.dim() != rank or x.shape[-1] != self.d_model or not x.is_floating_point():
            expected, got = f"real numbers ({layout.format(self.d_model)})", f"{x.dtype} {tuple(x.shape)}"
            raise ValueError(f"{self._name}: {argument}: expected {expected}, got {got}")

    def extra_repr(self) -> str:
        options = f"bidirectional={self.bidirectional}, activation={self.activation!r}, output={self.output!r}"
        return f"d_model={self.d_model}, d_state={self.d_state}, init={self.init!r}, {options}"


class S4(StateSpaceLayer):
    """A layer of S4 ("Efficiently Modeling Long Sequences with Structured State Spaces", Gu et al., 2022): for every channel
    x' = A x + B u and y = Re(C x) + D u, a nonlinearity, and a projection that mixes channels.

    `init`: "legs", HiPPO-LegS; or "fout", the truncated Fourier basis of "How to Train Your HiPPO" (Gu et al., 2023). A is
    diagonal plus rank one, discretized bilinearly in steps that begin log-uniform in [dt_min, dt_max]. Sequences are convolved
    with the kernel of `S4Kernel`, `kernel`, which converts C for its length: `l_max`, or the length of the first call, doubled
    when longer sequences come; so train on the longest sequences early.

    `activation` is "gelu" or None. `output` is "glu", a projection to 2 d_model and a gated linear unit; "linear", a
    projection to d_model; or None. `bidirectional` adds a convolution over the following tokens; then there are no states or
    steps.

    Shapes:
        u, y: (B, L, d_model), or (B, d_model) in a step
        state: (B, d_model, d_state / 2), complex64, or complex128 for parameters in fp64; None means zeros
        parameters: kernel.{A_real, A_imag (d_model, d_state / 2), B, P (1, d_model, d_state / 2, 2), C (1 or 2 for both
          directions, d_model, d_state / 2, 2), inv_dt (d_model, 1)}, fp32 at least; D (d_model,); out_proj

    Parameters:
        d_model: channels of u and y
        d_state: states of a channel, N; even, as pairs of conjugates
        init: the initial system, as above
        l_max: the length for which the kernel's C is converted; None: that of the first call
        dt_min, dt_max: range of initial steps
        bidirectional: whether a second kernel, of the same system, runs over the following tokens
        activation: "gelu" or None, after the skip
        output: "glu", "linear" or None, the projection at the end
        device, dtype: of the parameters; those of the system are fp32 at least

    Example:
        >>> layer = gdn_cuda.nn.S4(4, d_state=16)
        >>> y, state = layer(torch.randn(2, 50, 4), return_last_state=True)
        >>> y_next, state = layer.step(torch.randn(2, 4), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 4]), torch.Size([2, 4, 8]))
    """

    INITS = ("legs", "fout")

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: str = "legs",
        l_max: int | None = None,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        bidirectional: bool = False,
        activation: str | None = "gelu",
        output: str | None = "glu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(d_model, d_state, init, dt_min, dt_max, bidirectional, activation, output)
        # FouT's poles are on the imaginary axis, like the points of the transform.
        self._make(S4Kernel, l_max, {"rank": 1, "fp64_sums": init == "fout"}, device, dtype)
        self.kernel._step_mode = "linear"  # the cheapest, with the smallest state

    def _modes(self) -> hippo.Modes:
        return hippo.legs(self.d_state) if self.init == "legs" else hippo.fout(self.d_state)

    def _draw(self) -> None:
        self.kernel._set_length(0)  # C is not converted
        super()._draw()


class S4D(StateSpaceLayer):
    """A layer of S4D ("On the Parameterization and Initialization of Diagonal State Space Models", Gu et al., 2022): S4 with a
    diagonal A, discretized by `disc`, "zoh" or "bilinear".

    `init`: "legs", λ of the normal part of HiPPO-LegS; "inv", λ_n = −½ + i (N/π) (N / (2n + 1) − 1); "lin", λ_n = −½ + iπn; or
    "real", λ_n = −(n + 1), where every state is real and has no conjugate. N is d_state. Other options are those of `S4`.

    Shapes:
        u, y: (B, L, d_model), or (B, d_model) in a step
        state: (B, d_model, d_state / 2), complex64, or complex128 for parameters in fp64; for "real" (B, d_model, d_state);
          None means zeros
        parameters: kernel.{A_real, A_imag (d_model, d_state / 2), B (1, d_model, d_state / 2, 2), C (1 or 2 for both
          directions, d_model, d_state / 2, 2), inv_dt (d_model, 1)}, fp32 at least, for "real" without A_imag and pairs;
          D (d_model,); out_proj

    Parameters:
        d_state: states of a channel, N; even, as pairs of conjugates, but for "real"
        init: the initial system, as above
        disc: "zoh" or "bilinear"
        d_model, dt_min, dt_max, bidirectional, activation, output, device, dtype: as in `S4`

    Example:
        >>> layer = gdn_cuda.nn.S4D(4, d_state=16, init="inv")
        >>> y, state = layer(torch.randn(2, 50, 4), return_last_state=True)
        >>> y_next, state = layer.step(torch.randn(2, 4), state)
        >>> y.shape, y_next.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 4]), torch.Size([2, 4, 8]))
    """

    INITS = ("legs", "inv", "lin", "real")

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: str = "lin",
        disc: str = "zoh",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        bidirectional: bool = False,
        activation: str | None = "gelu",
        output: str | None = "glu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(d_model, d_state, init, dt_min, dt_max, bidirectional, activation, output)
        if disc not in DISCRETIZATIONS:
            raise ValueError(f"S4D: disc: expected one of {DISCRETIZATIONS}, got {disc!r}")
        self.disc = disc
        self._make(S4DKernel, None, {"disc": disc}, device, dtype)

    def _modes(self) -> hippo.Modes:
        return hippo.diagonal(self.init, self.d_state)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, disc={self.disc!r}"
