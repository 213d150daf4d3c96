import os, sys, time
START = time.time()
LIMIT = float(sys.argv[1])
import torch
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.scan.measure_selective import Shape, layer_inputs, timed_call
from gdn_cuda.operators import measure
timer = Timer(7)
def left(): return time.time() - START < LIMIT
def env(**e):
    for k in ("GDN_TRY_LANES", "GDN_TRY_BACKWARD", "GDN_TRY_PIECES", "GDN_TRY_HALF", "GDN_TRY_SEGMENT"): os.environ.pop(k, None)
    os.environ["GDN_TRY_LANES"] = "0"
    os.environ.update({k: str(v) for k, v in e.items() if v is not None})
def row(tag, shape, backward, variants):
    if not left(): return
    try:
        env()
        x = layer_inputs("cuda", shape)
        call = timed_call(x, backward)
        out = []
        for name, e in variants:
            env(**e)
            out.append(f"{name}:{timer.stream_us(call):.1f}")
        print(tag, shape.name, *out, flush=True)
    except Exception as error:
        print(tag, shape.name, "FAILED", str(error)[:200], flush=True)
L = lambda *n: [(str(i), {"GDN_TRY_LANES": i}) for i in n]
B = lambda *p: [(f"{b}/{i}", {"GDN_TRY_BACKWARD": b, "GDN_TRY_PIECES": i}) for b in (0, 1) for i in p]
cx = Shape(8, 1024, 2048, is_complex=True)
row("F", Shape(1, 1536, 512), False, L(0, 1, 2, 3, 4, 5, 6, 7, 8))
row("F", Shape(1, 5120, 4096), False, L(0, 1, 2, 3, 6, 8))
row("F", Shape(8, 5120, 2048, N=64), False, L(0, 1, 6, 8))
row("FC", cx, False, [("", {})])
row("BC", cx, True, [("", {})])
row("B", Shape(1, 1536, 512), True, B(None, 1, 2, 4))
row("B", Shape(1, 5120, 4096), True, B(None, 1, 2))
row("F", Shape(1, 2048, 4096), False, L(0, 1, 2, 4, 6))
row("F", Shape(1, 1536, 8192), False, L(0, 1, 2, 4, 6))
row("F", Shape(2, 1536, 2048), False, L(0, 1, 2, 4, 6))
row("F", Shape(8, 5120, 2048), False, L(0, 1, 6))
row("F", Shape(8, 1536, 2048), False, L(0, 1, 6))
row("B", Shape(8, 5120, 2048, N=64), True, [("", {})])
row("B", Shape(8, 5120, 2048), True, B(None))
row("B", Shape(8, 1536, 2048), True, B(None))
row("B", Shape(1, 2048, 4096), True, B(None, 1))
torch.cuda.empty_cache()
def conv(op, name, key, values, graph):
    if not left(): return
    try:
        env()
        call = {c.shape: c for c in measure.load().benches[op].cases("cuda")}[name].prepare().call
        out, first = [], None
        for v in values:
            env(**({key: v} if v else {}))
            y = call()
            y = [t for t in (y if isinstance(y, (tuple, list)) else (y,)) if isinstance(t, torch.Tensor)]
            if first is None: first = [t.clone() for t in y]
            same = all(torch.equal(a, b) for a, b in zip(first, y))
            out.append(f"{v}:{(timer.graph_us if graph else timer.stream_us)(call):.1f}{'' if same else '!'}")
        print(op, name[:44], *out, flush=True)
        del call, first, y
        torch.cuda.empty_cache()
    except Exception as error:
        print(op, name, "FAILED", str(error)[:200], flush=True)
S = (0, 48, 72, 80, 96, 108, 128, 160, 228)
conv("causal_conv1d", "8×5120×2048 channels last, forward", "GDN_TRY_SEGMENT", S, True)
conv("hyena_medium", "1×4096×65536 channels neighbours, 128 taps, bfloat16", "GDN_TRY_HALF", (0, 2, 3), False)
conv("conv_split_l2norm", "1×32768 16/32 heads of 128, pool", "GDN_TRY_SEGMENT", S, True)
conv("causal_conv1d", "1×8192×32768 channels last, forward", "GDN_TRY_SEGMENT", S, True)
conv("causal_conv1d", "8×5120×2048 W=8 channels last, forward", "GDN_TRY_SEGMENT", S, True)
conv("conv_split_l2norm", "1×8192 16/32 heads of 128, pool", "GDN_TRY_SEGMENT", S, True)
conv("conv_split_l2norm", "1×8192 16/32 heads of 128", "GDN_TRY_SEGMENT", S, True)
conv("hyena_medium", "1×4096×65536 channels neighbours, 128 taps, bfloat16, backward", "GDN_TRY_HALF", (0, 2), False)
conv("hyena_medium", "1×4096×8192 channels neighbours, 128 taps, bfloat16", "GDN_TRY_HALF", (0, 2, 3), False)
print(f"{time.time() - START:.0f} s")
