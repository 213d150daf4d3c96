import os, sys, itertools
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.scan.measure_selective import Shape, layer_inputs, timed_call
timer = Timer(9)
def t(shape, backward, **env):
    for k in ("GDN_TRY_LANES", "GDN_TRY_BACKWARD", "GDN_TRY_PIECES"): os.environ.pop(k, None)
    os.environ["GDN_TRY_LANES"] = "0"
    os.environ.update({k: str(v) for k, v in env.items()})
    x = layer_inputs("cuda", shape)
    us = timer.stream_us(timed_call(x, backward))
    del x
    return us
which = sys.argv[1]
if which == "lanes":
    for s in (Shape(1,1536,512), Shape(1,5120,4096), Shape(8,5120,2048), Shape(8,1536,2048), Shape(8,5120,2048,N=64), Shape(1,2048,4096)):
        print("F", s.name, " ".join(f"{i}:{t(s, False, GDN_TRY_LANES=i):.1f}" for i in range(9)), flush=True)
    for s in (Shape(1,8192,32768), Shape(1,256,131072)):
        print("F", s.name, " ".join(f"{i}:{t(s, False, GDN_TRY_LANES=i):.1f}" for i in (0, 1, 2)), flush=True)
if which == "backward":
    for s in (Shape(8,1024,2048,is_complex=True), Shape(8,1024,2048,is_complex=True,layout="transposed")):
        print("C", s.name, f"F {t(s, False):.1f} B {t(s, True):.1f}", flush=True)
    for s in (Shape(1,1536,512), Shape(1,5120,4096), Shape(1,2048,4096), Shape(8,5120,2048), Shape(8,1536,2048)):
        print("B", s.name, " ".join(f"{b}:{t(s, True, GDN_TRY_BACKWARD=b):.1f}" for b in (0, 1)), flush=True)
    print("B", "N=64", f"{t(Shape(8,5120,2048,N=64), True):.1f}")
    for s, p in ((Shape(1,1536,512), (1,2,3,4,8)), (Shape(1,5120,4096), (1,2,3,4,6))):
        for b in (0, 1):
            print("P", s.name, b, " ".join(f"{i}:{t(s, True, GDN_TRY_BACKWARD=b, GDN_TRY_PIECES=i):.1f}" for i in p), flush=True)
