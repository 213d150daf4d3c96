"""The C++ API of Mamba-2's scan on CUDA tensors."""

from __future__ import annotations

from typing import Any

import pytest
import ssd_api
import torch


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ssd_api.load(tmp_path_factory.mktemp("ssd_api"))


def test_results_are_those_of_python(api: Any) -> None:
    ssd_api.check(api, "cuda")


def test_refused(api: Any) -> None:
    x = ssd_api.inputs("cuda", 2)
    with pytest.raises(ValueError, match=r"^ssd_scan: B: expected a number of groups that divides the 2 heads, got 3$"):
        api.ssd_scan(*x[:3], *(y.expand(-1, -1, 3, -1) for y in x[3:]), None, None)
    slots, pool = torch.tensor([0, 1], device="cuda"), torch.zeros(3, 2, 64, 64, device="cuda")
    with pytest.raises(ValueError, match=r"^ssd_scan: initial_state: expected a pool \(slots, H, P, N\) with state_indices"):
        api.ssd_scan_pool(*x, None, slots, torch.empty_like(x[0]))
    with pytest.raises(ValueError, match=r"^ssd_scan: out: expected memory that does not overlap that of x"):
        api.ssd_scan_pool(*x, pool, slots, x[0])
