"""The C++ API of causal_conv1d on CPU tensors, which it passes to the implementations that Python registers."""

from __future__ import annotations

from pathlib import Path

import causal_api


def test_results_are_those_of_python(tmp_path: Path, seed: int) -> None:
    causal_api.check(causal_api.load(tmp_path), "cpu", seed)
