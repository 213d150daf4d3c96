"""Recorded calls of the step of engines' Mamba layers in the emulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulated import emulated
from test_mamba_steps import (  # noqa: F401  (fixtures and tests)
    device,
    sglang_step,
    test_sglang,
    test_sglang_stores_drafts_and_the_last_state,
    test_vllm,
    vllm_step,
)


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with emulated():
        yield
