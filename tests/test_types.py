"""Types of the public functions as mypy sees them in a user's program."""

from __future__ import annotations

import subprocess
from pathlib import Path

from test_style import ROOT, tool

GOOD = """
import gdn_cuda, torch

def prefill(x: torch.Tensor, pool: torch.Tensor, final: bool) -> None:
    out, state = gdn_cuda.chunked_forward(x, x, x, x, x)
    print(out.shape, state.shape)
    out, state = gdn_cuda.chunked_forward(x, x, x, x, x, pool, state_indices=x, checkpoint_every=0, output_final_state=True)
    print(out.shape, state.shape)
    out, maybe = gdn_cuda.chunked_forward(x, x, x, x, x, output_final_state=final)
    print(out.shape, None if maybe is None else maybe.shape)
    out, maybe, checkpoints = gdn_cuda.chunked_forward(x, x, x, x, x, checkpoint_every=64)
    print(out.shape, checkpoints.shape)
    output, new_state = gdn_cuda.recurrent_forward(x, x, x, None, x, x)
    print(output.shape, new_state.shape)
    print(gdn_cuda.fused_decode(x, x, x, x, x, x, x, pool).shape)
    print(gdn_cuda.selective_scan(x, x, x, x, x, delta_softplus=True).shape)
    out, state = gdn_cuda.selective_scan(x, x, x, x, x, return_last_state=True)
    names: tuple[str, ...] = gdn_cuda.integrations.transformers.install("mamba")
    with gdn_cuda.compat.mamba_ssm.install():
        print(names, gdn_cuda.compat.causal_conv1d.causal_conv1d_update(x, x, x).shape)
"""
BAD = """
import gdn_cuda, torch

def prefill(x: torch.Tensor, final: bool) -> None:
    out, state = gdn_cuda.chunked_forward(x, x, x, x, x, checkpoint_every=64)
    out, state, checkpoints = gdn_cuda.chunked_forward(x, x, x, x, x)
    print(gdn_cuda.chunked_forward(x, x, x, x, x, output_final_state=final)[1].shape)
    print(gdn_cuda.selective_scan(x, x, x, x, x, return_last_state=True).shape)
    print(gdn_cuda.no_such, gdn_cuda.integrations.no_such, gdn_cuda.compat.no_such)
"""


def errors(program: str, folder: Path) -> str:
    path = folder / "program.py"
    path.write_text(program)
    # The project's own configuration, which does not follow torch: that would take a minute.
    done = subprocess.run([tool("mypy"), "--no-error-summary", str(path)], cwd=ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_mypy_infers_the_results_from_the_arguments(tmp_path: Path) -> None:
    assert errors(GOOD, tmp_path) == ""


def test_mypy_rejects_the_use_of_absent_results(tmp_path: Path) -> None:
    found = errors(BAD, tmp_path)
    assert [f":{line}: error" in found for line in (5, 6, 7, 8, 9)] == [True] * 5, found
