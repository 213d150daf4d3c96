"""Whether the tests of this folder launch everything that there is to launch: all of them, every configuration; those that run
with all other tests, every kernel."""

from __future__ import annotations

import pytest
from emulated import launched
from emulator_build import FAMILIES
from selection import SELECTED

from gdn_cuda import _C

KERNELS = {f"{kernel['family']}/{kernel['name']}": kernel for kernel in _C.kernels() if kernel["family"] in FAMILIES}


def test_a_selected_test_launches_every_kernel() -> None:
    """The fixture of conftest.py sees that it does."""
    selected = {kernel for kernels in SELECTED.values() for kernel in kernels}
    assert not sorted(set(KERNELS) - selected) and not sorted(selected - set(KERNELS))


@pytest.mark.counts_launches
def test_every_configuration_was_launched() -> None:
    registered = {f"{name}{entry['configuration']}" for name, kernel in KERNELS.items() for entry in kernel["configurations"]}
    assert not sorted(registered - launched())
