"""All tests of this folder launch every configuration; the selected ones (selection.py) launch every kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated import launched
from emulator_build import FAMILIES
from selection import SELECTED

from gdn_cuda import _C

KERNELS = {f"{kernel['family']}/{kernel['name']}": kernel for kernel in _C.kernels() if kernel["family"] in FAMILIES}


def test_a_selected_test_launches_every_kernel() -> None:
    """conftest.py checks that each test launches the kernels that it is listed with."""
    selected = {kernel for kernels in SELECTED.values() for kernel in kernels}
    assert not sorted(set(KERNELS) - selected) and not sorted(selected - set(KERNELS))
    files = {name.split("::")[0] for name in SELECTED}
    assert not [file for file in files if not Path(__file__).with_name(file).is_file()]


@pytest.mark.counts_launches
def test_every_configuration_was_launched() -> None:
    registered = {f"{name}{entry['configuration']}" for name, kernel in KERNELS.items() for entry in kernel["configurations"]}
    assert not sorted(registered - launched())
