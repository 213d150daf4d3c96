"""Benchmarks of prefill: shapes, inputs, and how many bytes a call moves and operations it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch

from ..operators.measure import Case, Inputs, Outcome, Work, bench, normal
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
    l2norm: bool = False  # the call normalises query and key
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
        """The plot of time against length, and this shape's place on it; only one sequence with Qwen3-Next's heads has one."""
        plain = replace(self, gates="fast") == Shape(16, 32, (self.tokens,))
        return ("tokens of one sequence, 16/32 heads", self.tokens) if plain else None

    @property
    def bytes(self) -> int:
        """Bytes of bf16 query, key, value and output, and of fp32 beta and gate. States are not counted."""
        per_token = 4 * (self.key_heads * self.key_dim + self.value_heads * self.value_dim) + 8 * self.value_heads
        return per_token * self.tokens

    @property
    def flops(self) -> int:
        """Operations of the chunked form: 180,224 for each token and value head when dk = dv = 128.

        Products of tokens with tokens: k kᵀ, q kᵀ and w = T k' have dk columns, u = T v' and the output's second term dv.
        Products with the state: w Sᵀ, q Sᵀ and v'ᵀ k. Triangles count as full squares. The count is for comparison and no lower
        bound: a kernel that computes v' = T (β v − β exp(G) k Sᵀ) needs one product less, and value heads with the same key
        head can share k kᵀ.
        """
        over_chunk = CHUNK * (3 * self.key_dim + 2 * self.value_dim)
        with_state = 3 * self.key_dim * self.value_dim
        return 2 * (over_chunk + with_state) * self.tokens * self.value_heads


ALONE = tuple(Shape(16, 32, (tokens,)) for tokens in (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072))
OTHERS = (
    Shape(16, 32, 8 * (4096,)),
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
DIMENSIONS = (
    Shape(16, 32, (8192,), key_dim=64, value_dim=64),
    Shape(30, 30, (8192,), key_dim=96, value_dim=192),
    Shape(30, 30, 8 * (2048,), key_dim=96, value_dim=192),
    Shape(16, 32, (8192,), key_dim=192, value_dim=192),
    Shape(16, 32, 8 * (2048,), key_dim=192, value_dim=192),
    *(Shape(16, 32, lengths, key_dim=256, value_dim=dv) for dv in (128, 256) for lengths in ((8192,), 8 * (2048,))),
    Shape(4, 8, (8192,), key_dim=256, value_dim=256),
)
NORMS_INSIDE = tuple(PLAIN[name] for name in ("1×8192 16/32", "8×4096 16/32", "32×1024 16/32"))
DETERMINISTIC = (
    *(PLAIN[name] for name in ("1×8192 16/32", "1×32768 16/32", "1×131072 16/32", "8×4096 16/32", "1×8192 4/8", "1×32768 4/8")),
    Shape(4, 8, 8 * (32768,)),
    *(PLAIN[name] for name in ("1×8192 16/64", "1×32768 16/48")),
)


def gpu_shapes() -> Iterator[Shape]:
    """Every shape with all of measure_gates' gates."""
    inside = (replace(shape, l2norm=True) for shape in NORMS_INSIDE)
    for shape in (*PLAIN.values(), *DIMENSIONS, *inside, *(replace(shape, deterministic=True) for shape in DETERMINISTIC)):
        yield from (replace(shape, gates=kind) for kind in KINDS)


CPU_SHAPES = (
    Shape(4, 8, (256,)),
    Shape(2, 4, (50, 7, 100), packed=True, gates="mixed"),
    Shape(2, 4, (40,), gates="init", l2norm=True),
)


@bench({"FlashQLA": peers.flashqla_chunked, "FlashInfer": peers.flashinfer_chunked, "FLA": peers.fla_chunked})
def chunked_forward(device: str) -> Iterator[Case]:
    for shape in gpu_shapes() if device == "cuda" else CPU_SHAPES:
        work = partial(prefill_work, shape, device)
        yield Case(shape.name, work, called=True, curve=shape.curve, kind=shape.kind)


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
    # With weak gates the initial state and early tokens affect all results, so that a wrong layout is noticed.
    checked = x | {"gate": x["gate"] / CHUNK}
    return Work(
        partial(gdn_cuda.chunked_forward, **x, deterministic=shape.deterministic), shape.bytes, shape.flops, x, outcome, checked
    )


def outcome(inputs: Inputs) -> Outcome:
    from ..runtime import package as gdn_cuda

    out, final_state = gdn_cuda.chunked_forward(**inputs)[:2]
    assert final_state is not None
    return out, final_state
