"""Starts Python processes: in a tenth of a second as forks of one that has imported torch (process_nursery.py), or anew."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

PATIENCE = 300.0  # seconds


@functools.cache
def nursery(imports: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """The process to fork, started once. It ends when its standard input is closed, that is, with this process."""
    started = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("process_nursery.py")), *imports],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(started.communicate)
    return started


def run(
    *arguments: object, imports: tuple[str, ...] = (), folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python arguments…` in `folder`, in this environment without its GDN_ variables and with `variables`. The modules
    `imports` are imported before, without GDN_ variables: for tests to which that makes no difference."""
    argv = [str(each) for each in arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GDN_")} | variables
    parent = nursery(imports)
    assert parent.stdin is not None and parent.stdout is not None
    with tempfile.NamedTemporaryFile("r") as output, tempfile.NamedTemporaryFile("r") as errors:
        request = {"argv": argv, "env": environment, "cwd": str(folder or Path.cwd()), "output": [output.name, errors.name]}
        parent.stdin.write(json.dumps(request) + "\n")
        parent.stdin.flush()
        if not select.select([parent.stdout], [], [], PATIENCE)[0]:
            parent.kill()
            raise subprocess.TimeoutExpired(argv, PATIENCE)
        return subprocess.CompletedProcess(argv, int(parent.stdout.readline()), output.read(), errors.read())


def run_ranks(count: int, *arguments: object) -> None:
    """Runs `python arguments… rank` for each rank, as new processes in this environment: on GPUs, where a fork would lack the
    threads of its parent, and kernels may have to be compiled. Raises what a process prints if it fails."""
    argv = [sys.executable, *(str(each) for each in arguments)]
    started = [
        subprocess.Popen([*argv, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(count)
    ]
    printed = [each.communicate(timeout=PATIENCE)[0] for each in started]
    failed = [rank for rank, each in enumerate(started) if each.returncode != 0]
    assert not failed, "\n".join(f"rank {rank}:\n{printed[rank]}" for rank in failed)
