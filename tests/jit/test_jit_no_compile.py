"""gdn_cuda.no_compile(): a server that never waits for a compiler."""

from __future__ import annotations

from pathlib import Path

import cpp_api
import pytest
from jit_helpers import ARCH, Gate, Start, entries, kernel, wait_for

from gdn_cuda import _C


def test_no_compile_refuses_kernels_that_are_not_stored_in_every_thread(start: Start, cache: Path) -> None:
    child = start()
    assert child.origin(kernel(1)) == "compiled"
    child.call("enter_no_compile")
    child.call("enter_no_compile")
    assert child.origin(kernel(1)) == "disk"
    for depth in (2, 1):
        missed = child.compile_failure(kernel(2))
        assert missed.startswith(
            "test/scale {} is not compiled for sm_90a, and gdn_cuda.no_compile() refuses to compile it now"
        )
        assert 'Call gdn_cuda.warmup("test", "scale") before' in missed
        child.compile_failure(kernel(1), force=True)
        for outcome in child.compile_by("in_threads", kernel(2), 3):
            assert "no_compile()" in outcome["error"]
        child.call("leave_no_compile")
        assert depth == 1 or child.origin(kernel(1)) == "disk"
    assert child.origin(kernel(2)) == "compiled"
    assert len(entries(cache)) == 2


def test_no_compile_needs_no_compiler_to_refuse(start: Start, wheels: dict[str, Path], tmp_path: Path) -> None:
    child = start(hook={"library_root": str(wheels["library_root"])}, GDN_CUDA_HOME=tmp_path)
    child.call("enter_no_compile")
    assert "no_compile()" in child.compile_failure(kernel())


def test_a_compile_that_has_begun_goes_on_in_no_compile(start: Start, gate: Gate) -> None:
    child = start(**gate.variables)
    child.compile_by("in_background", kernel())
    gate.wait_for(1)
    child.call("enter_no_compile")
    child.send_compile(kernel())  # waits for the other thread, and loads the kernel that it compiled
    gate.open()
    assert child.receive()["origin"] == "disk"
    assert child.call("join")["value"]["origin"] == "compiled"


def test_a_call_that_waited_for_another_process_does_not_compile_in_no_compile(start: Start, gate: Gate) -> None:
    holder, waiter = start(**gate.variables), start(**gate.variables)
    holder.send_compile(kernel())
    gate.wait_for(1)
    waiter.compile_by("in_background", kernel())
    wait_for(lambda: "waiting for process" in waiter.messages(), "the wait")
    waiter.call("enter_no_compile")
    holder.kill()
    assert "no_compile()" in waiter.call("join")["error"]


def test_a_context_that_is_dropped_is_left(start: Start) -> None:
    child = start()
    child.call("enter_no_compile")
    child.call("drop_no_compile")
    assert child.origin(kernel()) == "compiled"


def test_cpp_programs_have_no_compile_too(tmp_path: Path) -> None:
    api = cpp_api.load(Path(__file__).with_name("no_compile_api.cpp"), tmp_path)
    broken = ("test", "scale", kernel(before="broken"), ARCH)
    api.enter_no_compile()
    with pytest.raises(RuntimeError, match=r"no_compile\(\)"):
        _C.compile_text(*broken)
    api.leave_no_compile()
    with pytest.raises(RuntimeError, match="did not compile for"):
        _C.compile_text(*broken)
