"""`gdn_cuda.parallel` in several processes, with gloo: every result and gradient is that of one process, in fp64."""

from __future__ import annotations

from pathlib import Path

import processes
import pytest
import torch.distributed as dist


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
def test_processes_have_the_results_and_gradients_of_one(tmp_path: Path) -> None:
    child = Path(__file__).with_name("gloo_child.py")
    imports = ("torch.distributed.device_mesh", "gdn_cuda.parallel")
    ended = processes.run(child, tmp_path / "found", imports=imports)
    assert ended.returncode == 0, ended.stderr
