"""The soak of tests/soak, with kernels: few requests, each of which has the bits of itself alone."""

from __future__ import annotations

import pytest
from devices import Device
from soak import Soak, layers
from soak_engine import Load

LAYERS = [layer.name for layer in layers("cpu")]
LOAD = Load(prompt=70, generated=12, budget=90, slots=9, steps=5)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_short_soak(layer: str, device: Device) -> None:
    soak = Soak("cpu", layer, LOAD, by_kernels=True)
    with device.kernels():
        soak.epoch(0)
    assert soak.engines[0].counts.literal
