"""Kernels of backward calls, by torch's profiler: mean µs each."""

import torch
from torch.profiler import profile, ProfilerActivity
from gdn_cuda.scan.measure_selective import Shape, layer_inputs, timed_call

for name, s in {
    "short": Shape(1, 1536, 512),
    "N64": Shape(8, 5120, 2048, N=64),
    "cplx": Shape(8, 1024, 2048, is_complex=True),
    "long": Shape(1, 5120, 4096),
    "full": Shape(8, 5120, 2048),
}.items():
    call = timed_call(layer_inputs("cuda", s), True)
    call()
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    print(
        name,
        "; ".join(
            f"{e.key[:60].split('<')[0][-40:]} x{e.count / 3:.1f} {e.device_time_total / e.count:.1f}" for e in p.key_averages()
        ),
        flush=True,
    )
