"""Benchmarks of prefill: shapes, inputs, and the bytes and operations of a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch

from ..operators.measure import Case, Inputs, Outcome, Work, bench, normal, size
from . import measure_peers as peers
from .inputs import projections
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
    slow_gates: bool = False  # the state hardly decays in a thousand chunks
    deterministic: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def name(self) -> str:
        extent = f"packed {len(self.lengths)}, {self.tokens}" if self.packed else f"{len(self.lengths)}×{self.lengths[0]}"
        dims = "" if self.key_dim == self.value_dim == 128 else f" dk={self.key_dim} dv={self.value_dim}"
        options = " slow gates" * self.slow_gates + " deterministic" * self.deterministic
        return f"{extent} {self.key_heads}/{self.value_heads}{dims}{options}"

    @property
    def curve(self) -> tuple[str, int] | None:
        """For one sequence with Qwen3-Next's heads: the curve of time against length."""
        alone = self.lengths == (self.tokens,) and (self.key_heads, self.value_heads) == (16, 32)
        plain = self.key_dim == self.value_dim == 128 and not self.slow_gates and not self.deterministic
        return ("1×T 16/32", self.tokens) if alone and plain else None

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


GPU_SHAPES = (
    Shape(16, 32, (1024,)),
    Shape(16, 32, (4096,)),
    Shape(16, 32, (8192,)),
    Shape(16, 32, (32768,)),
    Shape(16, 32, (131072,)),
    Shape(16, 32, 8 * (4096,)),
    Shape(16, 32, 32 * (1024,)),
    Shape(4, 8, (8192,)),
    Shape(4, 8, (32768,)),
    Shape(2, 4, (32768,)),
    Shape(16, 64, (8192,)),
    Shape(16, 48, (32768,)),
    Shape(16, 16, 8 * (2048,)),
    Shape(16, 32, PACKED_LENGTHS, packed=True),
    Shape(30, 30, (8192,), key_dim=96, value_dim=192),
    Shape(30, 30, 8 * (2048,), key_dim=96, value_dim=192),
    Shape(16, 32, (8192,), key_dim=64, value_dim=64),
    Shape(16, 32, (8192,), slow_gates=True),
    Shape(4, 8, (32768,), slow_gates=True),
    Shape(4, 8, (32768,), deterministic=True),
)
CPU_SHAPES = (Shape(4, 8, (256,)), Shape(2, 4, (50, 7, 100), packed=True))


@bench({"FlashQLA": peers.flashqla_chunked, "FlashInfer": peers.flashinfer_chunked, "FLA": peers.fla_chunked})
def chunked_forward(device: str) -> Iterator[Case]:
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        # Not as a graph: engines capture decode, not prefill, and peers publish such figures.
        yield Case(shape.name, partial(prefill_work, shape, device), captured=False, curve=shape.curve)


def prefill_work(shape: Shape, device: str) -> Work:
    """Inputs as in engines: q and k normalised by an earlier kernel, gates and states in fp32."""
    import gdn_cuda

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
        "gate": torch.rand(*leading, shape.value_heads, device=device) * (-1e-5 if shape.slow_gates else -1),
        "state": normal(*states, device=device, dtype=torch.float32),
    }
    if shape.packed:
        x["cu_seqlens"] = torch.tensor([0, *accumulate(shape.lengths)], device=device, dtype=torch.int32)
    # The states, read and written once, are left out.
    moved = size(x["query"], x["key"], x["value"], x["value"], x["beta"], x["gate"])
    # With weak gates the initial state and early tokens matter to the end, so that a wrong layout shows.
    checked = x | {"gate": x["gate"] / CHUNK}
    return Work(
        partial(gdn_cuda.chunked_forward, **x, deterministic=shape.deterministic), moved, shape.flops, x, outcome, checked
    )


def outcome(inputs: Inputs) -> Outcome:
    import gdn_cuda

    out, final_state = gdn_cuda.chunked_forward(**inputs)[:2]
    assert final_state is not None
    return out, final_state
