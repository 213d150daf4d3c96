"""The C++ API on the GPU: examples/layer.cpp, which checks itself against the recurrence in fp64."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import cpp_example

from gdn_cuda import _C


def cuda_home() -> str:
    """The folder of CUDA's headers and NVRTC that Python found, for a process without Python."""
    found = {finding["what"]: finding["found"] for finding in _C.toolchain()["findings"] if finding["found"]}
    return os.path.commonpath([found["CUDA headers (cuda_bf16.h)"], found["NVRTC (libnvrtc.so)"]])


def test_the_example_passes_its_own_check_and_prints_call_times(tmp_path: Path) -> None:
    program = cpp_example.build(tmp_path)
    done = subprocess.run([program], env=os.environ | {"GDN_CUDA_HOME": cuda_home()}, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    errors = dict(re.findall(r"^(\w+): relative RMS error (\S+),", done.stdout, re.MULTILINE))
    assert errors.keys() == {"prefill_output", "prefill_state", "beta", "gate", "output", "state"}
    assert all(0 < float(error) < (5e-3 if what.startswith("prefill") else 2e-3) for what, error in errors.items())
    host = r"^host: fused_decode [\d.]+ us, bare launch [\d.]+ us, difference -?[\d.]+ us$"
    assert re.search(host, done.stdout, re.MULTILINE)
