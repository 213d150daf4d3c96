"""The C++ API without a GPU: the example compiles, links, and reports that there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import cpp_example


def test_the_example_builds_and_reports_that_there_is_no_gpu(tmp_path: Path) -> None:
    program = cpp_example.build(tmp_path)
    done = subprocess.run([program], env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (cpp_example.NO_GPU, "no GPU: nothing was run\n"), done.stderr
