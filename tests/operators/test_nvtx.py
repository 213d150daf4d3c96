"""GDN_NVTX=1 puts an NVTX range around every operator, and nothing else."""

from __future__ import annotations

import os

import processes
import pytest
import torch

from gdn_cuda.operators import nvtx
from gdn_cuda.operators.registration import SCHEMAS

CALLS = """
import sys, torch
said = []
torch.cuda.nvtx.range_push = lambda name: said.append(name)
torch.cuda.nvtx.range_pop = lambda: said.append("end")
torch.cuda.nvtx.mark = lambda name: None
import gdn_cuda
A_log, a = torch.zeros(4), torch.randn(1, 3, 4)
with torch.no_grad():
    gdn_cuda.fused_gdn_gating(A_log, A_log, a, a)
gdn_cuda.fused_gdn_gating(A_log, A_log, a, a)
x, weight = torch.randn(1, 2, 5, requires_grad=True), torch.ones(2, 3)
gdn_cuda.causal_conv1d(x, weight).sum().backward()
try:
    gdn_cuda.fused_gdn_gating(A_log, A_log, a, a[:, :2])
except ValueError as error:
    said.append(str(error).split(":")[0])
compiled = torch.compile(lambda a: gdn_cuda.fused_gdn_gating(A_log, A_log, 2 * a, a)[1], backend="eager", fullgraph=True)
assert torch.equal(compiled(a), gdn_cuda.fused_gdn_gating(A_log, A_log, 2 * a, a)[1])
print(" ".join(said))
"""


def run(**variables: str) -> str:
    done = processes.run("-c", CALLS, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_call_has_a_range() -> None:
    gating, conv = "gdn_cuda.fused_gdn_gating end", "gdn_cuda.causal_conv1d"
    ranges = run(GDN_NVTX="1")
    assert ranges.startswith(f"{gating} {gating} {conv}")
    assert ranges.endswith(f"{gating} fused_gdn_gating {gating}")  # that of a refused call ends too; a compiled one has none
    assert ranges.count(" end") == ranges.count("gdn_cuda.") and f"{conv}_backward end" in ranges


@pytest.mark.parametrize("value", ["0", ""])
def test_no_range_otherwise(value: str) -> None:
    assert run(GDN_NVTX=value) == "fused_gdn_gating"


def test_without_the_variable_operators_are_torchs_own() -> None:
    if os.environ.get("GDN_NVTX"):
        pytest.skip("GDN_NVTX is set")
    assert all(isinstance(schema.overload, torch._ops.OpOverload) for schema in SCHEMAS.values())


def test_a_torch_without_nvtx_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: str) -> None:
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setenv("GDN_NVTX", "1")
    monkeypatch.setattr("gdn_cuda._C.env", lambda: {"nvtx": True})
    monkeypatch.setattr(torch.cuda.nvtx, "mark", fail)
    double = nvtx.ranged("double", lambda x: 2 * x)
    assert double(3) == 6 == double(3)
    assert [record.message for record in caplog.records] == ["GDN_NVTX: no ranges: NVTX functions not installed"]
