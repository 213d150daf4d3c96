"""Started by tests/processes.py. Imports torch and the modules that its arguments name, and no others of ours. Then, for every
JSON line {"argv", "env", "cwd", "output"} on standard input, forks a child that runs `python argv…`, and prints its exit code
on a line.

A child differs from a new process only in the imported modules; our library reads its environment variables at first use. A
child runs Python's exit functions and skips the teardown of torch.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import torch


def become(request: dict[str, Any]) -> None:
    for descriptor, path in ((0, os.devnull), (1, request["output"][0]), (2, request["output"][1])):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    first, *rest = request["argv"]
    if first in ("-m", "-c"):
        what, *rest = rest
        sys.path[0] = request["cwd"]
        sys.argv = [first, *rest]
        if first == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(first).parent)
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def code_of(request: dict[str, Any]) -> int:
    try:
        become(request)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    torch.broadcast_shapes((1,))  # imports sympy
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # or a garbage collection in a child would copy every page
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            code = code_of(json.loads(line))
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
