"""A call takes Python's GIL once where its arguments end (csrc/operators/last_references.hpp), however many they are: the C++
for CUDA tensors runs on CPU tensors, with launches that do nothing (benchmarks/host_profile.cpp), and what takes the GIL is
counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gdn_cuda

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COUNTING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
static long count;
#define COUNTED(type, name, parameters, arguments) \
    type name parameters { \
        static type (*real) parameters; \
        if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
        ++count; \
        return real arguments; \
    }
COUNTED(int, PyGILState_Ensure, (void), ())
COUNTED(void, PyEval_AcquireThread, (void* thread), (thread))
COUNTED(void, PyEval_RestoreThread, (void* thread), (thread))
long gil_count(void) { return count; }
"""
CHILD = r"""
import ctypes, json, os, sys, weakref
sys.path.insert(0, os.environ["BENCHMARKS"])
import torch, host_profile
host_profile.keep_kernels_for_cpu_tensors()
from host_times import make_calls
import gdn_cuda

counter, core = ctypes.PyDLL(os.environ["COUNTER"]), ctypes.PyDLL(os.environ["CORE"])
call, found = make_calls("cpu")["fused_decode"], {}

def taken():
    before = counter.gil_count()
    call()
    return counter.gil_count() - before

with torch.no_grad():
    call()
    found["with"] = [taken() for _ in range(3)]
    x = torch.ones(2, 2, 1)
    alive = weakref.ref(x)
    try:
        gdn_cuda.fused_decode(x, x, x, x, x, x, x, x)
    except ValueError as error:
        found["error"] = str(error)
        error.__traceback__ = None
    del x
    found["freed"] = alive() is None
    core._ZN8gdn_cuda19drop_arguments_withEPFvPFvPvES0_E(None)
    found["without"] = [taken() for _ in range(3)]
print(json.dumps(found))
"""


def _torch_takes_the_gil() -> bool:
    symbol = b"_ZNK3c1010TensorImpl15decref_pyobjectEv"
    return symbol in (Path(torch.__file__).parent / "lib" / "libc10.so").read_bytes()


@pytest.mark.skipif(not _torch_takes_the_gil(), reason="torch before 2.11 takes no GIL where a tensor ends")
def test_a_call_takes_the_gil_once_for_all_of_its_arguments(tmp_path: Path) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import host_profile
    finally:
        sys.path.remove(str(BENCHMARKS))
    source, counter = tmp_path / "counting.c", tmp_path / "libcounting.so"
    source.write_text(COUNTING)
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", str(source), "-o", str(counter), "-ldl"], check=True)
    variables = {
        "LD_PRELOAD": f"{host_profile.shim(tmp_path)} {counter}",
        "BENCHMARKS": str(BENCHMARKS),
        "COUNTER": str(counter),
        "CORE": str(Path(gdn_cuda.__path__[0]) / "lib" / "libgdn_cuda.so"),
    }
    done = subprocess.run([sys.executable, "-c", CHILD], env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["with"] == [2, 2, 2]  # where the arguments end, and where torch gives control back to Python
    assert found["error"].startswith("fused_decode: ")
    assert found["freed"], "arguments of a call that raised"
    assert min(found["without"]) >= 9, "one for each of the tensors, if nothing is done about it"
