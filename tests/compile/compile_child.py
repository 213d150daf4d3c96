"""What a child of the compile tests runs: for every line {"jobs": n, "work": [[kernel, configuration, arch], ...]} of standard
input, in JSON, a line {"findings": ..., "cache": ..., "results": [...]} on standard output. The environment says which compiler
and which cache.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import gdn_cuda  # noqa: F401  (tells the core where headers are)
from gdn_cuda import _C


def compiled(work: list[str]) -> dict[str, object]:
    try:
        return dict(_C.compile(*work))
    except RuntimeError as error:
        return {"error": str(error)}


for line in sys.stdin:
    request = json.loads(line)
    with ThreadPoolExecutor(max_workers=request["jobs"]) as pool:  # _C.compile releases the GIL
        results = list(pool.map(compiled, request["work"]))
    answer = {"findings": _C.toolchain()["findings"], "cache": _C.cache_directory(), "results": results}
    print(json.dumps(answer), flush=True)
