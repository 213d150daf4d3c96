"""A call that is served from the disk cache does not search for headers in Python."""

from __future__ import annotations

import time
from pathlib import Path

from jit_helpers import Child, Start, kernel

SETTLED = 3.1  # seconds after which csrc/jit/path_memo.cpp trusts a folder's times


def with_the_packages_hook(start: Start) -> Child:
    child = start(hook=None)
    child.call("use_the_packages_hook")
    return child


def test_a_disk_hit_is_fast_and_does_not_search_for_headers(start: Start) -> None:
    first = with_the_packages_hook(start)
    assert first.origin(kernel()) == "compiled"
    assert first.call("hook_calls") == 1
    seconds = []
    for _ in range(3):
        child = with_the_packages_hook(start)
        child.send_compile(kernel())
        outcome = child.outcome()
        assert outcome["value"]["origin"] == "disk"
        assert child.call("hook_calls") == 0
        seconds.append(outcome["seconds"])
    assert min(seconds) < 0.3  # 3 ms on a quiet machine


def test_a_disk_hit_notices_an_edited_header(start: Start, library: Path) -> None:
    time.sleep(SETTLED)

    def compiled() -> tuple[str, int]:
        child = with_the_packages_hook(start)
        child.call("init", str(library), "")
        return child.origin(kernel(before="#include <gdn_cuda/kernels/common/types.cuh>\n")), child.call("hook_calls")

    assert compiled() == ("compiled", 1)
    assert compiled() == ("disk", 0)
    header = library / "gdn_cuda" / "kernels" / "common" / "types.cuh"
    header.write_text(header.read_text() + "// edited\n")
    assert compiled() == ("compiled", 0)
