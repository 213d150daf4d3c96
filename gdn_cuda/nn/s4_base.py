"""Base class of S4Kernel and S4DKernel: parameters that belong to a parent module, and the system that they describe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from ..operators.composed import constants
from ..operators.result_size import check_result_size
from ..operators.schema import require_tensor
from ..structured.reference_s4 import TRANSFORMS, System, system_of
from .tensors import keep

PARAMETERS = ("A_real", "A_imag", "B", "C", "P", "inv_dt")
FLAGS = ("dt_fast", "is_real", "deterministic", "verbose", "fp64_sums")
SIZES = ("N", "H", "channels", "rank", "repeat")
NAMED_TRANSFORMS = ("real_transform", "imag_transform", "dt_transform")


def rows_of(state: Tensor) -> Tensor:
    """(B,H,N) of (…,H,N)."""
    return state.reshape(state.shape[:-2].numel(), *state.shape[-2:])


class SSMKernel(nn.Module):
    """A kernel with the parameters of a parent module: `nn.Parameter`s become its parameters, other tensors buffers.

    Parameters are converted to fp64; results are fp32, or fp64 if any parameter is.
    """

    l_max: int | None

    def __init__(self, d_model: int, l_max: int | None, channels: int, param_config: Mapping[str, Any]):
        super().__init__()
        self._name = type(self).__name__
        self._read(param_config)
        for argument, got, expected in (("d_model", d_model, self.H), ("channels", channels, self.channels)):
            if got != expected:
                raise ValueError(f"{self._name}: {argument}: expected {expected} as param_config has, got {got}")
        if l_max is not None and not (isinstance(l_max, Integral) and l_max >= 0):
            raise ValueError(f"{self._name}: l_max: expected None or a length, got {l_max!r}")
        self.d_model, self.l_max = d_model, l_max
        self.dA = self.dB = self.dC = None  # for steps; not part of checkpoints
        self._made_from: list[Any] | None = None
        self._held: list[Tensor] = []  # keeps other tensors from getting their addresses

    def _read(self, config: Mapping[str, Any]) -> None:
        optional = {"P", "A_imag"} if config.get("is_real") else {"P"}
        needed = [key for key in (*PARAMETERS, *SIZES, *NAMED_TRANSFORMS) if key not in optional]
        if missing := [key for key in needed if config.get(key) is None]:
            raise ValueError(
                f"{self._name}: param_config: expected {', '.join(missing)} too, got {', '.join(map(str, config))}"
            )
        for key in (*SIZES, *NAMED_TRANSFORMS):
            setattr(self, key, config[key])
        for key in FLAGS:
            setattr(self, key, bool(config.get(key, False)))
        for key in NAMED_TRANSFORMS:
            if config[key] not in TRANSFORMS:
                raise ValueError(f"{self._name}: {key}: expected one of {TRANSFORMS}, got {config[key]!r}")
        for key, shape in self._shapes(config).items():
            x = config.get(key)
            if x is None:
                setattr(self, key, None)
                continue
            if not isinstance(x, Tensor) or not x.is_floating_point() or tuple(x.shape) not in shape:
                got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(f"{self._name}: {key}: expected real numbers {' or '.join(map(str, shape))}, got {got}")
            keep(self, key, x)

    def _shapes(self, config: Mapping[str, Any]) -> dict[str, list[tuple[int, ...]]]:
        H, N, channels, rank, repeat = (config[key] for key in ("H", "N", "channels", "rank", "repeat"))
        if repeat < 1 or H % repeat:
            raise ValueError(f"{self._name}: repeat: expected a divisor of H={H}, got {repeat}")
        systems = H // repeat
        leading = {"B": (1, systems, N), "C": (channels, H, N), "P": (rank, systems, N)}
        real = bool(config.get("is_real"))
        pairs = {key: [(*shape, 2), *([shape] if real else [])] for key, shape in leading.items()}
        return {"A_real": [(systems, N)], "A_imag": [(systems, N)], "inv_dt": [(H, 1), (H, N)]} | pairs

    # ---- The system

    def _system(self, rate: float = 1.0) -> System:
        """In fp64, differentiable."""
        config = {key: getattr(self, key) for key in (*PARAMETERS, "repeat", *NAMED_TRANSFORMS, "dt_fast", "is_real")}
        return system_of(config, rate)

    def _given(self) -> list[Tensor]:
        return [x for key in PARAMETERS if (x := getattr(self, key)) is not None]

    @property
    def _complex(self) -> torch.dtype:
        return torch.complex128 if any(x.dtype == torch.float64 for x in self._given()) else torch.complex64

    @property
    def _real(self) -> torch.dtype:
        return torch.float64 if self._complex == torch.complex128 else torch.float32

    def _check_rate(self, rate: float) -> None:
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"{self._name}: rate: expected a positive number, got {rate}")

    def _check_length(self, L: int) -> None:
        if not isinstance(L, (Integral, torch.SymInt)) or L < 0:
            raise ValueError(f"{self._name}: L: expected an integer >= 0, got {L!r}")

    def _check_size(self, L: int) -> None:
        """Called before anything of this length is allocated."""
        check_result_size(self._name, "L", self._largest_shape(L), self._real, self.C.device)

    def _largest_shape(self, L: int) -> tuple[int, ...]:
        return self.channels, self.H, L

    def _check_state(self, state: Tensor, sizes: tuple[int, ...], batch: tuple[int, ...] = ()) -> None:
        require_tensor(self._name, "state", state)
        expected = " or ".join(f"(…, {self.H}, {size})" for size in sizes)
        if state.dim() < 2 or state.shape[-2] != self.H or state.shape[-1] not in sizes:
            raise ValueError(f"{self._name}: state: expected {expected}, got {tuple(state.shape)}")
        if any(a != b and 1 not in (a, b) for a, b in zip(reversed(state.shape[:-2]), reversed(batch), strict=False)):
            expected = f"{expected} with leading dimensions that broadcast with {tuple(batch)} of u"
            raise ValueError(f"{self._name}: state: expected {expected}, got {tuple(state.shape)}")

    def _check_input(self, u: Tensor, sequence: bool) -> None:
        require_tensor(self._name, "u", u)
        place = -2 if sequence else -1
        if u.is_complex() or u.dim() < -place or u.shape[place] != self.H:
            expected = f"(…, {self.H}, L)" if sequence else f"(…, {self.H})"
            raise ValueError(f"{self._name}: u: expected real numbers {expected}, got {u.dtype} {tuple(u.shape)}")

    def _unmoved(self, u: Tensor, state: Tensor) -> Tensor:
        """The state after no input, broadcast over the batch of u."""
        return state.to(self._complex) + u.to(self._real).sum(-1, keepdim=True)

    # ---- Steps: set up once, and again after a parameter has changed

    dA: Any
    dB: Any
    dC: Any

    def _keep(self, dA: Tensor, dB: Tensor, dC: Tensor) -> None:
        self.dA, self.dB, self.dC = (x.to(self._complex) for x in (dA, dB, dC))
        if torch.compiler.is_compiling():
            self._made_from = None
        else:
            self._made_from, self._held = self._versions(), [x.detach() for x in self._given()]

    def _constants(self, *made: Tensor, function: str = "step") -> tuple[Tensor, ...]:
        differentiable = "forward and forward_state" if function == "step" else "dense steps"
        made_from = {key: getattr(self, key) for key in PARAMETERS}
        return constants(f"{self._name}.{function}", differentiable, made_from, made)

    def _is_current(self) -> bool:
        if torch.compiler.is_compiling():  # compiled code cannot read versions
            return self.dA is not None
        return self._made_from is not None and self._made_from == self._versions()

    def _versions(self) -> list[Any]:
        return [(x.data_ptr(), None if x.is_inference() else x._version, x.dtype, x.device) for x in self._given()]

    def extra_repr(self) -> str:
        return f"{self.d_model}, l_max={self.l_max}, channels={self.channels}, N={self.N}, repeat={self.repeat}"
