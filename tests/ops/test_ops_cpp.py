"""The C++ API without a GPU: the example compiles and links, and every function that the header declares can be linked."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import cpp_example

from gdn_cuda import runtime


def test_example_builds_and_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    program = cpp_example.build(tmp_path)
    done = subprocess.run([program], env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (cpp_example.NO_GPU, "no GPU: nothing was run\n"), done.stderr


def test_the_library_exports_every_function_of_the_header() -> None:
    header = (cpp_example.ROOT / "include" / "gdn_cuda" / "api.hpp").read_text()
    declared = re.findall(r"^[a-zA-Z][\w:<>, ]* (\w+)\(", header, re.MULTILINE)
    assert {"init", "fused_decode"} <= set(declared)
    command = ["nm", "--dynamic", "--defined-only", "--demangle", str(runtime.library_path())]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(r" T gdn_cuda::(\w+)\(", symbols))
    assert not set(declared) - exported
