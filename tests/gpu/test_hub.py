"""A kernel repository on a GPU: its compiled kernels run, where nothing may be compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_repository import KERNELS, make, run

from gdn_cuda.runtime import default_arch

pytest.importorskip("kernels", reason="needs the package kernels: pip install -r requirements-dev.txt")


def test_a_repository_runs_its_own_kernels(tmp_path: Path) -> None:
    code = """
hide_the_installed_package()
hub = get_local_kernel(Path(sys.argv[1]))
run_operators(hub, "cuda")
answer(loaded=hub._C.load_events(), folders=hub._C.prebuilt_folders())
"""
    seen = run(code, tmp_path, make(tmp_path, default_arch()))
    assert {event["kernel"].partition("/")[2] for event in seen["loaded"]} == set(KERNELS)
    assert {event["origin"] for event in seen["loaded"]} == {"prebuilt"}
    assert len(seen["folders"]) == 1
