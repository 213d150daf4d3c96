"""The compute capability by which functions in Python choose between kernels: that of a tensor's GPU, or of the device for
which a call is explained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_explained: ContextVar[int | None] = ContextVar("explained capability", default=None)


@contextmanager
def explaining(capability: int) -> Iterator[None]:
    """Meta tensors stand for those of a device of this capability, 90 for sm_90."""
    token = _explained.set(capability)
    try:
        yield
    finally:
        _explained.reset(token)


def capability_of(x: Tensor) -> int | None:
    """90 for sm_90; None for tensors that no kernel of ours takes: on a CPU, or on meta outside of explanations."""
    if x.is_cuda:
        return _capability(x.device.index)
    return _explained.get() if x.is_meta else None


_known: dict[int, int] = {}  # torch.cuda reads all properties of a device at each call


def _capability(device: int) -> int:
    if device not in _known:
        major, minor = torch.cuda.get_device_capability(device)
        _known[device] = 10 * major + minor
    return _known[device]


# Compiled code takes the result as a constant: what torch.compiler.assume_constant_result does, which imports torch's compiler.
_capability._dynamo_marked_constant = True  # type: ignore[attr-defined]
