"""ring_decode beside fused_decode: microseconds of a call that reads, of one that writes, and in place."""

from __future__ import annotations

import os
import sys

import torch

import gdn_cuda
from gdn_cuda import fused_decode, ring_buffers, ring_decode

HK, HV, D, W = 16, 32, 128, int(os.environ.get("RING_W", 8))
flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def measured(call, before=lambda: None, repeats=9):
    before()
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(repeats):
        before()
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return sorted(times)[len(times) // 2]


def inputs(batch, tokens, state):
    q, k, v = (torch.randn(batch, tokens, h, D, device="cuda", dtype=torch.bfloat16) for h in (HK, HK, HV))
    a, b = torch.randn(2, batch, tokens, HV, device="cuda").bfloat16()
    heads = (torch.zeros(HV, device="cuda"), torch.zeros(HV, device="cuda"))
    pool = torch.randn(batch, HV, D, D, device="cuda") * (20 if state == torch.int8 else 1)
    pool = pool.to(state)
    slots = torch.randperm(batch, device="cuda", dtype=torch.int32)
    return (q, k, v, a, b, *heads, pool), slots


NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float16: "fp16", torch.int8: "int8"}
states = [torch.bfloat16, torch.float32] if len(sys.argv) < 2 else [getattr(torch, s) for s in sys.argv[1].split(",")]
variants = [dict(v.split("=") for v in each.split(",") if v) for each in (sys.argv[2] if len(sys.argv) > 2 else "").split(";")]
tokens_list = [int(t) for t in (sys.argv[3] if len(sys.argv) > 3 else "1").split(",")]
print("variant, state, B, T: read, write, in place (us)")
for state in states:
    for batch in (1, 16, 64, 256):
        for tokens in tokens_list:
            if tokens > 1 and batch < 64:
                continue
            (q, k, v, a, b, A, bias, pool), slots = inputs(batch, tokens, state)
            out = torch.empty_like(v)
            ring = ring_buffers(pool, W, HK)
            ring.keys.normal_(), ring.updates.normal_(), ring.decays.fill_(0.9)
            placed = 0.0
            scales = torch.full((batch, HV, D, D // 32), 0.05, device="cuda") if state == torch.int8 else None
            if tokens == 1:
                in_place = lambda: fused_decode(q, k, v, a, b, A, bias, pool, slots, out=out, state_scales=scales)
                placed = measured(in_place)
                if state == torch.int8:
                    os.environ["GDN_GENERAL_CODES"] = "1"
                    print("in place by gdn/decode", batch, f"{measured(in_place):.1f}")
                    del os.environ["GDN_GENERAL_CODES"]
            if scales is None:
                pool.normal_()
            for variant in variants:
                os.environ.update(variant)
                own = {} if tokens == 1 else {"num_accepted_tokens": torch.zeros(batch, device="cuda", dtype=torch.int32)}
                times = []
                for pending in (W // 2, W):
                    call = lambda: ring_decode(q, k, v, a, b, A, bias, pool, *ring, slots, out=out, state_scales=scales, **own)
                    times.append(measured(call, lambda: ring.pending.fill_(pending)))
                print(variant, NAMES[state], batch, tokens, *(f"{t:.1f}" for t in (*times, placed)), flush=True)
                for name in variant:
                    del os.environ[name]
