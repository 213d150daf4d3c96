"""Whether the tests of this folder, which run before, have launched everything that there is to launch."""

from __future__ import annotations

import pytest
from emulated import launched
from emulator_build import FAMILIES

from gdn_cuda import _C


@pytest.mark.counts_launches
def test_every_configuration_was_launched() -> None:
    registered = {
        f"{kernel['family']}/{kernel['name']}{entry['configuration']}"
        for kernel in _C.kernels()
        if kernel["family"] in FAMILIES
        for entry in kernel["configurations"]
    }
    assert not sorted(registered - launched())
