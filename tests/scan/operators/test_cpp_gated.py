"""The C++ API of RG-LRU's and S7's scans on CPU tensors, which it passes to the implementations that Python registers."""

from __future__ import annotations

from pathlib import Path

import gated_api


def test_results_are_those_of_python(tmp_path: Path, seed: int) -> None:
    gated_api.check(gated_api.load(tmp_path), "cpu", seed)
