"""examples/generate.py on a CPU."""

from __future__ import annotations

import re
from pathlib import Path

import processes
import pytest

from gdn_cuda.integrations import transformers as integration

ROOT = Path(__file__).resolve().parents[2]
if not integration.available()[0]:
    pytest.skip(f"not the transformers that was verified: {integration.available()[1]}", allow_module_level=True)


# Calls of three layers of Gated Delta Net or two of Mamba-2: a prompt and four steps.
CALLS = {
    "qwen3_next": {
        "causal_conv1d_fn": "3",
        "causal_conv1d_update": "12",
        "chunk_gated_delta_rule": "3",
        "fused_recurrent_gated_delta_rule": "12",
        "rms_norm_gated": "15",
    },
    "nemotron_h": {
        "causal_conv1d_fn": "2",
        "causal_conv1d_update": "8",
        "mamba_chunk_scan_combined": "2",
        "selective_state_update": "8",
        "rms_norm_gated": "10",
    },
}


def first_logits(said: str) -> tuple[float, float]:
    """The errors of transformers and of gdn_cuda."""
    found = re.search(r"^first logits against fp64, relative: transformers (\S+), with gdn_cuda (\S+)$", said, re.MULTILINE)
    assert found is not None, said
    return float(found[1]), float(found[2])


@pytest.mark.parametrize("model", CALLS)
def test_in_bf16_logits_are_compared_and_no_tokens_are_counted(model: str) -> None:
    options = ["--model", model, "--tokens", "3", "--prompt", "66", "--dtype", "bfloat16"]
    done = processes.run(ROOT / "examples/generate.py", *options, CUDA_VISIBLE_DEVICES="", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "tokens are the same" not in done.stdout
    theirs, ours = first_logits(done.stdout)
    assert 1e-4 < ours < 1.5 * theirs < 0.1


@pytest.mark.parametrize("model", CALLS)
def test_the_tokens_are_the_same(model: str) -> None:
    options = ["--model", model, "--tokens", "5", "--prompt", "66", "--batch", "2"]
    done = processes.run(ROOT / "examples/generate.py", *options, CUDA_VISIBLE_DEVICES="", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "10 of 10 tokens are the same" in done.stdout
    theirs, ours = first_logits(done.stdout)
    assert ours < 2 * theirs < 1e-5
    calls = dict(re.findall(r"^transformers\.(\w+): (\d+) calls by gdn_cuda$", done.stdout, re.MULTILINE))
    assert calls == CALLS[model]
