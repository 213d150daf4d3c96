"""In the emulated kernels a decay of 0 does not erase an infinity in a state; a reset does."""

from __future__ import annotations

import pytest
from emulated import emulated
from zero_decay import CALLS, check, check_resets


@pytest.mark.parametrize("name", CALLS)
def test_a_decay_of_zero_erases_no_infinity(name: str) -> None:
    with emulated():
        check(name, "cpu")


def test_resets_erase() -> None:
    with emulated():
        check_resets("cpu")
