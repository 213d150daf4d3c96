"""benchmarks/ssd_clocks.py finds its places in ssd/prefill's headers."""

from __future__ import annotations

import shutil
from pathlib import Path

import ssd_clocks


def test_places_exist(tmp_path: Path) -> None:
    shutil.copytree(ssd_clocks.ROOT / "include", tmp_path / "include")
    ssd_clocks.instrument(tmp_path)
    for role in ssd_clocks.ROLES:
        text = (tmp_path / ssd_clocks.KERNEL / role.file).read_text()
        assert text.count(" stamp(args, ") == len(role.places)
