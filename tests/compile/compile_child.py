"""The program of a child of the compile tests. It reads JSON lines {"jobs": n, "force": bool, "work": [[kernel, configuration,
arch], ...]} from standard input, and answers each by a line {"findings": ..., "cache": ..., "results": [...]} on standard
output. Environment variables choose the compiler and the cache.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import gdn_cuda  # noqa: F401  (tells the core where headers are)
from gdn_cuda import _C


def compiled(work: list[str], force: bool) -> dict[str, object]:
    try:
        return dict(_C.compile(*work, force=force))
    except RuntimeError as error:
        return {"error": str(error)}


for line in sys.stdin:
    request = json.loads(line)
    with ThreadPoolExecutor(max_workers=request["jobs"]) as pool:  # _C.compile releases the GIL
        results = list(pool.map(partial(compiled, force=request["force"]), request["work"]))
    answer = {"findings": _C.toolchain()["findings"], "cache": _C.cache_directory(), "results": results}
    print(json.dumps(answer), flush=True)
