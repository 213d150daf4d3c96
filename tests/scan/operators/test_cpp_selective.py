"""selective_scan of the C++ API on CPU tensors, which it passes to the implementation that Python registers."""

from __future__ import annotations

from typing import Any

import pytest
import selective_api


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return selective_api.load(tmp_path_factory.mktemp("selective_api"))


def test_results_are_those_of_python(api: Any, seed: int) -> None:
    selective_api.check(api, "cpu", seed)
