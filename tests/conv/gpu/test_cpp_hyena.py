"""The C++ API of Hyena's operators on CUDA tensors."""

from __future__ import annotations

from typing import Any

import hyena_api
import pytest
import torch


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return hyena_api.load(tmp_path_factory.mktemp("hyena_api"))


def test_results_are_those_of_python(api: Any, seed: int) -> None:
    hyena_api.check(api, "cuda", seed)


def test_refused(api: Any) -> None:
    ones = torch.ones(2, 3, device="cuda")
    with pytest.raises(ValueError, match=r"^hyena_fir_step: fir_state: expected \(B or slots, D=3, K-1=3\), got \(2, 3, 4\)$"):
        api.hyena_fir_step(ones, torch.ones(2, 3, 4, device="cuda"), torch.ones(3, 1, 4, device="cuda"), None)
