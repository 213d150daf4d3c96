"""The C++ API of causal_conv1d_update on CPU tensors, which it passes to the implementation that Python registers."""

from __future__ import annotations

from typing import Any

import pytest
import step_conv_api
import torch


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return step_conv_api.load(tmp_path_factory.mktemp("step_conv_api"))


def test_results_are_those_of_python(api: Any, seed: int) -> None:
    step_conv_api.check(api, "cpu", seed)


def test_a_missing_required_tensor_is_refused_by_name(api: Any) -> None:
    with pytest.raises(ValueError, match=r"^causal_conv1d_update: conv_state: expected a tensor, got none$"):
        api.conv_step_without_state(torch.zeros(1))
