"""chunked_forward(forward="recurrent"): outputs and states in the bits of recurrent_forward, and the same gradients. On CPU
tensors torch's functions round with a tensor's size; tests/emulator/test_training.py has the bits of decode."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradient_cases import CASE, PACKED, RAW, GradientCase, drawn, error, gradients_of, same, with_leaves
from torch import Tensor

from gdn_cuda import chunked_forward, fused_decode, recurrent_forward


def decoded(x: dict[str, Any], first: int) -> tuple[Tensor, Tensor]:
    """A prompt of `first` tokens, then token after token, from and to a pool."""
    pool, outputs = x["state"].clone(), []
    length = x["query"].shape[1]
    for begin, end in [(0, first), *((t, t + 1) for t in range(first, length))]:
        rows = {name: x[name][:, begin:end] for name in ("query", "key", "value")}
        gates = {"a": x["gate"][:, begin:end], "b": x["beta"][:, begin:end], "A_log": x["A_log"], "dt_bias": x["dt_bias"]}
        outputs.append(fused_decode(**rows, **gates, state_pool=pool))
    return torch.cat(outputs, 1), pool


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("first", [1, 30])
def test_the_numbers_of_decode(dtype: torch.dtype, first: int, seed: int) -> None:
    """A policy is trained on the numbers that it was sampled with."""
    x, _ = drawn(replace(CASE, options=RAW), seed, dtype)
    out, last = decoded(x, first)
    rounding = torch.finfo(dtype).eps * (1e-2 if dtype == torch.bfloat16 else 16)  # hardly any rounding to bf16 differs
    for given in (x, with_leaves(x, "query")):
        results = chunked_forward(**given, forward="recurrent")
        assert (
            error(results[0], out.double()) < rounding and error(results[1], last.double()) < 16 * torch.finfo(last.dtype).eps
        )


@pytest.mark.parametrize("case", [CASE, PACKED])
def test_the_bits_of_recurrent_forward(case: GradientCase, seed: int) -> None:
    x, _ = drawn(case, seed, torch.bfloat16)
    has = torch.arange(len(case.lengths)) % 2 == 0
    wanted = recurrent_forward(**x, has_initial_state=has)
    found = chunked_forward(**with_leaves(x, "gate"), has_initial_state=has, forward="recurrent")
    assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))


@pytest.mark.parametrize("case", [CASE, PACKED])
def test_the_same_gradients(case: GradientCase, seed: int) -> None:
    x, grads = drawn(replace(case, options=RAW), seed)
    assert same(gradients_of(chunked_forward, x | {"forward": "recurrent"}, grads), gradients_of(chunked_forward, x, grads))


def test_options(seed: int) -> None:
    x, _ = drawn(CASE, seed, torch.bfloat16)
    hints = {"chunk_indices": torch.zeros(1, 2), "cu_chunks": torch.zeros(1), "workspace": 1 << 20, "deterministic": True}
    out, last = chunked_forward(**x, **hints, output_final_state=False, forward="recurrent")
    assert last is None and torch.equal(out, recurrent_forward(**x)[0])
    assert chunked_forward(**x, state_dtype=torch.float16, forward="recurrent")[1].dtype == torch.float16
    compiled = torch.compile(chunked_forward, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**with_leaves(x, "key"), forward="recurrent")[0], out)


@pytest.mark.parametrize("argument, given, got", [
    ("out", torch.zeros(1), "a tensor"),
    ("final_state", torch.zeros(1), "a tensor"),
    ("state_indices", torch.zeros(1), "a tensor"),
    ("checkpoint_every", 64, "64"),
])  # fmt: skip
def test_what_is_written_is_refused(argument: str, given: Any, got: str, seed: int) -> None:
    x, _ = drawn(CASE, seed)
    expected = rf"chunked_forward: {argument}: expected (None|0) where forward is 'recurrent', got {re.escape(got)}"
    with pytest.raises(ValueError, match=expected):
        chunked_forward(**x | {argument: given}, forward="recurrent")
