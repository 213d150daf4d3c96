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


def test_the_tokens_are_the_same() -> None:
    options = ["--tokens", "5", "--prompt", "66", "--batch", "2"]
    done = processes.run(ROOT / "examples/generate.py", *options, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "10 of 10 tokens are the same" in done.stdout
    calls = dict(re.findall(r"^transformers\.(\w+): (\d+) calls by gdn_cuda$", done.stdout, re.MULTILINE))
    assert calls == {
        "causal_conv1d_fn": "3",
        "causal_conv1d_update": "12",
        "chunk_gated_delta_rule": "3",
        "fused_recurrent_gated_delta_rule": "12",
        "rms_norm_gated": "15",
    }
