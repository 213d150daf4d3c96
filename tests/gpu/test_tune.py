"""Tuning on the GPU: every candidate is correct and really runs, later calls use the winner, and warm calls cost the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gdn_cuda
from gdn_cuda import _C
from gdn_cuda.cli.tune_measure import GpuRunner, tune
from gdn_cuda.operators import measure
from gdn_cuda.structured.measure_tune import Sums

TUNABLES = measure.load().tunables
SHAPES = {
    "causal_conv1d_update": ("3x64x4", "300x8192x3"),
    "chunked_forward": ("1x100x1x2x64x64", "1x4096x2x4x128x128", "2x3000x1x3x96x192"),
    "fused_decode": ("1x2x4x64x128", "70x4x8x128x128", "300x2x2x256x96"),
    "selective_scan": ("1x3x5x7", "2x64x500x16", "4x2200x130x40"),
    "selective_state_update": ("1x3x5", "70x64x16", "300x129x128"),
    "simplified_scan": ("1x3x5", "2x5x5000", "1x64x20001"),
}
CASES = [(operator, shape) for operator in TUNABLES for shape in SHAPES.get(operator, ("1x3x5", "4x64x5000", "48x33x2049"))]


@pytest.mark.parametrize(("operator", "text"), CASES)
def test_every_candidate_is_correct_and_actually_runs(operator: str, text: str) -> None:
    one = TUNABLES[operator]
    shape = one.shape.parse(text)
    device = _C.driver()["devices"][torch.cuda.current_device()]
    for dtype in one.tolerance:
        for shared in {False, one.shares_poles}:
            case = one.case(operator, shape, dtype, shared)
            seen = []
            outcome = tune(case, device, GpuRunner(case, device, 3), lambda done, total, measured: seen.append(measured))  # noqa: B023
            assert [measured.choice for measured in seen] == _C.tuned_candidates(case.kernel, case.problem, device)
            assert outcome.winner.us <= outcome.heuristic.us


def test_a_call_with_other_strides_is_the_same_tuning_problem() -> None:
    """Leading dimensions merge, so the command's rows stand for a model's batch and channels."""
    device = _C.driver()["devices"][torch.cuda.current_device()]
    case = TUNABLES["cauchy_conj"].case("cauchy_conj", Sums(12, 8, 600), None, False)
    x = case.arguments("cuda")
    choice = _C.tuned_candidates(case.kernel, case.problem, device)[-1]
    expected = gdn_cuda.cauchy_conj(**x)
    _C.tuned_attempt(case.kernel, case.problem, choice, device)
    try:
        out = gdn_cuda.cauchy_conj(x["v"].view(3, 4, 8), x["z"], x["w"].view(3, 4, 8))
        assert _C.tuned_attempted(case.kernel, device["ordinal"])
    finally:
        _C.tuned_forget()
    torch.testing.assert_close(out.view(12, 600), expected)


def test_tune_stores_a_winner_that_later_calls_use(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GDN_")}
    done = subprocess.run(
        [sys.executable, "-m", "gdn_cuda", "tune", "log_vandermonde", "64x16x4096", "8x16x500", "--quick", "--json"],
        env=environment | {"GDN_JIT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for report in json.loads(done.stdout):
        assert report["why_not"] is None
        assert report["decides"].startswith(f"tuned on this device: {report['winner']} took ")
