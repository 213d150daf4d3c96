"""What states in 8 bits cost: errors of decode over thousands of tokens, for every format of the stored state, on the CPU.

    python benchmarks/state_formats.py --tokens 16384 [--quick] [--layers gdn kda mamba2] [--json FILE]

The oracle is the literal recurrence in fp64 on the same inputs. A format computes in fp32 and rounds the state when it stores
it. Printed are relative RMS errors: of the outputs of the last 1024 tokens, of the worst 1024, and of the last state.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

WINDOW = 1024
SEEDS = (0, 1)
E4M3_MOST, INT8_MOST = 448.0, 127.0


# ---- Inputs


class Tokens(NamedTuple):
    """S ← S ⊙ decay;  u = β (v − S k), without β: v;  S ← S + u kᵀ;  o = S q. The first dimension is the token, then heads."""

    q: Tensor  # (T, H, dk)
    k: Tensor  # (T, H, dk)
    v: Tensor  # (T, H, dv)
    beta: Tensor | None  # (T, H, 1)
    decay: Tensor  # (T, H, 1), or for every channel (T, H, dk)


class Case(NamedTuple):
    """Heads of one kind of keys and betas; `gates` names the decays of each head."""

    name: str
    gates: list[str]
    tokens: Tokens


GATES = {
    "gdn": ("init", "init", "0.9", "0.99", "0.999", "0.9999"),
    "kda": ("bounded", "bounded", "softplus", "softplus", "mixed", "0.9999"),
    "mamba2": ("init", "init", "init", "0.99", "0.999", "0.9999"),
}
CASES = {
    "gdn": ("random keys", "β 0.05", "keys 1 % apart", "one key", "outlying channels"),
    "kda": ("random keys", "β 0.05", "keys 1 % apart", "one key", "outlying channels"),
    "mamba2": ("random B, C", "positive B, C", "B 1 % apart", "outlying channels"),
}
SIZES = {"gdn": (128, 128), "kda": (128, 128), "mamba2": (64, 128)}  # dv, dk
# Rows of a state are independent, except for scales that span them: after the first case there are no more than these.
MOST_ROWS = 64


def initial_steps(*shape: int, rng: torch.Generator) -> Tensor:
    """softplus(dt_bias) of a model that has just been initialised."""
    return 0.001 * torch.exp(math.log(100) * torch.rand(*shape, generator=rng))


def gate(layer: str, kind: str, count: int, dk: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Log decays of one head, (T, 1) or (T, dk), and Mamba-2's step sizes (T, 1). Raw gates are normally distributed."""
    columns = dk if layer == "kda" else 1
    dt = initial_steps(columns, rng=rng)
    raw = torch.randn(count, columns, generator=rng) + dt + torch.log(-torch.expm1(-dt))
    A = 1 + 15 * torch.rand(1, generator=rng)
    if kind in ("init", "softplus"):
        step = torch.nn.functional.softplus(raw)
        return -A * step, step[:, :1]
    step = torch.full((count, 1), 0.01)
    if kind == "bounded":
        return -5 * torch.sigmoid(raw), step
    if kind == "mixed":  # a channel keeps 0.9 to 0.9999 of its column
        return torch.log1p(-(10 ** (-1 - 3 * torch.rand(columns, generator=rng)))).expand(count, -1), step
    return torch.full((count, columns), math.log(float(kind))), step


def keys(name: str, count: int, dk: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """k and q of one head, (T, dk)."""
    k, q = torch.randn(count, dk, generator=rng), torch.randn(count, dk, generator=rng)
    if "1 % apart" in name:
        k = torch.randn(dk, generator=rng) + 0.01 * k
    elif name == "one key":
        k = k[:1].expand(count, dk)
    elif name == "outlying channels":
        spread = torch.exp(1.5 * torch.randn(dk, generator=rng))
        k, q = k * spread, q * spread
    elif name == "positive B, C":
        k, q = torch.nn.functional.silu(k), torch.nn.functional.silu(q)
    return k, q


def cases(layer: str, count: int, quick: bool) -> Iterator[Case]:
    dv, dk = SIZES[layer]
    for name in CASES[layer][: 1 if quick else None]:
        heads = []
        dv = dv if name == CASES[layer][0] else min(dv, MOST_ROWS)
        for seed in SEEDS[: 1 if quick else None]:
            rng = torch.Generator().manual_seed(seed)
            for kind in GATES[layer]:
                k, q = keys(name, count, dk, rng)
                log_decay, step = gate(layer, kind, count, dk, rng)
                v = torch.randn(count, dv, generator=rng)
                beta = torch.sigmoid(torch.randn(count, 1, generator=rng))
                if layer == "mamba2":
                    v = step * v
                else:
                    k, q = (torch.nn.functional.normalize(y, dim=-1) for y in (k, q))
                heads.append((q, k, v, torch.full_like(beta, 0.05) if name == "β 0.05" else beta, log_decay.exp()))
        q, k, v, beta, decay = (torch.stack(part, 1) for part in zip(*heads, strict=True))
        gates = list(GATES[layer]) * len(SEEDS[: 1 if quick else None])
        yield Case(name, gates, Tokens(q, k, v, None if layer == "mamba2" else beta, decay))


# ---- Formats


@dataclass(frozen=True)
class Format:
    codes: str = "int8"  # fp32, bf16, int8, e4m3
    tile: tuple[int, int] = (1, 0)  # rows and columns that have a scale; 0: all
    rounding: str = "nearest"  # stochastic, half (noise of half a step), dither (subtracted again by the reader), diffused
    scale: str = "max"  # the largest value of a tile after the update; power of two, kept, clipped
    every: int = 1  # tokens between two writes; those between are kept in a ring, u in bf16
    rotated: bool = False  # q and k, so rows of the state, by a Hadamard matrix
    zero_point: bool = False
    gates16: bool = False  # log decays in bf16 too

    @property
    def name(self) -> str:
        if self.codes in ("fp32", "bf16"):
            return self.codes + (f", ring of {self.every}" if self.every > 1 else "")
        tiles = {(1, 0): "row", (0, 1): "column", (0, 0): "head"}
        parts = [f"{self.codes} a {tiles.get(self.tile, '{}×{}'.format(*self.tile))}"]
        parts += [self.rounding] * (self.rounding != "nearest") + [f"scale {self.scale}"] * (self.scale != "max")
        parts += ["rotated"] * self.rotated + ["zero point"] * self.zero_point + ["gates in bf16"] * self.gates16
        return ", ".join(parts + ([f"ring of {self.every}"] if self.every > 1 else []))


def hadamard(size: int) -> Tensor:
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)


class Noise:
    """Uniform in [0, 1) from a hash of (seed, head, element, token): the same bits for the same seed."""

    def __init__(self, shape: torch.Size, seed: int) -> None:
        self.counters = torch.arange(math.prod(shape), dtype=torch.int32).view(shape) * -1640531527 + seed

    def __call__(self, token: int) -> Tensor:
        x = self.counters ^ ((token * 2246822519 & 0xFFFFFFFF) - (1 << 31))
        for shift, factor in ((16, 2146121005), (15, -2073254261)):
            x = x.bitwise_xor_((x >> shift) & ((1 << (32 - shift)) - 1)).mul_(factor)
        return x.bitwise_xor_((x >> 16) & 0xFFFF).bitwise_and_(0xFFFFFF).float().mul_(2.0**-24)


def rounder(form: Format, shape: torch.Size, seed: int = 7) -> Callable[[Tensor, int], Tensor]:
    """What is read again of a state (H, dv, dk) that is stored after a token."""
    if form.codes == "fp32":
        return lambda s, token: s
    if form.codes == "bf16":
        return lambda s, token: s.bfloat16().float()
    heads, dv, dk = shape
    rows, columns = (size or whole for size, whole in zip(form.tile, (dv, dk), strict=True))
    blocks = (heads, dv // rows, rows, dk // columns, columns)
    most = INT8_MOST if form.codes == "int8" else E4M3_MOST
    noise = Noise(shape, seed)
    kept = torch.zeros(heads, dv // rows, 1, dk // columns, 1)

    def scale_of(x: Tensor) -> Tensor:
        clips = form.scale == "clipped"  # to the second largest value of a row
        found = (x.abs().topk(2, dim=-1).values[..., 1:] if clips else x.abs().amax((2, 4), keepdim=True)) / most
        if form.scale == "power of two":
            found = torch.exp2(torch.ceil(torch.log2(found)))
        if form.scale == "kept":  # unless the values have outgrown it, or are less than half of it
            found = torch.where((found > kept) | (found < kept / 2), found, kept)
            kept.copy_(found)
        return found.clamp_(min=1e-30)

    def diffused(x: Tensor) -> Tensor:
        """The rounding error of an element is added to the next of 16."""
        parts = x.view(heads, dv, dk // 16, 16).clone()
        for i in range(16):
            rounded = parts[..., i].round().clamp_(-most, most)
            if i < 15:
                parts[..., i + 1] += parts[..., i] - rounded
            parts[..., i] = rounded
        return parts.view_as(x)

    def int8(x: Tensor, token: int) -> Tensor:
        if form.rounding == "nearest":
            return x.round_().clamp_(-most, most)
        if form.rounding == "diffused":
            return diffused(x)
        u = noise(token).view(blocks)
        if form.rounding == "dither":
            u -= 0.5
            return x.add_(u).round_().clamp_(-most, most).sub_(u)
        if form.rounding == "half":
            return x.add_(u, alpha=0.5).sub_(0.25).round_().clamp_(-most, most)
        return x.add_(u).floor_().clamp_(-most, most)

    def e4m3(x: Tensor, token: int) -> Tensor:
        if form.rounding == "nearest":  # to four significant bits, below 2⁻⁶ to multiples of 2⁻⁹
            large = x * (2.0**20 + 1)
            normal = large.sub_(large - x)
            return torch.where(x.abs() < 2.0**-6, (x + 1.5 * 2.0**14).sub_(1.5 * 2.0**14), normal)
        exponents = (x.view(torch.int32) >> 23 & 0xFF).sub_(127).clamp_(min=-6).sub_(3)
        step = torch.exp2(exponents.float())
        return (x / step).add_(noise(token).view(blocks)).floor_().mul_(step).clamp_(-most, most)

    def stored(s: Tensor, token: int) -> Tensor:
        x, middle = s.view(blocks), 0.0
        if form.zero_point:
            low, high = x.amin((2, 4), keepdim=True), x.amax((2, 4), keepdim=True)
            middle = (low + high) / 2
            x = x - middle
        scale = scale_of(x)
        return (int8 if form.codes == "int8" else e4m3)(x / scale, token).mul_(scale).add_(middle).view(shape)

    return stored


# ---- The recurrence


def recurrence(x: Tokens, form: Format | None) -> tuple[Tensor, Tensor]:
    """Outputs (T, H, dv) and the last state (H, dv, dk); without a format in fp64."""
    dtype = torch.float64 if form is None else torch.float32
    q, k, v, beta, decay = (None if y is None else y.to(dtype) for y in x)
    assert q is not None and k is not None and v is not None and decay is not None
    if form is not None and form.gates16:
        decay = decay.log().bfloat16().float().exp()
    count, heads, dk = k.shape
    s = torch.zeros(heads, v.shape[-1], dk, dtype=dtype)
    basis = None
    if form is not None and form.rotated:
        basis = hadamard(dk)
        if decay.shape[-1] == 1:  # then the rotation commutes with the decay
            q, k, basis = q @ basis, k @ basis, None
    store = None if form is None or form.codes == "fp32" else rounder(form, s.shape)
    outputs = torch.empty_like(v)
    for t in range(count):
        s *= decay[t][:, None]
        u = v[t] if beta is None else beta[t] * (v[t] - torch.bmm(s, k[t][..., None])[..., 0])
        if form is not None and form.every > 1:
            u = u.bfloat16().float()
        s.addcmul_(u[..., None], k[t][:, None])
        outputs[t] = torch.bmm(s, q[t][..., None])[..., 0]
        if store is not None and form is not None and (t + 1) % form.every == 0:
            s = store(s, t) if basis is None else store(s @ basis, t) @ basis
    if form is not None and form.rotated and basis is None:
        s = s @ hadamard(dk)
    return outputs, s


Errors = dict[str, dict[str, list[float]]]  # by gates: of the outputs of every window, and of the state


def errors(case: Case, found: tuple[Tensor, Tensor], oracle: tuple[Tensor, Tensor]) -> Errors:
    def relative(x: Tensor, truth: Tensor) -> float:
        return float((x.double() - truth).norm() / truth.norm())

    result: Errors = {}
    for kind in dict.fromkeys(case.gates):
        heads = [h for h, each in enumerate(case.gates) if each == kind]
        windows = zip(found[0][:, heads].split(WINDOW), oracle[0][:, heads].split(WINDOW), strict=True)
        result[kind] = {
            "windows": [relative(*pair) for pair in windows],
            "state": [relative(found[1][heads], oracle[1][heads])],
        }
    return result


ROUNDINGS = ("stochastic", "dither")
FORMATS = (
    *(Format("fp32"), Format("bf16"), Format(), Format("e4m3")),
    *(Format(tile=tile) for tile in ((1, 32), (32, 32), (0, 0))),
    *(Format(rounding=rounding) for rounding in ROUNDINGS),
    *(Format(zero_point=True), Format(every=8, zero_point=True)),
    *(Format(every=every) for every in (4, 8, 16)),
    *(Format(every=8, tile=tile) for tile in ((1, 32), (32, 32), (0, 0))),
    *(Format(every=16, tile=(1, 32)), Format(every=8, tile=(1, 32), zero_point=True), Format(every=8, rounding="stochastic")),
    *(Format("e4m3", every=every) for every in (8, 16)),
)
# Measured in these cases and with the first keys.
ROTATED_CASES = ("β 0.05", "outlying channels", "positive B, C")
ROTATED = (
    *(Format(tile=(0, 1)), Format(rotated=True), Format("e4m3", rounding="stochastic")),
    *(Format(every=8, tile=(0, 1)), Format(every=8, rotated=True), Format(every=8, zero_point=True, rotated=True)),
)
# Measured with the first keys only.
VARIANTS = (
    *(Format("e4m3", tile=tile) for tile in ((0, 1), (32, 32), (0, 0))),
    *(Format(tile=tile) for tile in ((1, 16), (1, 64), (16, 16), (64, 128))),
    *(Format(rounding=rounding) for rounding in ("half", "diffused")),
    *(Format(scale=scale) for scale in ("power of two", "kept", "clipped")),
    *(Format(every=8, tile=tile) for tile in ((1, 16), (1, 64), (16, 16), (64, 128))),
    *(Format(every=8, rounding=rounding) for rounding in ("dither", "diffused")),
    *(Format(every=8, scale=scale) for scale in ("power of two", "kept")),
    *(Format(every=8, gates16=True), Format("bf16", every=8)),
)


def formats(layer: str, name: str) -> tuple[Format, ...]:
    """Those that are measured in a case."""
    if name == CASES[layer][0]:
        return (*FORMATS, *ROTATED, *VARIANTS)
    return (*FORMATS, *(ROTATED if name in ROTATED_CASES else ()))


def measured(layer: str, case: Case, done: dict[str, Errors], keep: Callable[[], None]) -> None:
    """Adds the errors of the formats that `done` lacks."""
    if not (wanted := [each for each in formats(layer, case.name) if f"{layer}, {case.name}, {each.name}" not in done]):
        return
    oracle = recurrence(case.tokens, None)
    for form in wanted:
        start = time.time()
        done[f"{layer}, {case.name}, {form.name}"] = errors(case, recurrence(case.tokens, form), oracle)
        print(f"{layer}, {case.name}, {form.name}: {time.time() - start:.1f} s", flush=True)
        keep()


# ---- Tables


def worst_ratios(found: Errors, beside: Errors) -> str:
    """Outputs of the last window, of the worst, and the last state: the largest ratio of any gates."""
    ratios = [
        (
            each["windows"][-1] / beside[kind]["windows"][-1],
            max(each["windows"]) / max(beside[kind]["windows"]),
            each["state"][0] / beside[kind]["state"][0],
        )
        for kind, each in found.items()
    ]
    return " / ".join(f"{max(part):.2f}" for part in zip(*ratios, strict=True))


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def tables(layer: str, done: dict[str, Errors]) -> Iterator[str]:
    names = [name for name in CASES[layer] if f"{layer}, {name}, bf16" in done]
    bf16 = {name: done[f"{layer}, {name}, bf16"] for name in names}
    yield f"{layer}: bf16, 1e-3: outputs of the last {WINDOW} tokens / of the worst / last state"
    yield table(
        ["", *names],
        [
            [kind]
            + [
                " / ".join(f"{1e3 * x:.2f}" for x in (e["windows"][-1], max(e["windows"]), e["state"][0]))
                for e in (bf16[name][kind] for name in names)
            ]
            for kind in dict.fromkeys(GATES[layer])
        ],
    )
    yield f"{layer}: × bf16, the largest of any gates"
    rows = []
    for form in (*FORMATS, *ROTATED, *VARIANTS):
        found = [done.get(f"{layer}, {n}, {form.name}") if form in formats(layer, n) else None for n in names]
        if form.codes == "fp32" or form.name == "bf16" or not any(found):
            continue
        rows.append([form.name] + ["" if e is None else worst_ratios(e, bf16[n]) for n, e in zip(names, found, strict=True)])
    yield table(["", *names], rows)
    name = "β 0.05" if "β 0.05" in names else names[0]
    gates = list(dict.fromkeys(GATES[layer]))
    yield f"{layer}, {name}: outputs of window 1, 2, 4, 8, 16, 1e-3"
    shown = [Format("fp32"), Format("bf16"), *(f for f in FORMATS if f.codes in ("int8", "e4m3") and f.tile == (1, 0))]
    rows = []
    for form in shown:
        if each_gate := done.get(f"{layer}, {name}, {form.name}"):
            windows = [[f"{1e3 * x:.3g}" for x in each_gate[kind]["windows"]] for kind in gates]
            rows.append([form.name] + [" ".join(each[n - 1] for n in (1, 2, 4, 8, 16) if n <= len(each)) for each in windows])
    yield table(["", *gates], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--quick", action="store_true", help="one seed and the first keys")
    parser.add_argument("--layers", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--json", type=Path, help="errors of every window; what the file already has is not measured again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    done: dict[str, Errors] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}

    def keep() -> None:
        if options.json:
            options.json.write_text(json.dumps(done))

    for layer in options.layers:
        for case in cases(layer, options.tokens, options.quick):
            measured(layer, case, done, keep)
        print("", *tables(layer, done), sep="\n")


if __name__ == "__main__":
    main()
