"""The C++ API of the structured operators on CPU tensors, which takes them to the implementations that Python registers."""

from __future__ import annotations

from typing import Any

import pytest
import structured_api
import torch


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return structured_api.load(tmp_path_factory.mktemp("structured_api"))


def test_results_are_those_of_python(api: Any, seed: int) -> None:
    structured_api.check(api, "cpu", seed)


def test_nothing_is_converted(api: Any) -> None:
    v, x = torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex128)
    with pytest.raises(ValueError, match=r"^log_vandermonde_transpose: v: expected complex128, got complex64"):
        api.log_vandermonde_transpose(torch.ones(4, dtype=torch.float64), v, x)
    with pytest.raises(ValueError, match=r"^log_vandermonde_transpose: v: expected \(…, 3\) as x has, got \(2,\)"):
        api.log_vandermonde_transpose(torch.ones(4), v[:2], v)
