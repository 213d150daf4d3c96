"""Temporary: variants of gdn/decode_codes."""
import os, sys
from functools import partial
import torch
import gdn_cuda
from gdn_cuda.gdn.measure_decode import decode_work
from gdn_cuda.cli.bench_timing import Timer

VARIANTS = ["24", "34", "44", "35", "43"]

def setting(variant, copies=False):
    os.environ.pop("GDN_CODES", None), os.environ.pop("GDN_COPIES", None)
    os.environ["GDN_CODES"] = variant
    if copies: os.environ["GDN_COPIES"] = "1"

def check():
    for batch in (64,):
        torch.manual_seed(0)
        work = decode_work("cuda", batch, 1, 16, 32, torch.int8)
        found = {}
        for v in ["off"] + VARIANTS:
            setting(v)
            x = {k: (y.clone() if isinstance(y, torch.Tensor) else y) for k, y in work.inputs.items()} if hasattr(work, "inputs") else None
            torch.cuda.synchronize()
            out = gdn_cuda.fused_decode(**x)
            found[v] = (out.float(), x["state_pool"].float() * 1, x["state_scales"])
        base = found["off"]
        for v, f in found.items():
            o = ((f[0] - base[0]).norm() / base[0].norm()).item()
            c = (f[1] != base[1]).float().mean().item()
            m = (f[1] - base[1]).abs().max().item()
            s = ((f[2] - base[2]).abs() / base[2]).max().item()
            print(f"B={batch} {v}: outputs {o:.1e} codes differ {c:.1e} by {m:.0f} scales {s:.1e}", flush=True)

def times():
    timer = Timer(20)
    print("variant", *[f"B={b}" for b in (16, 32, 64, 128, 256)], "| copies 64, 256 | one slot 64, 256")
    works = {}
    for b in (16, 32, 64, 128, 256):
        torch.manual_seed(0)
        works[b] = decode_work("cuda", b, 1, 16, 32, torch.int8)
    for v in ["off"] + VARIANTS:
        row = []
        for b in (16, 32, 64, 128, 256):
            setting(v)
            row.append(timer.graph_us(works[b].call))
        for b in (64, 256):
            if v == "off": continue
            setting(v, True)
            row.append(timer.graph_us(works[b].call))
        for b in (64, 256):
            setting(v)
            x = works[b].inputs | {"state_indices": torch.arange(b, device="cuda", dtype=torch.int32) % 8}
            row.append(timer.graph_us(partial(gdn_cuda.fused_decode, **x)))
        print(v, *[f"{t:.1f}" for t in row], flush=True)

def once():
    torch.manual_seed(0)
    work = decode_work("cuda", 256, 1, 16, 32, torch.int8)
    for v in (None, "34"):
        setting(v or "off")
        for _ in range(3): work.call()
    torch.cuda.synchronize()

{"check": check, "times": times, "once": once}[sys.argv[1]]()
