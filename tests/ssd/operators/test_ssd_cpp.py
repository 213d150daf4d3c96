"""The C++ API of Mamba-2's scan on CPU tensors, which it passes to the implementations that Python registers."""

from __future__ import annotations

from pathlib import Path

import ssd_api


def test_results_are_those_of_python(tmp_path: Path) -> None:
    ssd_api.check(ssd_api.load(tmp_path), "cpu")
