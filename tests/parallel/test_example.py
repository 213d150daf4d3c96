"""examples/long_sequence.py: two processes have the losses of one, and a prompt is split over them."""

from __future__ import annotations

import re
from pathlib import Path

import processes
import pytest
import torch.distributed as dist

PATH = Path(__file__).resolve().parents[2] / "examples" / "long_sequence.py"
TWO_PROCESSES = """
import os, runpy, signal, socket, sys
signal.alarm(120)
with socket.socket() as free:
    free.bind(("localhost", 0))
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
other = os.fork()
os.environ |= {"RANK": str(int(other == 0)), "LOCAL_RANK": str(int(other == 0))}
sys.path.insert(0, os.path.dirname(sys.argv[1]))
sys.argv[:2] = sys.argv[1:2]
runpy.run_path(sys.argv[0], run_name="__main__")
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_have_the_losses_of_one() -> None:
    imports = ("torch.distributed.device_mesh", "gdn_cuda.parallel")
    arguments = ("--steps", "3", "--tokens", "150")
    done = processes.run("-c", TWO_PROCESSES, PATH, *arguments, imports=imports, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    found = re.search(r"largest difference of the two losses: (\S+)", done.stdout)
    assert found is not None and float(found[1]) < 1e-5
    losses = re.findall(r"^ \d +(\d\.\d{4}) ", done.stdout, re.MULTILINE)
    assert len(set(losses)) == 3, done.stdout
    assert "sequence 0, 150 tokens: ranks 0 → 1" in done.stdout and "all outputs are finite" in done.stdout
    assert re.search(r"prefill of 1×150: [\d,]+ tokens a second", done.stdout)
