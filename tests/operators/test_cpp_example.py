"""The C++ API without a GPU: the example compiles, links, and reports that there is none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import cpp_example
import pytest


@pytest.mark.parametrize("build", [cpp_example.build, cpp_example.build_as_installed])
def test_the_example_builds_and_reports_that_there_is_no_gpu(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    program = build(tmp_path)
    done = subprocess.run([program], env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (cpp_example.NO_GPU, "no GPU: nothing was run\n"), done.stderr
