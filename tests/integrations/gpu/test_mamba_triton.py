"""Recorded calls of the scan of prompts by the engines' own Triton kernels, beside ours. Skipped unless they can be imported,
for which PYTHONPATH has the folder `site` of the pack that `tests/peers/pack.py --vllm SDIST --sglang WHEEL` makes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_calls import OUTPUT, Call, identity
from helpers import rel_rms
from literal_mamba2 import prompts
from mamba_mixers import SGLANG, VLLM
from test_mamba_prompts import SGLANG_CALLS, VLLM_CALLS, arguments
from torch import Tensor

from gdn_cuda.integrations import sglang_mamba, vllm_mamba

PEERS = Path(__file__).resolve().parents[2] / "peers"
KERNELS = {
    "vllm": "vllm.model_executor.layers.mamba.ops.ssd_combined",
    "sglang": "sglang.kernels.ops.mamba.triton_ops.ssd_combined",
}


def has_tokens(call: Call) -> bool:
    """Where a request without tokens is followed by others, the engines' kernels begin these at a wrong chunk."""
    return "without tokens" not in call.name


def is_there(module: str) -> bool:
    """Looks for its package, without an import of that."""
    try:
        return importlib.util.find_spec(module.rpartition(".")[0]) is not None
    except ImportError:
        return False


def own_kernels(engine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the engine's function, with stand-ins for other modules of the engine, until the end of the test."""
    if not is_there(KERNELS[engine]):
        pytest.skip(f"{KERNELS[engine]} cannot be imported")
    names = (engine, "peers")
    before = {name for name in sys.modules if name.startswith(names)}
    monkeypatch.syspath_prepend(str(PEERS))
    importlib.import_module(f"peers_{engine}").stand_ins()
    yield importlib.import_module(KERNELS[engine])
    for name in [name for name in sys.modules if name.startswith(names) and name not in before]:
        del sys.modules[name]


@pytest.fixture
def vllm_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from own_kernels("vllm", monkeypatch)


@pytest.fixture
def sglang_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from own_kernels("sglang", monkeypatch)


def both(x: dict[str, Any], ours: Any, theirs: Any) -> tuple[Any, Any]:
    """Their results, with outputs and states in slots last. Both outputs are compared with fp64 too: that theirs are right
    shows that the integration understands the arguments."""
    other = {name: y.clone() if name in ("out", "final_states_out") else y for name, y in x.items()}
    found, expected = ours(**x), theirs(**other)
    outputs, _ = prompts({name: y[0] if name in ("x", "dt", "B", "C") and x["x"].dim() == 4 else y for name, y in x.items()})
    for each in (x, other):
        assert rel_rms(each["out"].view(outputs.shape), outputs) < 2 * OUTPUT
    if "final_states_out" in x:
        assert found is None and expected is None
        return (x["final_states_out"],), (other["final_states_out"],)
    return found, expected


def equal(found: Any, expected: Any) -> None:
    found, expected = (each if isinstance(each, tuple) else (each,) for each in (found, expected))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if not isinstance(one, Tensor):
            assert one is other is None
            continue
        assert one.shape == other.shape and one.dtype == other.dtype
        assert rel_rms(one, other.double()) < 2 * OUTPUT


@pytest.mark.parametrize("call", [*filter(has_tokens, VLLM_CALLS)], ids=identity)
def test_vllm(call: Call, vllm_kernels: Any, rng: torch.Generator) -> None:
    x = arguments(call, rng, "cuda")
    if "final_states_out" in x:
        x["final_states_out"].zero_()
    equal(*both(x, vllm_mamba.chunk_scan, getattr(vllm_kernels, VLLM)))


@pytest.mark.parametrize("call", [*filter(has_tokens, SGLANG_CALLS)], ids=identity)
def test_sglang(call: Call, sglang_kernels: Any, rng: torch.Generator) -> None:
    equal(*both(arguments(call, rng, "cuda"), sglang_mamba.chunk_scan, getattr(sglang_kernels, SGLANG)))
