"""Started once by jit_processes.py. Loads libtorch, which takes longer than most calls of these tests, but none of our code.
Then forks a process for every request on its socket, which becomes a child (jit_child.py) like a newly started one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import socket
import sys
import traceback
from typing import Any

import jit_child

MOST_BYTES = 1 << 20  # of a request


def become_child(request: dict[str, Any], descriptors: list[int]) -> int:
    """Runs jit_child.py with these descriptors as standard input, output and error."""
    for number, given in enumerate(descriptors):
        os.dup2(given, number)
        os.close(given)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[1:] = [request["package"]]
    try:
        jit_child.main()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def answered(asked: socket.socket) -> bool:
    """Answers one request: a process id, or the status of a process that was waited for. False once there are no more."""
    message, descriptors, *_ = socket.recv_fds(asked, MOST_BYTES, 3)
    if not message:
        return False
    request = json.loads(message)
    if "wait" in request:
        asked.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]))
        return True
    child = os.fork()
    if child == 0:
        asked.close()
        code = become_child(request, descriptors)
        atexit._run_exitfuncs()
        os._exit(code)
    for descriptor in descriptors:
        os.close(descriptor)
    asked.send(b"%d" % child)
    return True


if __name__ == "__main__":
    jit_child.load_torch()
    gc.freeze()  # or a garbage collection in a child would copy every page
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        while answered(asked):
            pass
