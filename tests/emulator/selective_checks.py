"""selective_on_device.py's inputs and comparison for the emulator's own tests of selective_scan."""

from __future__ import annotations

from functools import partial

import pytest
import selective_on_device
from emulated import EMULATOR

check = partial(selective_on_device.check, EMULATOR)
plain_inputs = partial(selective_on_device.plain_inputs, EMULATOR)
# With one multiprocessor, heuristics choose as for many channels.
FEW_AND_MANY = pytest.mark.parametrize("multiprocessors", [132, 1], ids=["few", "many"])
