"""benchmarks/gdn_stack.py on a CPU, where its sizes are small."""

from __future__ import annotations

import re
from pathlib import Path

import processes
import pytest

from gdn_cuda.integrations import transformers as integration

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
if not integration.available()[0]:
    pytest.skip(f"not the transformers that was verified: {integration.available()[1]}", allow_module_level=True)

# FLA refuses its backward on a Hopper GPU with some versions of Triton.
REFUSING = f"""
import functools, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import gdn_stack_layers, gdn_stack_training

def refuse(gradient):
    raise RuntimeError("expected another\\n  Triton")

def with_hook(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        output, state = function(*args, **kwargs)
        output.register_hook(refuse)
        return output, state
    return call

modeling = gdn_stack_layers.modeling
modeling.torch_chunk_gated_delta_rule = with_hook(modeling.torch_chunk_gated_delta_rule)
gdn_stack_training.main()
"""


def said(*arguments: object) -> str:
    done = processes.run(*arguments, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "the host's kernels ran" not in done.stdout
    return done.stdout


def test_prefill_and_decode() -> None:
    found = re.findall(r"^(prefill 70|decode B=2) .* ([\d.e-]+), ([\d.e-]+)$", said(BENCHMARKS / "gdn_stack.py"), re.MULTILINE)
    assert [name for name, *_ in found] == ["prefill 70", "decode B=2"]
    assert all(0 < float(error) < 1e-2 for _, *errors in found for error in errors)


def rows_of_training(text: str) -> dict[str, str]:
    return dict(re.findall(r"^  (\w+) +(.+)$", text, re.MULTILINE))


def check_errors(row: str, other: str) -> None:
    found = re.search(rf" x {other}; output differs by (\S+), gradients by (\S+), at most (\S+) \(\S+\)$", row)
    assert found is not None, row
    output, gradients, largest = map(float, found.groups())
    assert 0 < output < 1e-2 and 0 < gradients < 3e-2 and gradients < largest < 1e-1


def test_a_training_step() -> None:
    rows = rows_of_training(said(BENCHMARKS / "gdn_stack.py", "--train"))
    assert list(rows) == ["host", "integration", "layers"]
    assert all(re.match(r"[\d.]+ ms +[\d,]+ tokens/s", row) for row in rows.values())
    for name in ("integration", "layers"):
        check_errors(rows[name], "host")


def test_a_host_that_refuses() -> None:
    """Its row is the error, and the layers are compared with the integration."""
    rows = rows_of_training(said("-c", REFUSING))
    assert rows["host"] == "RuntimeError: expected another Triton"
    assert rows["integration"].endswith("tokens/s")
    check_errors(rows["layers"], "integration")
