"""`gdn_cuda.parallel` with NCCL on two GPUs, which most machines lack."""

from __future__ import annotations

from pathlib import Path

import processes
import pytest
import torch

if torch.cuda.device_count() < 2:
    pytest.skip(f"expected two GPUs, got {torch.cuda.device_count()}", allow_module_level=True)


def test_two_gpus_have_the_errors_of_one(tmp_path: Path) -> None:
    child = Path(__file__).parents[1] / "nccl_child.py"
    processes.run_ranks(2, child, tmp_path / "found")
