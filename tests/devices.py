"""Tests of kernels for a GPU and for the emulator are in modules `<name>_on_device.py` of a family, which tests/emulator and
tests/<family>/gpu import. Their fixture `device` is the emulator in tests/emulator, else the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Device:
    name: str  # where the tensors are
    emulate: Callable[..., AbstractContextManager[Callable[[], set[str]]]] | None = None

    def kernels(self, multiprocessors: int = 132) -> AbstractContextManager[Any]:
        """Calls of operators inside run their kernels. In the emulator, heuristics choose for so many multiprocessors."""
        return self.emulate(multiprocessors) if self.emulate else nullcontext()

    @contextmanager
    def only(self, *kernels: str, multiprocessors: int = 132) -> Iterator[None]:
        """As `kernels`. The emulator checks that calls inside launch these kernels, by family and name, and no others."""
        with self.kernels(multiprocessors) as launched:
            yield
        if self.emulate:
            found = {name.partition("{")[0] for name in launched()}
            assert found and found <= set(kernels), f"expected {kernels}, got {found}"

    def size(self, emulator: T, gpu: T) -> T:
        """What the test can bear: the emulator takes about a microsecond for each thread and instruction."""
        return emulator if self.emulate else gpu

    def skip_above(self, limit: int, size: int) -> None:
        """Skips the test in the emulator if its size is larger."""
        if self.emulate and size > limit:
            pytest.skip("takes minutes in the emulator")

    def synchronize(self) -> None:
        """Errors of kernels are raised here at the latest."""
        if not self.emulate:
            torch.cuda.synchronize()


GPU = Device("cuda")
