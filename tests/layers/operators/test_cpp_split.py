"""The C++ API of conv_split_l2norm on CPU tensors, for which it calls Python's implementations."""

from __future__ import annotations

from pathlib import Path

import split_api


def test_results_are_those_of_python(tmp_path: Path, seed: int) -> None:
    split_api.check(tmp_path, "cpu", seed)
