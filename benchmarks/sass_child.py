"""The process that benchmarks/compare_sass.py runs in each tree: `sass_child.py ARCH [HEADERS]`; HEADERS is another tree's
include/. It writes a line about the tree, and then a result for every line [kernel, configuration, folder] that it reads.
"""

from __future__ import annotations

import json
import re
import sys

import gdn_cuda
from gdn_cuda import _C, runtime

arch, *headers = sys.argv[1:]
if headers:
    gdn_cuda.init(library_root=headers[0])
structs = {
    f"{entry['family']}/{entry['name']}": re.search(r"<(?:\w+::)*(\w+)\{", entry["configurations"][0]["code"])[1]  # type: ignore[index]
    for entry in _C.kernels()
}
listing: dict[str, list[str]] = {}
for choice in runtime.select():
    if choice.runs_on(runtime.capability_of(arch)):
        listing.setdefault(choice.kernel, []).append(choice.configuration)
tools = _C.toolchain()
about = {
    "package": str(gdn_cuda.__path__[0]),
    "listing": listing,
    "structs": structs,
    "compiler": tools["nvcc_identity" if _C.env()["use_nvcc"] else "nvrtc_identity"],
}
print(json.dumps(about), flush=True)
for line in sys.stdin:
    kernel, configuration, folder = json.loads(line)
    try:
        result = {"key": _C.compile(kernel, configuration, arch, folder, False)["code_key"]}
    except RuntimeError as error:
        result = {"error": str(error)}
    print(json.dumps(result), flush=True)
