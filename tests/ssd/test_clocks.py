"""benchmarks/ssd_clocks.py finds its places in the kernels' headers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import ssd_clocks


@pytest.mark.parametrize("kernel", [ssd_clocks.PREFILL, ssd_clocks.BACKWARD], ids=["prefill", "backward"])
def test_places_exist(kernel: ssd_clocks.Kernel, tmp_path: Path) -> None:
    shutil.copytree(ssd_clocks.ROOT / "include", tmp_path / "include")
    ssd_clocks.instrument(tmp_path, kernel)
    for file in {role.file for role in kernel.roles}:
        text = (tmp_path / kernel.folder / file).read_text()
        assert text.count(" stamp(args, ") == sum(len(role.places) for role in kernel.roles if role.file == file)
