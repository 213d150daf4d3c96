"""The C++ API of causal_conv1d on CUDA tensors."""

from __future__ import annotations

from typing import Any

import causal_api
import pytest
import torch


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return causal_api.load(tmp_path_factory.mktemp("causal_api"))


def test_results_are_those_of_python(api: Any, seed: int) -> None:
    causal_api.check(api, "cuda", seed)


def test_refused(api: Any) -> None:
    ones = torch.ones(1, 2, 3, device="cuda")
    with pytest.raises(ValueError, match=r"^causal_conv1d: weight: expected \(D, W\) = \(2, 4\), got \(3, 4\)$"):
        api.causal_conv1d(ones, torch.ones(3, 4, device="cuda"), None, None, None)
