import sys
from concurrent.futures import ThreadPoolExecutor

import gdn_cuda
from gdn_cuda import _C


def compiled(text):
    made = dict(_C.compile("gdn/prefill", text, "sm_90a"))
    return gdn_cuda.__file__.split("/")[-3], made["spill_bytes"], made["is_serialized"], made["origin"]


wanted = [
    listed["configuration"]
    for entry in _C.kernels()
    if entry["name"] == "prefill"
    for listed in entry["configurations"]
    if any(f"head_k = {head_k}," in listed["configuration"] for head_k in sys.argv[1:]) and "bf16" in listed["configuration"]
]
for made in ThreadPoolExecutor(8).map(compiled, wanted):
    if any(head_k in ("192", "256") for head_k in sys.argv[1:]):
        print(*made)
