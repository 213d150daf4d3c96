import os
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.operators import measure
timer = Timer(9)
for op, name in (("causal_conv1d", "8×5120×2048 channels last, forward"), ("causal_conv1d", "8×5120×2048 W=8 channels last, forward"), ("causal_conv1d", "1×8192×32768 channels last, forward"),
                 ("conv_split_l2norm", "1×8192 16/32 heads of 128"), ("conv_split_l2norm", "1×32768 16/32 heads of 128"), ("conv_split_l2norm", "1×32768 16/32 heads of 128, pool"), ("conv_split_l2norm", "1×8192 16/32 heads of 128, pool")):
    call = {c.shape: c for c in measure.load().benches[op].cases("cuda")}[name].prepare().call
    row = []
    for s in (0, 32, 48, 56, 72, 80, 96, 108, 128, 160, 228):
        os.environ.pop("GDN_TRY_SEGMENT", None)
        if s: os.environ["GDN_TRY_SEGMENT"] = str(s)
        row.append(f"{s}:{timer.graph_us(call):.1f}")
    print(op, name, *row, flush=True)
