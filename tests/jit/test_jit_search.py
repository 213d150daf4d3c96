"""A call that is served from the disk cache does not search for headers in Python."""

from __future__ import annotations

import time
from pathlib import Path

from jit_helpers import Child, Start, kernel, wait_for

SETTLED = 3.1  # seconds after which csrc/jit/path_memo.cpp trusts a folder's times


def with_the_packages_hook(start: Start) -> Child:
    child = start(hook=None)
    child.call("use_the_packages_hook")
    return child


def test_a_disk_hit_is_fast_and_does_not_search_for_headers(start: Start) -> None:
    first = with_the_packages_hook(start)
    assert first.origin(kernel()) == "compiled"
    assert first.call("hook_calls") == 1

    def seconds_without_a_search() -> float | None:
        child = with_the_packages_hook(start)
        child.send_compile(kernel())
        outcome = child.outcome()
        assert outcome["value"]["origin"] == "disk"
        return None if child.call("hook_calls") else outcome["seconds"]

    # If another test has just written to a folder that the hook examines, a process searches again.
    times = [wait_for(seconds_without_a_search, "a disk hit without a search") for _ in range(3)]
    assert min(times) < 0.3  # 3 ms on a quiet machine


def test_a_disk_hit_notices_an_edited_header(start: Start, library: Path) -> None:
    time.sleep(SETTLED)

    def compiled() -> tuple[str, int]:
        child = with_the_packages_hook(start)
        child.call("init", str(library), "")
        return child.origin(kernel(before="#include <gdn_cuda/kernels/common/types.cuh>\n")), child.call("hook_calls")

    assert compiled() == ("compiled", 1)
    wait_for(lambda: compiled() == ("disk", 0), "a disk hit without a search")
    header = library / "gdn_cuda" / "kernels" / "common" / "types.cuh"
    header.write_text(header.read_text() + "// edited\n")
    origin, _ = compiled()
    assert origin == "compiled"
