"""Errors (relative RMS) of the scans against their literal recurrences in fp64 on the same inputs, by operator, class of input
and dtype: the largest error of results, and that of gradients; for steps, of outputs and of the last state. operators/ has the
table for CPU tensors, gpu/ for kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import gated_oracle
import oracle
import rglru_cases
import simplified_oracle
import step_cases
import torch
from oracle import REAL_ONLY, relative_rms, wide
from selective_inputs import Draw, model_inputs, selective_inputs
from torch import Tensor

import gdn_cuda

Inputs = dict[str, Any]
Errors = tuple[float, ...]

REAL, COMPLEX = (torch.float32, torch.bfloat16), (torch.complex64,)
EVERY = REAL + COMPLEX
# bf16 has a relative rounding error of at most 2⁻⁸.
BOUNDS = {torch.float32: (1e-5, 1e-4), torch.complex64: (1e-5, 1e-4), torch.bfloat16: (4e-3, 4e-3)}
STEPS = 64


@dataclass
class Case:
    operator: str
    label: str
    errors: Callable[[str, int], Errors]  # (device, seed)


def results_and_gradients(
    ours: Callable[..., Any], literal: Callable[..., Any], x: Inputs, gradients: bool = True
) -> Callable[[str, int], Errors]:
    """The largest error of a result, and of a gradient. Autograd's time for a loop over many tokens grows with the square of
    their number."""

    def errors(device: str, seed: int) -> Errors:
        draw = Draw(seed)
        with torch.no_grad():
            out, last = ours(**on(device, x))
            pairs = zip((out, last), literal(**x), strict=True)
            result_error = max(relative_rms(mine.cpu(), wanted) for mine, wanted in pairs)
        if not gradients:
            return (result_error,)
        grads = [draw.normal(*y.shape, dtype=y.dtype) for y in (out, last)]
        exact = {name: wide(value) for name, value in x.items()}
        wanted = oracle.gradients(literal, exact, *grads)
        found = oracle.gradients(ours, on(device, x), *(g.to(device) for g in grads))
        return result_error, max(relative_rms(found[name].cpu(), each) for name, each in wanted.items())

    return errors


def on(device: str, x: Inputs) -> Inputs:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in x.items()}


def slowed(A: Tensor) -> Tensor:
    """Poles with the phases of A that decay by one part in a million."""
    rate = torch.full_like(A.real, -1e-6)
    return torch.complex(rate, A.imag) if A.is_complex() else rate


# ---- Selective scans


def selective(length: int, long: int) -> Callable[[torch.dtype, int], Iterator[Case]]:
    def ours(**x: Any) -> Any:
        return gdn_cuda.selective_scan(**x, return_last_state=True)

    def cases(dtype: torch.dtype, seed: int) -> Iterator[Case]:
        is_complex = dtype.is_complex
        io = torch.float32 if is_complex else dtype

        def case(label: str, x: Inputs, gradients: bool = True) -> Case:
            return Case("selective_scan", label, results_and_gradients(ours, oracle.selective_scan, x, gradients))

        def drawn(name: str = "mamba", **form: Any) -> Inputs:
            return selective_inputs(
                seed, name, **{"dim": 8, "N": 16, "length": length, "dtype": io, "is_complex": is_complex} | form
            )

        for name in oracle.DISCRETIZATIONS:
            if not (is_complex and name in REAL_ONLY):
                yield case(name, drawn(name))
        yield case("transposed", drawn(last=True))
        yield case("constant B and C", drawn(B="constant", C="constant"))
        yield case("N = 1", drawn(N=1))
        yield case("N = 256", drawn(N=256, dim=2))
        offsets = [0, 0, length // 7, length // 2, length]
        yield case("packed", drawn(batch=1, cu_seqlens=offsets))
        if not is_complex:
            yield case("a layer at initialisation", model_inputs(seed, 1, 8, length, 16, dtype))
        for tokens in (long // 8, long):
            slow = drawn(batch=1, dim=2, N=2, length=tokens, bare=True)
            A = slowed(slow["A"])
            yield case(f"A = −1e-6, {tokens} tokens", slow | {"A": A}, gradients=tokens < long)
        if is_complex:
            fast = drawn(bare=True)
            fast["A"] = torch.complex(fast["A"].real, 3e3 * fast["A"].imag)
            yield case("phases to 1e4 rad a token", fast)

    return cases


# ---- RG-LRU and S7


def gated(length: int, long: int) -> Callable[[torch.dtype, int], Iterator[Case]]:
    def rglru(**x: Any) -> Any:
        return gdn_cuda.rglru_scan(**x, return_last_state=True)

    def s7(**x: Any) -> Any:
        return gdn_cuda.s7_scan(**x, return_last_state=True)

    def cases(dtype: torch.dtype, seed: int) -> Iterator[Case]:
        def case(label: str, *shape: int, **form: Any) -> Case:
            x = rglru_cases.inputs(*shape, seed, dtype=dtype, **form)
            given = {"u": x.u, "delta": x.delta, "A": x.A, **x.options}
            return Case("rglru_scan", label, results_and_gradients(rglru, gated_oracle.rglru, given))

        def s7_case(label: str, x: Inputs, gradients: bool = True) -> Case:
            return Case("s7_scan", label, results_and_gradients(s7, gated_oracle.s7, x, gradients))

        yield case("as RecurrentGemma", 2, 8, length, 1, first_multiplier=True)
        yield case("transposed, resets, N = 7", 1, 4, length, 7, channels_last=True, resets=True)
        packed = [0, 0, length // 7, length // 2, length]
        yield case("packed, initial states", 1, 4, length, 1, packed=packed, initial=True)
        for tokens in (long // 8, long):
            slow = rglru_cases.inputs(1, 2, tokens, 1, seed, dtype=dtype)
            x = {"u": slow.u, "delta": slow.delta, "A": torch.full_like(slow.A, 1 - 2.0**-20)}
            measured = results_and_gradients(rglru, gated_oracle.rglru, x, gradients=tokens < long)
            yield Case("rglru_scan", f"A = 1 − 2⁻²⁰, {tokens} tokens", measured)

        draw, b, H, N = Draw(seed), 2, 5, 3
        shapes = {"u": (b, H), "A": (b, N), "B": (b, N, H), "C": (b, H, N), "bias": (b, N)}
        yield s7_case("as drawn", {name: draw.normal(*shape, length, dtype=dtype) for name, shape in shapes.items()})
        for tokens in (long // 8, long):
            x = {name: draw.normal(*shape, tokens, dtype=dtype) for name, shape in shapes.items()}
            yield s7_case(f"Ā = 1 − 1e-6, {tokens} tokens", x | {"A": torch.full_like(x["A"], 1e3)}, gradients=tokens < long)

    return cases


# ---- Simplified scans


def simplified(length: int, long: int) -> Callable[[torch.dtype, int], Iterator[Case]]:
    def ours(**x: Any) -> Any:
        return gdn_cuda.simplified_scan(**x, return_last_state=True)

    def cases(dtype: torch.dtype, seed: int) -> Iterator[Case]:
        def case(label: str, x: Inputs, gradients: bool = True) -> Case:
            measured = results_and_gradients(ours, simplified_oracle.simplified_scan, x, gradients)
            return Case("simplified_scan", label, measured)

        for name in simplified_oracle.NAMES:
            for varying in (False, True):
                x = simplified_oracle.drawn(seed, 2, 6, 8, length, varying=varying, with_a=varying, with_state=True)
                yield case(f"{name}, δ {'and δ_A vary' if varying else 'constant'}", x | {"discretization": name})
        for tokens in (long // 8, long):
            x = simplified_oracle.drawn(seed, 1, 2, 3, tokens, varying=False) | {"discretization": "zoh"}
            yield case(f"Re A = −1e-6, {tokens} tokens", x | {"A": slowed(x["A"])}, gradients=tokens < long)

    return cases


# ---- Steps


def steps(count: int) -> Callable[[torch.dtype, int], Iterator[Case]]:
    """`count` steps, each from the state after the previous one."""

    def errors(update: Callable[..., Tensor], literal: Callable[[Inputs], Any], x: Inputs) -> Callable[[str, int], Errors]:
        def found(device: str, _: int) -> Errors:
            mine, exact, out_error = on(device, x | {"state": x["state"].clone()}), dict(x), 0.0
            for _ in range(count):
                out = update(**mine)
                wanted, state = map(torch.from_numpy, literal(exact)[:2])
                exact["state"], out_error = state, max(out_error, relative_rms(out.cpu(), wanted))
            return out_error, relative_rms(mine["state"].cpu(), exact["state"])

        return found

    selective_errors = partial(errors, gdn_cuda.selective_state_update, step_cases.selective)
    simplified_errors = partial(errors, gdn_cuda.simplified_state_update, step_cases.simplified)

    def cases(dtype: torch.dtype, seed: int) -> Iterator[Case]:
        state, io = (dtype, torch.float32) if dtype.is_complex else (torch.float32, dtype)
        for name in step_cases.COMPLEX if dtype.is_complex else step_cases.REAL:
            x = step_cases.draws(seed, name, state=state, io=io)
            yield Case("selective_state_update", name, selective_errors(x))
        x = step_cases.draws(seed, state=state, io=io, bare=True)
        x["A"] = slowed(x["A"])
        yield Case("selective_state_update", "A = −1e-6", selective_errors(x))
        if not dtype.is_complex:
            return
        for name in simplified_oracle.NAMES:
            drawn = simplified_oracle.drawn(seed, 3, 6, 8, 1, varying=True)
            y = {"A": drawn["A"], "B": drawn["B"], "C": drawn["C"], "discretization": name}
            y |= {"state": torch.zeros(3, 8, dtype=dtype), "x": drawn["u"][..., 0], "dt": drawn["delta"][..., 0]}
            yield Case("simplified_state_update", name, simplified_errors(y))

    return cases


# ---- The table

Cases = Callable[[torch.dtype, int], Iterator[Case]]
Parts = dict[str, tuple[Cases, tuple[torch.dtype, ...]]]


def parts(length: int, long: int) -> Parts:
    """Parts of the table by name: scans of `length` tokens, and slow decays over `long` tokens (RG-LRU and S7: an eighth;
    with gradients: an eighth of that)."""
    return {
        f"selective scans of {length} tokens": (selective(length, long), EVERY),
        f"gated scans of {length} tokens": (gated(length, long // 8), REAL),
        f"simplified scans of {length} tokens": (simplified(length, long), COMPLEX),
        f"{STEPS} steps": (steps(STEPS), EVERY),
    }


def check(part: str, table: Parts, device: str, seed: int) -> None:
    """Prints a part of the table and compares it with the bounds."""
    cases, dtypes = table[part]
    rows: dict[tuple[str, str], dict[torch.dtype, Errors]] = {}
    for dtype in dtypes:
        for case in cases(dtype, seed):
            rows.setdefault((case.operator, case.label), {})[dtype] = case.errors(device, seed + 1)
    text = [f"| | inputs | {' | '.join(str(dtype)[6:] for dtype in dtypes)} |", "|---" * (2 + len(dtypes)) + "|"]
    for (operator, label), row in rows.items():
        cells = [" · ".join(f"{error:.0e}" for error in row.get(dtype, ())) for dtype in dtypes]
        text.append(f"| `{operator}` | {label} | {' | '.join(cells)} |")
    print(f"\n{part[0].upper() + part[1:]}, {device}:\n", *text, sep="\n")
    for name, row in rows.items():
        for dtype, errors in row.items():
            assert all(e < bound for e, bound in zip(errors, BOUNDS[dtype], strict=False)), (*name, dtype, errors)
