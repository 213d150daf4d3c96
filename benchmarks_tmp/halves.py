import os, torch
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.operators import measure
b = measure.load().benches["hyena_medium"]
cases = {c.shape: c for c in b.cases("cuda")}
timer = Timer(9)
for L in (8192, 65536):
    for back in ("", ", backward"):
        name = f"1×4096×{L} channels neighbours, 128 taps, bfloat16{back}"
        call = cases[name].prepare().call
        row = []
        for h in ("0", "2", "3") if not back else ("0", "2"):
            os.environ["GDN_TRY_HALF"] = h
            row.append(f"{h}:{timer.stream_us(call):.0f}")
        print(name, *row, flush=True)
        del call
