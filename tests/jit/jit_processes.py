"""Starts children of the JIT's tests: forks of a process that has loaded libtorch (jit_nursery.py)."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO


class Nursery:
    """The process to fork. It ends when its socket is closed, that is, with this process."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("jit_nursery.py")), str(other.fileno())],
            pass_fds=[other.fileno()],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        )
        other.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def ask(self, request: dict[str, Any], descriptors: tuple[int, ...] = ()) -> int:
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        answer = self._socket.recv(64)
        assert answer, "the nursery ended"
        return int(answer)


@functools.cache
def nursery() -> Nursery:
    return Nursery()


class Forked:
    """A child, with the methods of subprocess.Popen that the tests use."""

    def __init__(self, package: str, environment: dict[str, str], folder: Path, errors: int):
        (read, self.stdin), (self.stdout, write) = (self._pipe() for _ in range(2))
        request = {"package": package, "environment": environment, "folder": str(folder)}
        self.pid = nursery().ask(request, (read.fileno(), write.fileno(), errors))
        read.close()
        write.close()
        self._status: int | None = None

    @staticmethod
    def _pipe() -> tuple[TextIO, TextIO]:
        read, write = os.pipe()
        return os.fdopen(read), os.fdopen(write, "w")

    def send_signal(self, number: int) -> None:
        if self._status is None:  # not waited for: the id is still its own
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        if self._status is None:
            self._status = nursery().ask({"wait": self.pid})
        return self._status
