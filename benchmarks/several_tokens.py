"""Times of recurrent_forward and of fused_decode's plain verify, a row for each shape, with a digest of the results.

    python benchmarks/several_tokens.py

Run in two checkouts, one after the other on one GPU, it compares them: microseconds, and whether the bits are the same.
"""

from __future__ import annotations

from itertools import product

import torch
from prefill_shapes import digest
from torch import Tensor

import gdn_cuda
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.gdn import InferenceMode

KEY_HEADS, HEADS, DIM = 16, 32, 128
BATCHES, TOKENS, STATES = (1, 4, 16, 64), (2, 4, 8), (torch.float32, torch.bfloat16)


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def row(timer: Timer, batch: int, tokens: int, dtype: torch.dtype) -> str:
    torch.manual_seed(batch * tokens)
    q, k = (draw(batch, tokens, KEY_HEADS, DIM) for _ in range(2))
    v = draw(batch, tokens, HEADS, DIM)
    beta, gate = (torch.rand(batch, tokens, HEADS, device="cuda") for _ in range(2))
    state = draw(batch, HEADS, DIM, DIM, dtype=dtype)

    def recurrent() -> tuple[Tensor, ...]:
        return gdn_cuda.recurrent_forward(q, k, v, state, beta, -gate, inference_mode=InferenceMode.DECODE, is_qk_norm=True)

    pool = draw(batch * tokens, HEADS, DIM, DIM, dtype=dtype)
    slots = torch.randperm(batch * tokens, device="cuda").view(batch, tokens).int()
    accepted = torch.randint(1, tokens + 1, (batch,), device="cuda", dtype=torch.int32)
    a, b, a_log, bias = (draw(batch, tokens, HEADS), draw(batch, tokens, HEADS), torch.rand(HEADS, device="cuda"), draw(HEADS))
    out = torch.empty_like(v)

    def verify() -> None:
        gdn_cuda.fused_decode(q, k, v, a, b, a_log, bias, pool, slots, num_accepted_tokens=accepted, out=out)

    verify()
    bits = digest(*recurrent()), digest(out, pool)
    name = f"B={batch:<3} T={tokens} {str(dtype).removeprefix('torch.'):9}"
    return (
        f"{name} recurrent_forward {timer.graph_us(recurrent):6.1f} {bits[0]}   verify {timer.graph_us(verify):6.1f} {bits[1]}"
    )


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__, gdn_cuda.__path__[0])
    timer = Timer(100)
    for dtype, batch, tokens in product(STATES, BATCHES, TOKENS):
        print(row(timer, batch, tokens, dtype), flush=True)


if __name__ == "__main__":
    main()
