"""The C++ API of RG-LRU's and S7's scans on CUDA tensors."""

from __future__ import annotations

from typing import Any

import gated_api
import pytest
import torch


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return gated_api.load(tmp_path_factory.mktemp("gated_api"))


def test_results_are_those_of_python(api: Any, seed: int) -> None:
    gated_api.check(api, "cuda", seed)


def test_refused(api: Any) -> None:
    ones = torch.ones(1, 2, 3, device="cuda")
    with pytest.raises(ValueError, match=r"^rglru_scan: A: expected \(D, N\) = \(2, 1\), got \(3, 1\)$"):
        api.rglru_scan(ones, ones, torch.ones(3, 1, device="cuda"), None, None, False)
    with pytest.raises(ValueError, match=r"^s7_scan: B: expected \(b, N, H, L\) = \(1, 2, 2, 3\), got \(1, 2, 3\)"):
        api.s7_scan(ones, ones, ones, ones, None)
