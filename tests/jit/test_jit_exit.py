"""A process whose main thread ends while others compile exits normally: before Python 3.14, a daemon thread that wants the GIL
is then ended by pthread_exit(), which unwinds the stack of C++ below it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("jit_exit_child.py")
PATIENCE = 300.0  # seconds


def package_folder() -> str:
    spec = importlib.util.find_spec("gdn_cuda")
    assert spec is not None and spec.submodule_search_locations is not None
    return next(iter(spec.submodule_search_locations))


# Numbers of messages: a compile logs two, so the main thread ends immediately, with the first compile, or with the third.
@pytest.mark.parametrize("moment", ["sink", "hook", "cached", "0", "2", "6"])
def test_a_process_exits_normally_while_daemon_threads_compile(moment: str, cache: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GDN_")}
    environment |= {"GDN_JIT_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, str(CHILD), package_folder(), moment],
        env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
