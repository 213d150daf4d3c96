"""The C++ API of Hyena's operators on CPU tensors, which it passes to the implementations that Python registers."""

from __future__ import annotations

from pathlib import Path

import hyena_api


def test_results_are_those_of_python(tmp_path: Path, seed: int) -> None:
    hyena_api.check(hyena_api.load(tmp_path), "cpu", seed)
