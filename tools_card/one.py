import sys, torch
sys.path.insert(0, __file__.rsplit("/", 1)[0])
from turns import shapes
from gdn_cuda.gdn.measure_prefill import prefill_work
work = prefill_work(shapes()[sys.argv[1].replace("_", " ")], "cuda")
for _ in range(3):
    work.call()
torch.cuda.synchronize()
torch.cuda.profiler.start()
work.call()
torch.cuda.synchronize()
torch.cuda.profiler.stop()
