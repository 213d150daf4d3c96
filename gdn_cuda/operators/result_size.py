"""Results whose length is an integer argument: a result larger than the machine's memory is refused before it is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .. import _C
from .schema import refuse


def check_result_size(function: str, argument: str, shape: Sequence[Any], dtype: torch.dtype, device: torch.device) -> None:
    """The same check as in csrc/operators/result_size.hpp. In compiled code only the operators check."""
    if torch.compiler.is_compiling() or not all(isinstance(size, int) for size in shape):
        return
    size, most = dtype.itemsize * math.prod(shape), _C.most_result_bytes(device.type == "cuda")
    if size > most:
        refuse(function, argument, f"a result of at most {most} bytes, as memory has", f"{size:.4g} bytes")
