"""Calls every kernel at small sizes, for compute-sanitizer, under which the suite would take hours.

    compute-sanitizer --tool racecheck --kernel-name kernel_substring=gdn_cuda python tests/sanitize.py [KERNEL ...]

Without names, every kernel: 17 seconds under memcheck, minutes under racecheck, most of them for toeplitz_schur and
toeplitz_eliminate. It prints how many configurations ran; whether results are right is the tests' concern.

In three kernels racecheck reports pairs of accesses that are ordered in a way that it does not follow:
- prefill: one lane arrives at an mbarrier for its warp, behind __syncwarp. With an arrival of every lane, and every warp at the
  named barrier that follows the clearing of a tail's tokens, 1 of 77 reports is left: that clearing before the reads of keys
  for their norms (head dimension 96). The same named barrier lies between the two.
- prefill_mma: a named barrier of the four warps that invert lies between barriers of all, and what is on the two sides of those
  is taken for unordered. With every warp at that barrier there was no report (before chunks with resets were added). A chunk
  taken token by token overwrites a value with its output: a warp's lanes read it, exchange sums by shuffles, and one stores.
- seq_state_update: a warp's ldmatrix, which is one instruction, then the same warp's stores.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import product

import torch
from helpers import make_gdn_inputs, make_packed_gdn_inputs
from torch import Tensor

import gdn_cuda
from gdn_cuda import _C

HALVES = (torch.bfloat16, torch.float16)
REALS = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
EPSILON = 1e-7  # what solvers take for rounding


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=torch.promote_types(dtype, torch.float32), device="cuda").to(dtype)


def with_gradients(function: Callable[..., Tensor], *given: Tensor | int) -> None:
    leaves = [x.requires_grad_() for x in given if isinstance(x, Tensor)]
    out = function(*given)
    torch.autograd.grad(out, leaves, torch.ones_like(out))


# ---- Gated Delta Net


def decode(tokens: int = 1, sequences: int = 3) -> None:
    for (dk, dv), io, state in product(((128, 128), (96, 40)), HALVES, (torch.float32, torch.bfloat16)):
        heads = {
            name: draw(sequences, tokens, n, d, dtype=io)
            for name, n, d in (("query", 8, dk), ("key", 8, dk), ("value", 16, dv))
        }
        a, b = draw(sequences, tokens, 16, dtype=io), draw(sequences, tokens, 16, dtype=io)
        slots = torch.tensor([2, -1, *range(3, sequences + 1)], device="cuda")
        pool = draw(sequences + 2, 16, dv, dk, dtype=state)
        gdn_cuda.fused_decode(**heads, a=a, b=b, A_log=draw(16), dt_bias=draw(16), state_pool=pool, state_indices=slots)

        if tokens > 1:  # more sequences than good indices
            slots = torch.tensor(HOSTILE_INDICES, device="cuda").repeat(sequences, tokens)[:, :tokens]
            accepted = torch.tensor(HOSTILE_INDICES, device="cuda").repeat(sequences)[:sequences]
            gates = {"a": a, "b": b, "A_log": draw(16), "dt_bias": draw(16)}
            gdn_cuda.fused_decode(**heads, **gates, state_pool=pool, state_indices=slots, num_accepted_tokens=accepted)


def verify() -> None:
    decode(tokens=5, sequences=40)


def padded(dk: int, dv: int, T: int, **options: object) -> dict[str, Tensor]:
    return make_gdn_inputs(T=T, dk=dk, dv=dv, dtype=torch.bfloat16, device="cuda", gate_range=(-2.0, 0.0), **options)  # type: ignore[arg-type]


def packed(dk: int, dv: int, **options: object) -> dict[str, Tensor]:
    lengths = [70, 0, 1, 200]
    return make_packed_gdn_inputs(lengths, dk=dk, dv=dv, dtype=torch.bfloat16, device="cuda", gate_range=(-2.0, 0.0), **options)  # type: ignore[arg-type]


# What device memory may say that makes no sense, for 271 tokens and 4 sequences; tests/gpu/test_gpu_fuzz.py has more of it.
HOSTILE_OFFSETS = (
    [0, 271, 0, 271, 0],
    [300, 200, 100, 0, -100],
    [-(2**63), 2**63 - 1, 5, -(2**63), 2**62],
    [0, 70, 70, 71, 2**32],
)
HOSTILE_INDICES = [2**63 - 1, -(2**63), 2**32, 1]


def hostile(dk: int, dv: int) -> Iterator[dict[str, Tensor]]:
    for offsets in HOSTILE_OFFSETS:
        yield packed(dk, dv) | {"cu_seqlens": torch.tensor(offsets, device="cuda")}


def spoilt_gates(x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Resets, and a state that is not finite before them: the ways that kernels take rarely."""
    x["gate"][..., 40, :] = -torch.inf
    x["state"][:, 0] = torch.nan
    return x


def recurrent() -> None:
    for dk, dv in ((128, 128), (96, 192), (40, 72)):
        gdn_cuda.recurrent_forward(**packed(dk, dv), is_qk_norm=True)
    gdn_cuda.recurrent_forward(**padded(64, 64, 9), inference_mode=gdn_cuda.InferenceMode.SPEC_VERIFY)
    for x in hostile(64, 64):
        gdn_cuda.recurrent_forward(**x, inference_mode=gdn_cuda.InferenceMode.SPEC_VERIFY)


def prefill(dims: tuple[tuple[int, int], ...] = ((128, 128), (96, 192), (40, 72))) -> None:
    for dk, dv in dims:
        gdn_cuda.chunked_forward(**packed(dk, dv), use_qk_l2norm=True)
        gdn_cuda.chunked_forward(**padded(dk, dv, 150), checkpoint_every=64)
        for x in hostile(dk, dv):
            gdn_cuda.chunked_forward(**x, checkpoint_every=64)
            gdn_cuda.chunked_forward(**x, state_indices=torch.tensor(HOSTILE_INDICES, device="cuda"))
        gdn_cuda.chunked_forward(**spoilt_gates(padded(dk, dv, 150)))
    # Split: with two heads, which remember, their segments are linked; with 32, one of two launches takes the call.
    for heads, pace in ((2, 1e-4), (32, 1.0), (32, 1e-4)):
        split = padded(*dims[0], 5200, B=1, Hk=heads // 2, Hv=heads)
        split["gate"] *= pace
        gdn_cuda.chunked_forward(**split)


def prefill_mma() -> None:
    prefill(((192, 128), (256, 256)))


def gating() -> None:
    for dtype in (*HALVES, torch.float32):
        gdn_cuda.fused_gdn_gating(draw(7), draw(7), draw(300, 7, dtype=dtype), draw(300, 7, dtype=dtype), is_var_len=True)


def pieces() -> None:
    for dk, dv in ((128, 128), (96, 192)):
        run_pieces(padded(dk, dv, 150), states=(2, 3))
        run_pieces(spoilt_gates(padded(dk, dv, 150)), states=(2, 3))
        for x in hostile(dk, dv):
            run_pieces(x, states=(5,))


def run_pieces(x: dict[str, Tensor], states: tuple[int, ...]) -> None:
    k, v, q, offsets = x["key"], x["value"], x["query"], x.get("cu_seqlens")
    (heads, dv), dk, batch, tokens = v.shape[-2:], k.shape[-1], x["state"].shape[0], v.shape[-3]
    gate, beta = (gdn_cuda.transpose_to_mn_major(x[name]) for name in ("gate", "beta"))
    summed = gdn_cuda.transpose_to_mn_major(torch.zeros_like(x["gate"]))
    gdn_cuda.chunk_local_cumsum_bf16(gate, summed, batch, tokens, heads, cu_seqlens=offsets)
    u, w, o = torch.zeros_like(v), torch.zeros(*v.shape[:-1], dk, dtype=v.dtype, device="cuda"), torch.zeros_like(v)
    gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta, summed, cu_seqlens=offsets)
    before, last = (torch.zeros(*lead, heads, dv, dk, device="cuda") for lead in (states, (batch,)))
    if offsets is None:
        before[:, 0] = x["state"]
    gdn_cuda.bf16_chunked_seq_state_update(k, u, w, before, last, summed, True, cu_seqlens=offsets)
    gdn_cuda.bf16_gdn_chunked_compute_O(q, before, k, u, o, summed, cu_seqlens=offsets)


# ---- Structured matrices


def cauchy() -> None:
    """Few points and many, one tile of poles and two, rows in fours and one by one."""
    for poles, (rows, points), dtype in product(
        (33, 70), ((4, 700), (3, 700), (12, 60000), (5, 60000)), (*REALS, *HALVES, *COMPLEX)
    ):
        v, z, w = draw(rows, poles, dtype=dtype), draw(points, dtype=dtype), draw(poles, dtype=dtype)
        gdn_cuda.cauchy_kernel(v, z, w)
        if dtype.is_complex:
            gdn_cuda.cauchy_conj(v, z, w)
            gdn_cuda.cauchy_conj(v, 1j * z.imag, w)  # S4's points
    on_a_pole = draw(8, dtype=torch.complex64)
    gdn_cuda.cauchy_conj(draw(8, dtype=torch.complex64), on_a_pole, on_a_pole)


def cauchy_batch() -> None:
    for dtype in (torch.float32, *HALVES):
        for rows, poles, points in ((16, 5, 3), (32, 257, 1030)):
            v = draw(rows, poles, dtype=dtype)
            gdn_cuda.cauchy_kernel(v, draw(points, dtype=dtype), draw(poles, dtype=dtype))
    v[0, 0] = 2.0**-20  # its rows are summed in fp64
    gdn_cuda.cauchy_kernel(v.float() * 2.0**-90, draw(points), draw(poles))


def cauchy_backward() -> None:
    for (rows, poles, points), dtype in product(((3, 7, 13), (4, 70, 2200), (40, 70, 13)), (*REALS, *HALVES, *COMPLEX)):
        shapes = (rows, poles), (points,), (poles,)
        with_gradients(gdn_cuda.cauchy_kernel, *(draw(*shape, dtype=dtype) for shape in shapes))
        if dtype.is_complex:
            with_gradients(gdn_cuda.cauchy_conj, *(draw(*shape, dtype=dtype) for shape in shapes))


def exponents(*shape: int, dtype: torch.dtype) -> Tensor:
    x = draw(*shape, dtype=dtype)
    return torch.complex(-0.01 * x.real.abs(), 40 * x.imag)


def vandermonde() -> None:
    for (rows, poles, steps), dtype in product(((1, 5, 7), (3, 33, 1500), (70, 3, 5000), (140, 5, 16000)), COMPLEX):
        gdn_cuda.log_vandermonde(draw(rows, poles, dtype=dtype), exponents(rows, poles, dtype=dtype), steps)


def vandermonde_moments() -> None:
    for (rows, poles, steps), dtype in product(((1, 5, 7), (3, 33, 20000)), COMPLEX):
        v, x = draw(rows, poles, dtype=dtype), exponents(rows, poles, dtype=dtype)
        with_gradients(gdn_cuda.log_vandermonde, v, x, steps)
        gdn_cuda.log_vandermonde_transpose(draw(rows, steps, dtype=v.real.dtype), v.detach(), x.detach(), steps)


def definite(n: int, dtype: torch.dtype) -> Tensor:
    distance = torch.arange(n, dtype=torch.float64, device="cuda")
    return (0.9**distance + 0.1 * (distance == 0)).to(dtype)


def multiply(systems: int, n: int, columns: int, dtype: torch.dtype) -> None:
    c, r, x = draw(systems, n, dtype=dtype), draw(systems, n, dtype=dtype), draw(systems, n, columns, dtype=dtype)
    gdn_cuda.toeplitz_matvec(c, r, x)
    gdn_cuda.toeplitz_matvec_transpose(c, r, x)


def toeplitz_sums() -> None:
    for n, dtype, columns in product((1, 2, 33, 64, 200), (*REALS, *COMPLEX), (1, 3)):
        multiply(2, n, columns, dtype)
    for dtype in REALS:  # long strips
        multiply(5, 129, 20, dtype)


def toeplitz_matvec() -> None:
    """Many systems, where few would be sums."""
    for dtype in REALS:
        for systems, n in ((300, 240), (100, 900), (100, 2000), (20, 4000), (10, 8000)):
            multiply(systems, n, 1, dtype)
    for dtype in COMPLEX:
        for systems, n in ((1000, 100), (100, 400), (100, 900)):
            multiply(systems, n, 1, dtype)


def toeplitz_gko() -> None:
    for n, dtype, columns in product((1, 33, 65, 257), (*REALS, *COMPLEX), (1, 3)):
        c = draw(2, n, dtype=dtype)
        c[1] = 0  # singular
        torch.ops.gdn_cuda.toeplitz_gko(c, c * draw(2, n, dtype=dtype), draw(2, n, columns, dtype=dtype), EPSILON)


def toeplitz_generators() -> None:
    for dtype in (*REALS, *COMPLEX):
        c, r, b = draw(2, 700, dtype=dtype), draw(2, 700, dtype=dtype), draw(2, 700, 2, dtype=dtype)
        torch.ops.gdn_cuda.toeplitz_generators(c, r, b)


def eliminate(n: int, columns: int, configuration: int) -> None:
    left, right, b = (draw(2, rows, n, dtype=torch.complex128) for rows in (2, 2, columns))
    left[1] = 0
    torch.ops.gdn_cuda.toeplitz_eliminate(left, right, b, configuration)


def toeplitz_eliminate() -> None:
    count = next(len(each["configurations"]) for each in _C.kernels() if each["name"] == "toeplitz_eliminate")
    for configuration in range(count):
        eliminate(20, 3, configuration)  # rows and columns of one block of a cluster; all take part
    eliminate(140, 2, 0)  # of two blocks


def toeplitz_schur() -> None:
    for n, dtype, columns in product((1, 33, 65, 257, 1025), REALS, (1, 4)):
        c = torch.stack([definite(n, dtype), -definite(n, dtype)])
        torch.ops.gdn_cuda.toeplitz_schur(c, draw(2, n, columns, dtype=dtype), EPSILON)


def toeplitz_pcg() -> None:
    for n, dtype in product((1100, 4096, 8191), REALS):
        c = torch.stack([definite(n, dtype), -definite(n, dtype)])
        torch.ops.gdn_cuda.toeplitz_pcg(c, draw(2, n, 2, dtype=dtype), EPSILON)


CALLS: dict[str, Callable[[], None]] = {
    "decode": decode,
    "verify": verify,
    "recurrent": recurrent,
    "gating": gating,
    "chunk_cumsum": pieces,
    "mn_major": pieces,
    "compute_u_w": pieces,
    "seq_state_update": pieces,
    "compute_o": pieces,
    "prefill": prefill,
    "prefill_mma": prefill_mma,
    "cauchy": cauchy,
    "cauchy_batch": cauchy_batch,
    "cauchy_backward": cauchy_backward,
    "vandermonde": vandermonde,
    "vandermonde_moments": vandermonde_moments,
    "toeplitz_sums": toeplitz_sums,
    "toeplitz_matvec": toeplitz_matvec,
    "toeplitz_gko": toeplitz_gko,
    "toeplitz_generators": toeplitz_generators,
    "toeplitz_eliminate": toeplitz_eliminate,
    "toeplitz_schur": toeplitz_schur,
    "toeplitz_pcg": toeplitz_pcg,
}


def main(names: list[str]) -> None:
    if unknown := set(names) - set(CALLS):
        sys.exit(f"sanitize.py: expected kernels among {', '.join(CALLS)}, got {', '.join(sorted(unknown))}")
    registered = {kernel["name"]: kernel for kernel in _C.kernels()}
    for name in names or CALLS:
        CALLS[name]()
        torch.cuda.synchronize()
        kernel = registered[name]
        loaded = [event["kernel"] for event in _C.load_events()].count(f"{kernel['family']}/{name}")
        print(f"{name}: {loaded} of {len(kernel['configurations'])} configurations", flush=True)
        if loaded == 0:
            sys.exit(f"sanitize.py: {name}: expected its calls to run it, got other kernels alone")


if __name__ == "__main__":
    main(sys.argv[1:])
