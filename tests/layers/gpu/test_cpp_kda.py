"""The C++ API of kda_decode_layer on a GPU."""

from __future__ import annotations

from pathlib import Path

import kda_api


def test_results_are_those_of_python(tmp_path: Path, seed: int) -> None:
    kda_api.check(tmp_path, "cuda", seed)
