"""Temporary: mamba2_decode_layer on int8 states."""

import sys, torch, gdn_cuda

sys.argv = sys.argv[:1]
sys.path.insert(0, "benchmarks")
from ssd8_variants import time
from gdn_cuda.layers.mamba2_decode_layer import layer_work

for H, G in ((128, 8), (128, 1)):
    for B in (16, 64, 256):
        row = [f"layer {H}x64 G={G} B={B}"]
        for st in (torch.bfloat16, torch.int8):
            w = layer_work("cuda", B, H, G, st)
            row.append(f"{st}: {time(w.call, 20):.1f}")
            del w
        print("  ".join(row), flush=True)
