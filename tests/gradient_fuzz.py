"""Calls of every operator with gradients, drawn with hostile values: zeros, gates and steps at the ends of their ranges, decays
of exactly 0 and 1, poles on an axis, sizes of 1. Results and gradients of two implementations are compared: where one is
finite the other is, and differences are of rounding."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.operators.examples import call_operator

Arguments = dict[str, Any]
INF = torch.inf
C64 = torch.complex64
# Beyond it an intermediate result in fp32 may be infinite although the rounded fp64 result is finite.
LARGE = 1e25
BOUND = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3, C64: 2e-5}
# The change of the result by rounding the inputs to fp32, times this, is tolerated.
CONDITION = 16.0


class Draws:
    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def pick(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(*shape, generator=self.generator, dtype=wide).to(dtype)

    def hostile(self, values: tuple[float, ...], *shape: int, dtype: torch.dtype = torch.float32, share: float = 0.5) -> Tensor:
        """Normally distributed values with the sign of most of `values`, a share of them replaced by some of `values`."""
        found = self.normal(*shape, dtype=torch.float64)
        if all(value >= 0 for value in values):
            found = found.abs()
        if all(value <= 0 for value in values):
            found = -found.abs()
        chosen = torch.rand(*shape, generator=self.generator) < share
        at = torch.randint(len(values), shape, generator=self.generator)
        return torch.where(chosen, torch.tensor(values, dtype=torch.float64)[at], found).to(dtype)

    def maybe(self, make: Callable[[], Any]) -> Any:
        return make() if self.rng.random() < 0.5 else None


@dataclass(frozen=True)
class Call:
    function: Callable[..., Any]
    arguments: Arguments
    operands: torch.dtype | None = None  # what kernels round factors of products to, where results are wider


DRAWS: dict[str, Callable[[Draws], Call]] = {}
IN_EMULATOR: set[str] = set()


def drawn(emulated: bool) -> Callable[[Callable[[Draws], Call]], Callable[[Draws], Call]]:
    def declare(draw: Callable[[Draws], Call]) -> Callable[[Draws], Call]:
        name = draw.__name__.lstrip("_")
        DRAWS[name] = draw
        if emulated:
            IN_EMULATOR.add(name)
        return draw

    return declare


# ---- Scans

STEPS = (0.0, 1e-30, 1e-8, 1e-3, 1.0, 30.0, 1e4)
# Values before softplus. Below −87 softplus is subnormal or 0 in fp32, but not in fp64: a decay of 0 to that power is 1 or 0.
RAW_STEPS = (-1e3, -80.0, -20.0, 0.0, 20.0, 21.0, 100.0)
RATES = (0.0, -1e-30, -1e-6, -1.0, -50.0, -1e4)
PHASES = (0.0, 1e-20, 1.0, -3.1415927, 100.0)
DECAYS = (0.0, 1e-30, 0.5, 1.0 - 2.0**-24, 1.0)
VALUES = (0.0, 1e-20, 1.0, -1e6)


def _poles(x: Draws, *shape: int, is_complex: bool) -> Tensor:
    rates = x.hostile(RATES, *shape)
    return torch.complex(rates, x.hostile(PHASES, *shape)) if is_complex else rates


def _selective(x: Draws, discretization: str) -> Call:
    B, D, N, L = x.pick(1, 2), x.pick(1, 3), x.pick(1, 2, 5), x.pick(1, 2, 5, 70)
    only_real = discretization in ("s7", "rglru")
    is_complex = not only_real and x.pick(True, False)
    softplus = x.pick(True, False)
    decays, steps = DECAYS, RAW_STEPS if softplus else STEPS
    if discretization == "rglru":  # 0⁰ has no derivative
        decays, steps = x.pick((DECAYS[1:], steps), (DECAYS, steps[1:]))
    A = x.hostile(decays, D, N).clamp(max=1) if discretization == "rglru" else _poles(x, D, N, is_complex=is_complex)

    def coefficients() -> Tensor:
        form = x.pick("constant", "varying", "groups", "pairs")
        if form == "constant":
            return x.normal(D, N, dtype=A.dtype)
        groups = (D,) if form == "groups" else ()
        if is_complex and form == "pairs":
            return x.normal(B, *groups, N, 2 * L)
        return x.normal(B, *groups, N, L, dtype=A.dtype)

    arguments = {
        "u": x.hostile(VALUES, B, D, L),
        "delta": x.hostile(steps, B, D, L),
        "A": A,
        "B": coefficients(),
        "C": coefficients(),
        "D": x.maybe(lambda: x.normal(D)),
        "z": x.maybe(lambda: x.hostile((0.0, -100.0, 100.0, -20.0), B, D, L)),
        "delta_bias": x.maybe(lambda: x.hostile((0.0, 1e-8, 1.0), D)),
        "delta_a": None if only_real else x.maybe(lambda: x.hostile(STEPS, B, D, L)),
        "initial_state": x.maybe(lambda: x.normal(B, D, N, dtype=A.dtype)),
        "delta_softplus": softplus,
        "discretization": discretization,
        "return_last_state": True,
    }
    if x.pick(True, False):
        arguments |= {
            name: y.mT.contiguous().mT for name in ("u", "delta", "z", "delta_a") if (y := arguments[name]) is not None
        }
    return Call(gdn_cuda.selective_scan, arguments)


@drawn(emulated=True)
def _selective_mamba(x: Draws) -> Call:
    return _selective(x, "mamba")


@drawn(emulated=True)
def _ssd(x: Draws) -> Call:
    """In bf16, as on a GPU; dt and A in fp32."""
    B, T, G, P, N = x.pick(1, 2), x.pick(1, 2, 70), x.pick(1, 2), x.pick(8, 64), x.pick(8, 64)
    H, rows, softplus = 2 * G, (B, T), x.pick(True, False)
    return Call(
        gdn_cuda.ssd_scan,
        {
            "x": x.normal(*rows, H, P, dtype=torch.bfloat16),
            "dt": x.hostile(RAW_STEPS if softplus else STEPS, *rows, H),
            "A": x.hostile(RATES, H),
            "B": x.normal(*rows, G, N, dtype=torch.bfloat16),
            "C": x.normal(*rows, G, N, dtype=torch.bfloat16),
            "D": x.maybe(lambda: x.normal(H)),
            "z": x.maybe(lambda: x.normal(*rows, H, P, dtype=torch.bfloat16)),
            "dt_bias": x.maybe(lambda: x.hostile((0.0, 1e-8, 1.0), H)),
            "initial_state": x.maybe(lambda: x.normal(B, H, P, N)),
            "dt_softplus": softplus,
            "dt_limit": (0.0, 10.0),
            "return_last_state": True,
        },
        operands=torch.bfloat16,
    )


@drawn(emulated=True)
def _selective_zoh(x: Draws) -> Call:
    return _selective(x, "zoh")


@drawn(emulated=True)
def _selective_bilinear(x: Draws) -> Call:
    return _selective(x, "bilinear")


@drawn(emulated=True)
def _selective_dirac(x: Draws) -> Call:
    return _selective(x, "dirac")


@drawn(emulated=True)
def _selective_s7(x: Draws) -> Call:
    return _selective(x, "s7")


@drawn(emulated=True)
def _selective_rglru(x: Draws) -> Call:
    return _selective(x, "rglru")


@drawn(emulated=True)
def _rglru(x: Draws) -> Call:
    B, D, N, L = x.pick(1, 2), x.pick(1, 3), x.pick(1, 3), x.pick(1, 2, 9, 70)
    arguments = {
        "u": x.hostile(VALUES, B, D, L),
        "delta": x.hostile(STEPS, B, D, L),
        "A": x.hostile(DECAYS, D, N).clamp(max=1),
        "return_last_state": True,
        "initial_state": x.maybe(lambda: x.normal(B, D, N)),
        "reset": x.maybe(lambda: torch.rand(B, L, generator=x.generator) < 0.2),
        "first_multiplier": x.pick(True, False),
        "max_sqrt_gradient": x.pick(None, 1000.0),
    }
    if x.pick(True, False):
        arguments |= {name: arguments[name].mT.contiguous().mT for name in ("u", "delta")}
    return Call(gdn_cuda.rglru_scan, arguments)


@drawn(emulated=True)
def _s7(x: Draws) -> Call:
    b, H, N, L = x.pick(1, 2), x.pick(1, 3), x.pick(1, 4), x.pick(1, 2, 9)
    return Call(
        gdn_cuda.s7_scan,
        {
            "u": x.hostile(VALUES, b, H, L),
            "A": x.hostile((0.0, 1e-20, 0.5**0.5, 0.5, 1e3, -1e10), b, N, L),
            "B": x.normal(b, N, H, L),
            "C": x.normal(b, H, N, L),
            "bias": x.maybe(lambda: x.normal(b, N, L)),
            "return_last_state": True,
        },
    )


def _diagonal(x: Draws) -> Arguments:
    b, H, P, L = x.pick(1, 2), x.pick(1, 3), x.pick(1, 2, 5), x.pick(1, 2, 40)
    steps = (b, P, L) if x.pick(True, False) else (P,)
    return {
        "u": x.normal(b, H, L, dtype=C64),
        "delta": x.hostile(STEPS, *steps),
        "A": _poles(x, P, is_complex=True),
        "B": x.normal(P, H, dtype=C64),
        "C": x.normal(H, P, dtype=C64),
        "delta_a": x.maybe(lambda: x.hostile(STEPS, *steps)),
        "discretization": x.pick("bilinear", "zoh", "dirac"),
    }


@drawn(emulated=True)
def _simplified(x: Draws) -> Call:
    given = _diagonal(x)
    start = x.maybe(lambda: x.normal(given["u"].shape[0], given["A"].shape[0], dtype=C64))
    return Call(gdn_cuda.simplified_scan, given | {"initial_state": start, "return_last_state": True})


@drawn(emulated=True)
def _s5(x: Draws) -> Call:
    given = _diagonal(x)
    return Call(gdn_cuda.s5_inner, given | {"D": x.normal(given["u"].shape[1]), "conj_sym": x.pick(True, False)})


# ---- Convolutions


@drawn(emulated=True)
def _causal_conv1d(x: Draws) -> Call:
    B, D, L, W = x.pick(1, 2), x.pick(1, 3, 8), x.pick(1, 2, 9, 40), x.pick(1, 2, 4, 5, 32)
    rows = x.hostile((0.0, 1e-30, 1e8, -100.0), B, D, L)
    arguments = {
        "x": rows.mT.contiguous().mT if x.pick(True, False) else rows,
        "weight": x.hostile((0.0, 1.0, -1.0), D, W),
        "bias": x.maybe(lambda: x.hostile((0.0, -200.0, 100.0), D)),
        "initial_states": x.maybe(lambda: x.normal(B, D, W - 1)),
        "return_final_states": True,
        "activation": x.pick(None, "silu"),
    }
    return Call(gdn_cuda.causal_conv1d, arguments)


@drawn(emulated=True)
def _conv_split_l2norm(x: Draws) -> Call:
    B, L, W = x.pick(1, 2), x.pick(1, 2, 9), x.pick(1, 4)
    heads = {"key_heads": x.pick(1, 2), "value_heads": x.pick(1, 3), "dk": x.pick(1, 2, 8), "dv": x.pick(1, 4, 8)}
    D, Hv = 2 * heads["key_heads"] * heads["dk"] + heads["value_heads"] * heads["dv"], heads["value_heads"]
    # a, A_log and dt_bias are infinite in turns: infinity times 0, and infinity less itself, are NaN on either side.
    infinite = x.pick("a", "A_log", "dt_bias")
    a, A_log = (-120.0, -20.0, 0.0, 21.0, 1e10), (-120.0, 0.0, 3.0, 87.0)
    gates = {
        "a": x.hostile((*a, INF) if infinite == "a" else a, B, L, Hv),
        "b": x.hostile((-INF, -120.0, 0.0, 120.0, INF), B, L, Hv),
        "A_log": x.hostile((*A_log, INF, -INF) if infinite == "A_log" else A_log, Hv),
        "dt_bias": x.hostile((0.0, 1.0, INF) if infinite == "dt_bias" else (0.0, 1.0), Hv),
    }
    given = {"x": x.hostile((0.0, 1e-3, 30.0), B, L, D).mT, "weight": x.normal(D, W), "bias": x.maybe(lambda: x.normal(D))}
    given["initial_states"] = x.maybe(lambda: x.normal(B, D, W - 1))
    return Call(gdn_cuda.conv_split_l2norm, given | heads | gates | {"l2norm": x.pick(True, False), "eps": x.pick(1e-6, 0.5)})


@drawn(emulated=False)  # fp32 rows, whose backward is in torch
def _chunked_forward(x: Draws) -> Call:
    B, T, Hk, Hv = x.pick(1, 2), x.pick(1, 2, 70), x.pick(1, 2), x.pick(2, 4)
    dk, dv = x.pick(1, 8, 20), x.pick(1, 8)
    arguments = {
        "query": x.normal(B, T, Hk, dk),
        "key": x.normal(B, T, Hk, dk),
        "value": x.hostile((0.0, 1e-3, 30.0), B, T, Hv, dv),
        "beta": x.hostile((-INF, -80.0, 0.0, 80.0, INF), B, T, Hv),
        "gate": x.hostile((0.0, -1e-30, -1.0, -80.0, -1e4, -INF), B, T, Hv),
        "state": x.maybe(lambda: x.normal(B, Hv, dv, dk)),
        "beta_is_logit": True,
        "allow_negative_eigenvalues": x.pick(True, False),
        "use_qk_l2norm": True,
    }
    return Call(gdn_cuda.chunked_forward, arguments)


@drawn(emulated=True)
def _rms_norm_gated(x: Draws) -> Call:
    rows, groups, columns = x.pick(1, 3), x.pick(1, 2), x.pick(1, 2, 8, 70)
    shape = (rows, groups * columns)
    arguments = {
        "x": x.hostile((0.0, 1e-10, 1e-3, 1e10), *shape, share=0.2),
        "gate": x.maybe(lambda: x.hostile((0.0, -80.0, -20.0, 88.0), *shape)),
        "weight": x.maybe(lambda: x.hostile((0.0, 1.0), shape[-1])),
        "eps": x.pick(1e-5, 0.5),
        "activation": x.pick("silu", "sigmoid"),
        "norm_before_gate": x.pick(True, False),
        "group_size": columns,
    }
    return Call(gdn_cuda.rms_norm_gated, arguments)


def _gated(x: Draws) -> Arguments:
    B, D, L = x.pick(1, 2), x.pick(1, 4), x.pick(1, 2, 33, 70)
    found = {name: x.hostile((0.0, 1e-20, 1.0, -100.0), B, D, L) for name in ("x1", "x2", "v")}
    if x.pick(True, False):
        found = {name: y.mT.contiguous().mT for name, y in found.items()}
    return found | {"bias": x.hostile((0.0, 1.0), D), "return_state": True}


@drawn(emulated=True)
def _hyena_short(x: Draws) -> Call:
    given, K = _gated(x), x.pick(1, 3, 32)
    B, D, _ = given["v"].shape
    more = {"weight": x.hostile((0.0, 1.0), x.pick(1, D), 1, K), "gated_bias": x.pick(True, False)}
    return Call(gdn_cuda.hyena_short, given | more | {"initial_state": x.maybe(lambda: x.normal(B, D, K - 1))})


@drawn(emulated=True)
def _hyena_medium(x: Draws) -> Call:
    given, K = _gated(x), x.pick(1, 7, 128)
    B, D, _ = given["v"].shape
    more = {"weight": x.hostile((0.0, 1.0), x.pick(1, D), 1, K), "initial_state": x.maybe(lambda: x.normal(B, D, K - 1))}
    return Call(gdn_cuda.hyena_medium, given | more)


@drawn(emulated=True)
def _transposed(x: Draws) -> Call:
    rows = x.hostile((0.0, 1e-30, INF), x.pick(1, 3), x.pick(1, 2, 70), x.pick(1, 8, 66))
    return Call(call_operator("transposed"), {"x": rows[..., x.pick(0, 1) :] if x.pick(True, False) else rows.mT})


LOG_POLES = (0.0, -1e-30, -1e-6, -1.0, -90.0, -1e4)


@drawn(emulated=True)
def _hyena_long(x: Draws) -> Call:
    given, S = _gated(x), x.pick(1, 3, 16)
    B, D, _ = given["v"].shape
    groups = x.pick(1, D)
    more = {"residues": x.hostile((0.0, 1.0), groups, S), "log_poles": x.hostile(LOG_POLES, groups, S)}
    return Call(gdn_cuda.hyena_long, given | more | {"initial_state": x.maybe(lambda: x.normal(B, D, S))})


@drawn(emulated=True)
def _hyena_filter(x: Draws) -> Call:
    rows, S = x.pick(1, 3), x.pick(1, 5)
    given = {"residues": x.hostile((0.0, 1.0), rows, S), "log_poles": x.hostile(LOG_POLES, rows, S)}
    return Call(gdn_cuda.hyena_filter, given | {"L": x.pick(1, 2, 100)})


@drawn(emulated=False)
def _fft_causal_conv(x: Draws) -> Call:
    B, D, L = x.pick(1, 2), x.pick(1, 4), x.pick(1, 2, 70)
    k = x.hostile((0.0, 1.0), x.pick(1, D), x.pick(0, 1, L))
    return Call(
        gdn_cuda.fft_causal_conv, {"u": x.hostile((0.0, 1e-20, 1.0), B, D, L), "k": k, "D": x.maybe(lambda: x.normal(D))}
    )


# ---- Structured matrices


def _points(x: Draws, *shape: int, is_complex: bool) -> Tensor:
    """Points on the imaginary axis, on the real axis, at 0, or anywhere, but never at a pole of `_apart`."""
    real = x.hostile((0.0, 1e-6, 100.0), *shape)
    return torch.complex(real, x.hostile((0.0, 1.0, -50.0), *shape)) if is_complex else real


def _apart(x: Draws, *shape: int, is_complex: bool) -> Tensor:
    real = x.hostile((-0.5, -1e-3, -100.0), *shape)
    return torch.complex(real, x.hostile((0.0, 1.0, -50.0), *shape)) if is_complex else real


@drawn(emulated=False)
def _cauchy_kernel(x: Draws) -> Call:
    N, L, is_complex = x.pick(1, 2, 33), x.pick(1, 2, 70), x.pick(True, False)
    dtype = C64 if is_complex else torch.float32
    points = {"omega": _points(x, L, is_complex=is_complex), "lambd": _apart(x, 2, N, is_complex=is_complex)}
    return Call(gdn_cuda.cauchy_kernel, {"v": x.normal(2, N, dtype=dtype)} | points)


@drawn(emulated=False)
def _cauchy_conj(x: Draws) -> Call:
    N, L = x.pick(1, 2, 33), x.pick(1, 2, 70)
    z = _points(x, L, is_complex=True) if x.pick(True, False) else 1j * x.hostile((0.0, 1.0, 100.0), L)
    return Call(gdn_cuda.cauchy_conj, {"v": x.normal(2, N, dtype=C64), "z": z, "w": _apart(x, 2, N, is_complex=True)})


def _powers(x: Draws, *shape: int) -> Tensor:
    return torch.complex(x.hostile((0.0, -1e-30, -1e-6, -1.0, -90.0, -1e4), *shape), x.hostile(PHASES, *shape))


@drawn(emulated=False)
def _log_vandermonde(x: Draws) -> Call:
    N = x.pick(1, 2, 33)
    return Call(gdn_cuda.log_vandermonde, {"v": x.normal(2, N, dtype=C64), "x": _powers(x, 2, N), "L": x.pick(1, 2, 100)})


@drawn(emulated=False)
def _log_vandermonde_transpose(x: Draws) -> Call:
    N, L = x.pick(1, 2, 33), x.pick(1, 2, 100)
    given = {"u": x.normal(2, L, dtype=C64), "v": x.normal(2, N, dtype=C64), "x": _powers(x, 2, N), "L": L}
    return Call(gdn_cuda.log_vandermonde_transpose, given)


@drawn(emulated=False)
def _toeplitz_matvec(x: Draws) -> Call:
    n, m, dtype = x.pick(1, 2, 70), x.pick(1, 2, 70), x.pick(torch.float32, C64)
    function = x.pick(gdn_cuda.toeplitz_matvec, gdn_cuda.toeplitz_matvec_transpose)
    rows = m if function is gdn_cuda.toeplitz_matvec else n
    return Call(function, {"c": x.normal(n, dtype=dtype), "r": x.normal(m, dtype=dtype), "x": x.normal(rows, dtype=dtype)})


def _dominant(x: Draws, n: int, dtype: torch.dtype) -> Tensor:
    column = x.normal(n, dtype=dtype)
    return torch.cat([column[:1].abs().to(dtype) + 4.0 * n, column[1:]])


@drawn(emulated=False)
def _toeplitz_solve(x: Draws) -> Call:
    n, dtype = x.pick(1, 2, 40), x.pick(torch.float32, C64)
    given = {"c": _dominant(x, n, dtype), "r": x.normal(n, dtype=dtype), "b": x.normal(n, x.pick(1, 3), dtype=dtype)}
    return Call(gdn_cuda.toeplitz_solve, given)


@drawn(emulated=False)
def _toeplitz_solve_symmetric(x: Draws) -> Call:
    n = x.pick(1, 2, 40)
    return Call(gdn_cuda.toeplitz_solve_symmetric, {"c": _dominant(x, n, torch.float32), "b": x.normal(n)})


@drawn(emulated=False)
def _toeplitz_solve_positive(x: Draws) -> Call:
    n = x.pick(1, 2, 40)
    return Call(
        gdn_cuda.toeplitz_solve_symmetric_ex, {"c": _dominant(x, n, torch.float32), "b": x.normal(n), "assume_positive": True}
    )


@drawn(emulated=False)
def _displacement_matvec(x: Draws) -> Call:
    n, r, dtype = x.pick(1, 2, 33), x.pick(1, 2), x.pick(torch.float32, C64)
    given = {"G": x.normal(n, r, dtype=dtype), "H": x.normal(n, r, dtype=dtype), "x": x.normal(n, dtype=dtype)}
    return Call(gdn_cuda.displacement_matvec, given | {"disp_type": x.pick(0, 1, 2)})


# ---- Results and gradients


def run(call: Call, device: str, seed: int) -> dict[str, Tensor]:
    """Outputs by index and gradients by argument, copied to the CPU."""
    given = {name: y.to(device) if isinstance(y, Tensor) else y for name, y in call.arguments.items()}
    leaves = {name: y.detach().requires_grad_() for name, y in given.items() if _is_number(y)}
    found = call.function(**(given | leaves))
    outputs = [y for y in (found if isinstance(found, tuple) else (found,)) if _is_number(y) and y.numel()]
    draws = Draws(seed + 1)
    grads = [draws.hostile((0.0, 1.0), *y.shape, share=0.3).to(device, y.dtype) for y in outputs]
    result = {f"output {i}": y.detach().cpu() for i, y in enumerate(outputs)}
    if outputs:
        gradients = torch.autograd.grad(outputs, list(leaves.values()), grads, allow_unused=True)
        result |= {f"gradient of {name}": y.cpu() for name, y in zip(leaves, gradients, strict=True) if y is not None}
    return result


def _is_number(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def check(name: str, seed: int, other: Callable[[Call, int], dict[str, Tensor]]) -> None:
    """Compares the results on the CPU, computed in fp64 and rounded, with those of another implementation."""
    call = DRAWS[name](Draws(seed))
    expected, found = run(call, "cpu", seed), other(call, seed)
    assert expected.keys() == found.keys()
    moved = [run(_perturbed(call, seed + i), "cpu", seed) for i in range(2)]
    rounded = None if call.operands is None else run(_perturbed(call, seed, call.operands), "cpu", seed)
    for which, theirs in expected.items():
        mine = found[which]
        what = f"{name}, seed {seed}: {which}"
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, what
        near = [each[which] for each in moved]
        bound = BOUND[mine.dtype] * _size(theirs)
        if rounded is not None and call.operands is not None:
            bound = BOUND[call.operands] * _size(theirs) + _size(rounded[which].double() - theirs.double())
        _compare(mine, theirs, near, bound, what)


def _size(x: Tensor) -> float:
    return float(torch.where(x.isfinite(), x.abs().double(), 0).norm())


def _compare(mine: Tensor, theirs: Tensor, near: list[Tensor], bound: float, what: str) -> None:
    parts = [torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in (mine, theirs, *near)]
    own, other, *others = (y.double() for y in parts)
    # A result near the end of fp32's range may overflow in between; where rounding decides whether it is finite, both are
    # right.
    stable = torch.stack([y.isfinite() == other.isfinite() for y in others]).all(0) & ~(
        other.isfinite() & (other.abs() > LARGE)
    )
    differs = (own.isfinite() != other.isfinite()) & stable
    assert not differs.any(), f"{what}: {_some(own[differs])} for {_some(other[differs])}"
    finite = own.isfinite() & other.isfinite() & stable
    if not finite.any():
        return
    own, other, others = own[finite], other[finite], [y[finite] for y in others]
    size = float(other.norm())
    condition = max(float((y - other).norm()) for y in others)
    bound += CONDITION * condition + 1e-30 * other.numel()
    error = float((own - other).norm())
    assert error <= bound, f"{what}: error {error}, {error / max(size, 1e-300)} of the whole, expected up to {bound}"


def _some(x: Tensor) -> list[float]:
    return [float(y) for y in x.flatten()[:4]]


def _perturbed(call: Call, seed: int, dtype: torch.dtype | None = None) -> Call:
    """The call with its inputs, or those of a dtype, changed by one rounding towards 0, so that a decay of 1 does not exceed 1:
    fp32's, or the dtype's."""
    draws = Draws(seed + 100)
    epsilon = torch.finfo(dtype or torch.float32).eps / 2

    def moved(y: Any) -> Any:
        if not _is_number(y) or dtype not in (None, y.dtype):
            return y
        near = y * (1 - epsilon * draws.hostile((0.0, 2.0), *y.shape, share=1.0))
        return near if dtype is None else near.to(dtype)

    return Call(call.function, {name: moved(y) for name, y in call.arguments.items()})
