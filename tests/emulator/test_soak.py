"""The soak of tests/soak with kernels, those for tensor cores among them: each request has the bits of itself alone."""

from __future__ import annotations

import pytest
from emulated import emulated
from soak import Soak
from soak_delta import BoundedGates, EightBitChannels, GatedDeltaNet, KimiDeltaAttention, MixedStates, SixteenBitStates
from soak_engine import Load
from soak_layer import Layer
from soak_mamba import Mamba, Mamba2

LOAD = Load(prompt=150, generated=12, budget=200, slots=9, steps=10)
LAYERS = (
    (GatedDeltaNet, (1, 2), 64, 64),
    (SixteenBitStates, (1, 2), 128, 64),
    (MixedStates, (1, 2), 64, 64),
    (KimiDeltaAttention, (1, 1), 64, 64),
    (EightBitChannels, (1, 1), 64, 64),
    (KimiDeltaAttention, (1, 2), 64, 16),
    (BoundedGates, (1, 1), 64, 64),
    (Mamba, 40, 16),
    (Mamba2, 4, 64, 64, 1),
)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer[0].name}, {layer[1:]}")
def test_a_short_soak(layer: tuple, capability: int) -> None:
    kind, *sizes = layer
    made: Layer = kind("cpu", *sizes)
    soak = Soak("cpu", load=LOAD, by_kernels=True, layers=[made])
    with emulated(capability=capability):
        soak.epoch(1)
    assert soak.engines[0].counts.literal
