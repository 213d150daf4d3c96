import sys

import gdn_cuda
from gdn_cuda import _C

for entry in _C.kernels():
    for listed in entry["configurations"]:
        text = listed["configuration"]
        if entry["name"] == "prefill" and f"head_k = {sys.argv[1]}," in text and "bf16" in text:
            made = dict(_C.compile("gdn/prefill", text, "sm_90a"))
            print(gdn_cuda.__file__.split("/")[-3], made["spill_bytes"], made["is_serialized"], made["origin"])
