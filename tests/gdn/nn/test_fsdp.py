"""GatedDeltaNet under FSDP2, `torch.distributed.fsdp.fully_shard`."""

from __future__ import annotations

from pathlib import Path

import processes
import pytest
import torch.distributed as dist


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    """Plain and in mixed precision, with parameters gathered again for the backward and kept; and initial values."""
    child = Path(__file__).with_name("fsdp_child.py")
    ended = processes.run(child, tmp_path / "found", "cpu", imports=("torch.distributed.fsdp", "gdn_cuda"))
    assert ended.returncode == 0, ended.stderr
