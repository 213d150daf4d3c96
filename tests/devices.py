"""Tests of kernels for a GPU and for the emulator are in modules `<name>_on_device.py` of a family, which tests/emulator and
tests/<family>/gpu import. Their fixture `device` is the emulator in tests/emulator, else the GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Device:
    name: str  # where the tensors are
    emulate: Callable[[int], AbstractContextManager[object]] | None = None

    def kernels(self, multiprocessors: int = 132) -> AbstractContextManager[object]:
        """Calls of operators inside run their kernels. In the emulator, heuristics choose for so many multiprocessors."""
        return self.emulate(multiprocessors) if self.emulate else nullcontext()

    def size(self, emulator: T, gpu: T) -> T:
        """What the test can bear: the emulator takes about a microsecond for each thread and instruction."""
        return emulator if self.emulate else gpu

    def synchronize(self) -> None:
        """Errors of kernels are raised here at the latest."""
        if not self.emulate:
            torch.cuda.synchronize()


GPU = Device("cuda")
