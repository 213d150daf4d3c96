"""The soak on a GPU, three short epochs or for GDN_SOAK_SECONDS, from the seed 0 or GDN_SOAK_SEED on: steps are graph replays,
prompts are on another stream, and memory does not grow."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from soak import LOADS, WARM, Soak
from soak_counts import table
from soak_engine import Engine
from soak_layer import Layer

SMALL = replace(LOADS["cuda"], prompt=300, generated=40, steps=15)


def test_as_an_engine_serves() -> None:
    seconds = float(os.environ.get("GDN_SOAK_SECONDS", 0))
    soak = Soak("cuda", load=None if seconds else SMALL)
    soak.run(seconds, int(os.environ.get("GDN_SOAK_SEED", 0)), least=WARM + 1)
    print(f"\n{table(soak.counts())}")
    for engine in soak.engines:
        assert engine.counts.literal and engine.counts.prefixes and set(engine.counts.calls) == set(engine.layer.ops)


def test_growing_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    end = Engine.end
    monkeypatch.setattr(
        Engine, "end", lambda self, request: (kept.append(torch.empty(1 << 20, device="cuda")), end(self, request))
    )
    with pytest.raises(AssertionError, match="memory after each epoch"):
        Soak("cuda", "gdn", SMALL).run(0, 0, WARM + 1)


def test_padding_that_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In replays of graphs, whose padding rows have slot 0 in place of −1."""
    step = Layer.step
    monkeypatch.setattr(Layer, "step", lambda self, op, pool, x: step(self, op, pool, x | {"homes": x["homes"].clamp(min=0)}))
    with pytest.raises(AssertionError, match=r"gdn, seed 0, step \d+"):
        Soak("cuda", "gdn", SMALL).run(0, 0, WARM)
