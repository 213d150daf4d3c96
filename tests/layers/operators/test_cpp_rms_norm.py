"""The C++ API of rms_norm_gated on CPU tensors, for which it calls Python's implementation."""

from __future__ import annotations

from pathlib import Path

import rms_norm_api


def test_results_are_those_of_python(tmp_path: Path, seed: int) -> None:
    rms_norm_api.check(tmp_path, "cpu", seed)
