"""The modules of the engines' Mamba-2 layers, as fakes in which gdn_cuda is installed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import fake_hosts
import pytest
import torch
from engine_calls import prefill_state
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import integrations

VLLM, SGLANG = "mamba_chunk_scan_combined_varlen", "mamba_chunk_scan_combined"
_ROUNDED = {torch.float32: 0.0, torch.bfloat16: 3e-3, torch.float16: 4e-4}


def mixer_of(integration: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = fake_hosts.make(monkeypatch, integration.HOST)[integration._MIXER]
    integrations.reset_calls()
    integration.install()
    yield module
    integration.uninstall()


def close(found: Tensor, expected: Tensor, device: str) -> None:
    """States."""
    assert found.shape == expected.shape
    if expected.any():
        assert rel_rms(found, expected) < prefill_state(torch.float32, device) + _ROUNDED[found.dtype]
    else:
        assert not found.any()
