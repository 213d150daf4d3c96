"""Benchmarks of prefill: shapes, inputs, and the bytes and operations of a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch

from ..operators.measure import Case, Inputs, Outcome, Target, Work, bench, normal, roof_us
from . import measure_peers as peers
from .inputs import projections
from .measure_gates import KINDS, gates
from .reference import CHUNK

# 24 sequences of 50 to 4000 tokens, 51721 in all
PACKED_LENGTHS = (
    *(1220, 2954, 3362, 2977, 745, 855, 807, 3837, 4000, 2852, 3499, 753),
    *(954, 435, 2807, 3163, 2447, 679, 2522, 1628, 3027, 3197, 2951, 50),
)


@dataclass(frozen=True)
class Shape:
    key_heads: int
    value_heads: int
    lengths: tuple[int, ...]
    key_dim: int = 128
    value_dim: int = 128
    packed: bool = False
    gates: str = "fast"
    l2norm: bool = False  # inside the call
    deterministic: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def kind(self) -> str:
        return f"{self.gates} gates"

    @property
    def name(self) -> str:
        extent = f"packed {len(self.lengths)}, {self.tokens}" if self.packed else f"{len(self.lengths)}×{self.lengths[0]}"
        dims = "" if self.key_dim == self.value_dim == 128 else f" dk={self.key_dim} dv={self.value_dim}"
        options = ", l2 norm inside" * self.l2norm + ", deterministic" * self.deterministic
        return f"{extent} {self.key_heads}/{self.value_heads}{dims} {self.kind}{options}"

    @property
    def curve(self) -> tuple[str, int] | None:
        """For one sequence with Qwen3-Next's heads: the curve of time against length."""
        plain = replace(self, gates="fast") == Shape(16, 32, (self.tokens,))
        return ("tokens of one sequence, 16/32 heads", self.tokens) if plain else None

    @property
    def bytes(self) -> int:
        """bf16 query, key, value and output, fp32 beta and gate. The states, read and written once, are left out."""
        of_token = 4 * (self.key_heads * self.key_dim + self.value_heads * self.value_dim) + 8 * self.value_heads
        return of_token * self.tokens

    @property
    def flops(self) -> int:
        """The chunked form's: 180,224 for a token and value head when dk = dv = 128.

        Products over the chunk: k kᵀ, q kᵀ and w = T k' of dk columns, u = T v' and the output's second term of dv columns.
        Products with the state: w Sᵀ, q Sᵀ and v'ᵀ k. Triangles count whole. It is a yardstick, not a bound: a kernel that
        forms v' = T (β v − β exp(G) k Sᵀ) saves one of the first five, and value heads that share a key head can share k kᵀ.
        """
        over_chunk = CHUNK * (3 * self.key_dim + 2 * self.value_dim)
        with_state = 3 * self.key_dim * self.value_dim
        return 2 * (over_chunk + with_state) * self.tokens * self.value_heads


ALONE = tuple(Shape(16, 32, (tokens,)) for tokens in (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072))
FULL_CARD = Shape(16, 32, 8 * (4096,))
OTHERS = (
    FULL_CARD,
    Shape(16, 32, 32 * (1024,)),
    Shape(16, 32, 64 * (512,)),
    Shape(16, 32, PACKED_LENGTHS, packed=True),
    *(Shape(4, 8, (tokens,)) for tokens in (2048, 4096, 8192, 32768)),
    *(Shape(2, 4, (tokens,)) for tokens in (4096, 8192, 32768)),
    *(Shape(8, 16, (tokens,)) for tokens in (8192, 32768)),
    Shape(16, 64, (8192,)),
    Shape(16, 48, (32768,)),
    Shape(16, 16, 8 * (2048,)),
)
PLAIN = {shape.name.removesuffix(f" {shape.kind}"): shape for shape in (*ALONE, *OTHERS)}
# Milliseconds on an H200, whatever the gates.
REACH = {
    "1×1024 16/32": 0.042,
    "1×4096 16/32": 0.095,
    "1×8192 16/32": 0.185,
    "1×32768 16/32": 0.59,
    "1×131072 16/32": 2.3,
    "8×4096 16/32": 0.32,
    "32×1024 16/32": 0.355,
    "64×512 16/32": 0.39,
    "packed 24, 51721 16/32": 0.53,
    "1×8192 4/8": 0.09,
    "1×32768 4/8": 0.20,
    "1×8192 16/64": 0.24,
    "1×32768 16/48": 0.85,
    "8×2048 16/16": 0.09,
}
# Milliseconds on an H200 on 2026-11-22: FlashInfer 0.7.2, whatever the gates, and FlashQLA 0.1.3 with fast and with mixed ones.
PUBLISHED = {
    "1×1024 16/32": (0.083, 0.055, 0.055),
    "1×4096 16/32": (0.147, 0.169, 0.168),
    "1×8192 16/32": (0.234, 0.318, 0.318),
    "1×32768 16/32": (0.735, 0.677, 1.241),
    "1×131072 16/32": (2.75, 2.588, 4.734),
    "8×4096 16/32": (0.385, 0.638, 0.641),
    "32×1024 16/32": (0.423, 0.684, 0.684),
    "64×512 16/32": (0.465, 0.738, 0.726),
    "packed 24, 51721 16/32": (0.656, 1.16, 1.18),
    "1×8192 4/8": (0.117, 0.122, 0.169),
    "1×32768 4/8": (0.238, 0.238, 0.392),
    "1×8192 16/64": (0.390, 0.398, 0.398),
    "1×32768 16/48": (1.27, 1.402, 1.393),
    "8×2048 16/16": (0.110, 0.241, None),
}
# Other head dimensions, with the shape of 128/128 whose share of the roof they are held against.
DIMENSIONS = (
    (Shape(16, 32, (8192,), key_dim=64, value_dim=64), PLAIN["1×8192 16/32"]),
    (Shape(30, 30, (8192,), key_dim=96, value_dim=192), PLAIN["1×8192 16/32"]),
    (Shape(30, 30, 8 * (2048,), key_dim=96, value_dim=192), FULL_CARD),
    (Shape(16, 32, (8192,), key_dim=256, value_dim=256), PLAIN["1×8192 16/32"]),
)
NORMS_INSIDE = tuple(PLAIN[name] for name in ("1×8192 16/32", "8×4096 16/32", "32×1024 16/32"))
DETERMINISTIC = (
    *(PLAIN[name] for name in ("1×8192 16/32", "1×32768 16/32", "1×131072 16/32", "8×4096 16/32", "1×8192 4/8", "1×32768 4/8")),
    Shape(4, 8, 8 * (32768,)),
    *(PLAIN[name] for name in ("1×8192 16/64", "1×32768 16/48")),
)
OF_ROOF, OF_PLAIN, OF_DEFAULT = 1.3, 1.03, 1.15  # the factors allowed for dimensions, norms inside and `deterministic`


def targets() -> Iterator[tuple[Shape, Target]]:
    """The rows, with one kind of gates; the last ones are held against the first."""
    for name, shape in PLAIN.items():
        yield shape, Target(reach_us=1e3 * REACH[name]) if name in REACH else Target()
    for shape, like in DIMENSIONS:
        factor = OF_ROOF * roof_us(shape.bytes, shape.flops) / roof_us(like.bytes, like.flops)
        yield shape, Target(reach_of=(like.name, factor))
    for shape in NORMS_INSIDE:
        yield replace(shape, l2norm=True), Target(reach_of=(shape.name, OF_PLAIN))
    for shape in DETERMINISTIC:
        alone = len(shape.lengths) == 1
        yield replace(shape, deterministic=True), Target(reach_of=(shape.name, OF_DEFAULT)) if alone else Target()


def published(shape: Shape, kind: str) -> dict[str, float]:
    """Microseconds of peers for this kind of gates, as they are on record."""
    name = shape.name.removesuffix(f" {shape.kind}")
    flashinfer, fast, mixed = PUBLISHED.get(name, (None, None, None))
    times = {"FlashInfer": flashinfer, "FlashQLA": {"fast": fast, "mixed": mixed}.get(kind)}
    return {peer: 1e3 * ms for peer, ms in times.items() if ms is not None}


def gpu_shapes() -> Iterator[tuple[Shape, Target]]:
    """Every row with every kind of gates, held against a row of the same kind."""
    for shape, target in targets():
        for kind in KINDS:
            of = target.reach_of and (target.reach_of[0].replace(shape.kind, f"{kind} gates"), target.reach_of[1])
            yield replace(shape, gates=kind), replace(target, reach_of=of, peers_us=published(shape, kind))


CPU_SHAPES = (
    Shape(4, 8, (256,)),
    Shape(2, 4, (50, 7, 100), packed=True, gates="mixed"),
    Shape(2, 4, (40,), gates="init", l2norm=True),
)


@bench({"FlashQLA": peers.flashqla_chunked, "FlashInfer": peers.flashinfer_chunked, "FLA": peers.fla_chunked})
def chunked_forward(device: str) -> Iterator[Case]:
    for shape, target in gpu_shapes() if device == "cuda" else ((shape, Target()) for shape in CPU_SHAPES):
        work = partial(prefill_work, shape, device)
        yield Case(shape.name, work, called=True, curve=shape.curve, kind=shape.kind, target=target)


def prefill_work(shape: Shape, device: str) -> Work:
    """Inputs as in engines: q and k normalised by an earlier kernel, or by the call; gates and states in fp32."""
    from ..runtime import package as gdn_cuda

    leading = (shape.tokens,) if shape.packed else (len(shape.lengths), shape.lengths[0])
    x = projections(
        device,
        *leading,
        key_heads=shape.key_heads,
        value_heads=shape.value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
    )
    states = (len(shape.lengths), shape.value_heads, shape.value_dim, shape.key_dim)
    x |= {
        "beta": torch.rand(*leading, shape.value_heads, device=device),
        "gate": gates(shape.gates, leading, shape.value_heads, device),
        "state": normal(*states, device=device, dtype=torch.float32),
    }
    if shape.packed:
        x["cu_seqlens"] = torch.tensor([0, *accumulate(shape.lengths)], device=device, dtype=torch.int32)
    if shape.l2norm:
        x["use_qk_l2norm"] = True
    # With weak gates the initial state and early tokens matter to the end, so that a wrong layout shows.
    checked = x | {"gate": x["gate"] / CHUNK}
    return Work(
        partial(gdn_cuda.chunked_forward, **x, deterministic=shape.deterministic), shape.bytes, shape.flops, x, outcome, checked
    )


def outcome(inputs: Inputs) -> Outcome:
    from ..runtime import package as gdn_cuda

    out, final_state = gdn_cuda.chunked_forward(**inputs)[:2]
    assert final_state is not None
    return out, final_state
