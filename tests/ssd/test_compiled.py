"""ssd_scan and ssd_summary under torch.compile without graph breaks, by their operators and on expanded tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import rel_rms

import gdn_cuda
from gdn_cuda.ssd import scan

OFFSETS = torch.tensor([0, 3, 3, 9])


def _drawn(batch: int) -> dict[str, Any]:
    torch.manual_seed(0)
    x = {"x": torch.randn(batch, 9, 2, 8), "dt": torch.rand(batch, 9, 2), "A": -torch.rand(2)}
    return x | {name: torch.randn(batch, 9, 1, 8) for name in ("B", "C")}


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.fixture(params=["operators", "expanded"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "expanded":
        monkeypatch.setattr(scan, "has_kernel", lambda *call: False)


@pytest.mark.parametrize("packed", [False, True])
def test_gradients(packed: bool) -> None:
    x = _drawn(1 if packed else 2)
    leaves = [y.requires_grad_() for y in x.values()]
    rest: dict[str, Any] = {"dt_softplus": True, "dt_limit": (0.1, 2.0), "return_last_state": True}
    rest |= {"cu_seqlens": OFFSETS} if packed else {}

    def loss() -> torch.Tensor:
        out, last = gdn_cuda.ssd_scan(**x, **rest)
        return out.square().sum() + last.sum()

    expected = torch.autograd.grad(loss(), leaves)
    for ours, theirs in zip(torch.autograd.grad(_compiled(loss)(), leaves), expected, strict=True):
        assert rel_rms(ours, theirs) < 1e-5


def test_states_of_a_pool() -> None:
    x, slots = _drawn(1), torch.tensor([2, -1, 0])
    pools = [torch.ones(4, 2, 8, 8) for _ in range(2)]

    def call(pool: torch.Tensor) -> torch.Tensor:
        return gdn_cuda.ssd_scan(**x, initial_state=pool, cu_seqlens=OFFSETS, state_indices=slots)

    with torch.no_grad():
        expected, found = call(pools[0]), _compiled(call)(pools[1])
    assert rel_rms(found, expected) < 1e-6 and rel_rms(pools[1], pools[0]) < 1e-6


def test_last_states_of_another_dtype() -> None:
    x = _drawn(2)

    def call() -> Any:
        return gdn_cuda.ssd_scan(**x, return_last_state=True, state_dtype=torch.bfloat16)

    with torch.no_grad():
        for ours, theirs in zip(_compiled(call)(), call(), strict=True):
            assert ours.dtype == theirs.dtype and rel_rms(ours, theirs) < 1e-6


def test_summaries() -> None:
    x = _drawn(1)
    del x["C"]

    def call() -> Any:
        return gdn_cuda.ssd_summary(**x, cu_seqlens=OFFSETS)

    with torch.no_grad():
        for ours, theirs in zip(_compiled(call)(), call(), strict=True):
            assert rel_rms(ours, theirs) < 1e-6
