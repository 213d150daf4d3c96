"""The C++ API of rms_norm_gated, callable from here: rms_norm_api.cpp built as in a program that uses the library."""

from __future__ import annotations

from pathlib import Path

import cpp_api
import torch
from rms_norm_cases import inputs

import gdn_cuda


def check(folder: Path, device: str, seed: int) -> None:
    """Results are those of Python."""
    api = cpp_api.load(Path(__file__).with_name("rms_norm_api.cpp"), folder)
    x, gate, weight = inputs(3, 5, 16, seed=seed, dtypes=(torch.bfloat16, torch.bfloat16, torch.float32), device=device)
    expected = gdn_cuda.rms_norm_gated(x, gate, weight, 1e-6, "sigmoid", False, group_size=8)
    assert torch.equal(api.rms_norm_gated(x, gate, weight), expected)
    assert torch.equal(api.rms_norm(x), gdn_cuda.rms_norm_gated(x, None, None))
