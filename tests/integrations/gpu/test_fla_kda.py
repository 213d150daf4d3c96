"""gdn_cuda.compat.fla's functions of Kimi Delta Attention on the GPU."""

import pytest
from test_fla_kda import *  # noqa: F403


@pytest.fixture
def device() -> str:
    return "cuda"
