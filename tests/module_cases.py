"""At least one case for every module of gdn_cuda.nn: how to make, call and step it, with one interface for all."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from gdn_cuda import nn
from gdn_cuda.structured.displacement import DisplacementType

S4_SIZES = {"N": 3, "H": 4, "channels": 2, "rank": 1, "repeat": 1}
S4_TRANSFORMS = {"real_transform": "exp", "imag_transform": "none", "dt_transform": "exp"}


class Case:
    """A layer: (B, L, width) becomes (B, L, out). `sizes` are the sizes that its repr shows."""

    is_layer = True

    def __init__(self, module: str, *arguments: Any, width: int, sizes: tuple[int, ...], out: int | None = None, **more: Any):
        self.module, self.arguments, self.more = module, arguments, more
        self.width, self.sizes, self.out = width, sizes, out or width
        self.id = f"{module}-{'-'.join(f'{name}={value}' for name, value in more.items())}".rstrip("-")

    def make(self, seed: int = 0, **like: Any) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: torch.nn.Module = getattr(nn, self.module)(*self.arguments, **self.more, **like)
            return made

    def inputs(self, seed: int, B: int = 2, L: int = 5, **like: Any) -> Tensor:
        drawn = torch.randn(B, L, self.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return drawn.to(like.get("device"), like.get("dtype", torch.float32))

    def shape(self, B: int, L: int) -> tuple[int, ...]:
        return B, L, self.out

    def run(self, module: Any, x: Tensor) -> Tensor:
        out: Tensor = module(x)
        return out

    # ---- Steps, for modules that have them

    @property
    def has_steps(self) -> bool:
        return hasattr(getattr(nn, self.module), "step") and not self.more.get("bidirectional")

    def begin(self, module: Any, B: int) -> Any:
        return module.default_state(B)

    def step(self, module: Any, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module.step(token, state)

    def stepped(self, module: Any, x: Tensor, state: Any = None) -> Tensor:
        state, found = self.begin(module, x.shape[0]) if state is None else state, []
        for t in range(x.shape[1]):
            y, state = self.step(module, x[:, t], state)
            found.append(y)
        return torch.stack(found, 1)

    def prompt(self, module: Any, x: Tensor) -> tuple[Tensor, Any]:
        """(y, the state that the next token starts from)."""
        option = next(
            name for name in ("return_last_state", "return_state") if name in inspect.signature(module.forward).parameters
        )
        return module(x, **{option: True})


class PoolsCase(Case):
    """GatedDeltaNet and KimiDeltaAttention, whose states are pools that calls write to."""

    def begin(self, module: Any, B: int) -> Any:
        return module.new_state(B)

    def step(self, module: Any, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module.step(token[:, None], state)[:, 0], state

    def prompt(self, module: Any, x: Tensor) -> tuple[Tensor, Any]:
        state = module.new_state(x.shape[0])
        return module(x, state), state


class MatrixCase(Case):
    """A module that multiplies vectors (B, L), or (L, B) for Toeplitz matrices, by a matrix of size L."""

    is_layer = False
    has_steps = False

    def __init__(self, module: str, *tensors: str, id: str = "", **more: Any):
        self.module, self.tensors, self.more, self.sizes = module, tensors, more, (5,)
        self.id = module + id

    def make(self, seed: int = 0, L: int = 5, parameters: bool = True, **like: Any) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(seed)
        given = []
        for name in self.tensors:
            shape = (L, 2) if name in "GH" else (L,)
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            if name in "cr":
                x[:1] += 4 * L  # diagonally dominant, so regular
            x = x.to(like.get("device"), like.get("dtype", torch.float32))
            given.append(torch.nn.Parameter(x) if parameters else x)
        made: torch.nn.Module = getattr(nn, self.module)(*given, **self.more)
        return made

    def inputs(self, seed: int, B: int = 2, L: int = 5, **like: Any) -> Tensor:
        drawn = torch.randn(self.shape(B, L), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return drawn.to(like.get("device"), like.get("dtype", torch.float32))

    def shape(self, B: int, L: int) -> tuple[int, ...]:
        return (L, B) if self.module.startswith("Toeplitz") else (B, L)


class KernelCase(Case):
    """A convolution kernel over its parent's parameters; inputs (B, L, H) are convolved with it."""

    is_layer = False

    def __init__(self, module: str, **more: Any):
        self.mode = more.pop("mode", None)  # the mode of S4's steps
        self.module, self.more, self.sizes, self.width = module, more, (3, 4, 2), 4
        self.id = f"{module}-{self.mode}" if self.mode else module

    def make(self, seed: int = 0, **like: Any) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(seed)
        shapes = {"A_imag": (4, 3), "B": (1, 4, 3, 2), "C": (2, 4, 3, 2), "P": (1, 4, 3, 2), "inv_dt": (4, 1)}
        drawn = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        drawn |= {"A_real": torch.zeros(4, 3, dtype=torch.float64), "inv_dt": drawn["inv_dt"] / 2 - 2}
        like = {"dtype": torch.float32} | like
        tensors = {name: torch.nn.Parameter(x.to(**like)) for name, x in drawn.items()}
        options = S4_SIZES | S4_TRANSFORMS | self.more
        if self.module == "S4DKernel":
            del tensors["P"]
        made: Any = getattr(nn, self.module)(4, None, 2, tensors | options)
        if self.mode:
            made._setup_step(self.mode)
        return made

    def shape(self, B: int, L: int) -> tuple[int, ...]:
        return B, L, 2, 4

    def run(self, module: Any, x: Tensor) -> Tensor:
        """The result, (B, L, channels, H)."""
        L = x.shape[1]
        k, _ = module(L=L)
        steps = torch.arange(L, device=x.device)
        lag = steps[:, None] - steps
        toeplitz = torch.where(lag >= 0, k[..., lag.clamp(min=0)] if L else k[..., None], 0)
        return torch.einsum("chts,bsh->btch", toeplitz, x.to(k.dtype))

    def prompt(self, module: Any, x: Tensor) -> tuple[Tensor, Any]:
        return self.run(module, x), module.forward_state(x.mT, module.default_state(x.shape[0]))


CASES = [
    Case("S5", 6, 8, blocks=2, width=6, sizes=(6, 8, 2)),
    Case("S5", 6, 7, conj_sym=False, discretization="bilinear", width=6, sizes=(6, 7)),
    Case("LRU", 6, 5, r_min=0.9, r_max=0.999, width=6, sizes=(6, 5)),
    Case("S6", 6, d_state=4, width=6, sizes=(6, 4, 1)),
    Case("Mamba", 6, d_state=7, d_conv=3, width=6, sizes=(6, 12, 7, 1, 3)),
    Case("Mamba2", 6, d_state=5, d_conv=3, headdim=4, ngroups=1, width=6, sizes=(6, 5, 3, 3, 4, 12, 1)),
    Case(
        "Mamba2",
        6,
        d_state=5,
        expand=3,
        headdim=2,
        d_ssm=8,
        ngroups=2,
        D_has_hdim=True,
        rmsnorm=False,
        dt_limit=(0.002, 0.05),
        width=6,
        sizes=(6, 5, 4, 2, 8, 2),
    ),
    Case("RGLRU", 6, 2, width=6, sizes=(6, 2)),
    Case("S7", 6, 3, width=6, sizes=(6, 3)),
    Case("ShortConv", 6, kernel_size=4, bias=True, width=6, sizes=(6, 4)),
    Case("HyenaCascade", 8, fir_inner_filter_length=7, width=24, out=8, sizes=(8, 7, 3)),
    Case("HyenaCascade", 8, fir_inner_filter_length=130, hyena_filter_groups=4, width=24, out=8, sizes=(8, 130, 4, 3)),
    Case("HyenaCascade", 8, state_size=5, width=24, out=8, sizes=(8, 5, 3)),
    Case("S4", 6, d_state=10, width=6, sizes=(6, 10)),
    Case("S4", 6, d_state=10, init="fout", output="linear", width=6, sizes=(6, 10)),
    Case("S4", 6, d_state=10, bidirectional=True, activation=None, output=None, width=6, sizes=(6, 10)),
    Case("S4D", 6, d_state=10, width=6, sizes=(6, 10)),
    Case("S4D", 6, d_state=10, init="inv", disc="bilinear", width=6, sizes=(6, 10)),
    Case("S4D", 6, d_state=7, init="real", bidirectional=True, width=6, sizes=(6, 7)),
    Case("S4D", 6, d_state=10, init="legs", output=None, width=6, sizes=(6, 10)),
    PoolsCase("KimiDeltaAttention", 32, (1, 2), 64, 16, width=32, sizes=(32, 1, 2, 64, 16)),
    PoolsCase("GatedDeltaNet", 32, (1, 2), 64, 16, width=32, sizes=(32, 1, 2, 64, 16)),
    MatrixCase("CauchyKernel", "omega", "lambd"),
    MatrixCase("CauchyKernel", "omega", "lambd", id="-conj", conj=True),
    MatrixCase("ToeplitzMV", "c", "r"),
    MatrixCase("ToeplitzMV", "c", "r", id="-transpose", transpose=True),
    MatrixCase("ToeplitzSolve", "c", "r"),
    MatrixCase("ToeplitzSolve", "c", id="-symmetric"),
    MatrixCase("ToeplitzInverse", "c", "r"),
    MatrixCase("DisplacementMV", "G", "H"),
    MatrixCase("DisplacementMV", "G", "H", id="-cyclic", disp_type=DisplacementType.CYCLIC_ANTICYCLIC),
    KernelCase("S4Kernel"),
    KernelCase("S4Kernel", mode="linear"),
    KernelCase("S4DKernel", disc="bilinear"),
]
