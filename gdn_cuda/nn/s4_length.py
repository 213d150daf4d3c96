"""The length for which an output matrix C has been turned into C̃ = C (I − Ā^length): how it is told to everyone who reads C."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_MARK = "_gdn_cuda_length"


class Length:
    """Shared by all kernels over one C, so that none of them turns it a second time. 0: C is C still."""

    def __init__(self, value: int = 0):
        self.value = value

    @classmethod
    def of(cls, C: torch.Tensor) -> Length:
        """That of the tensor, which carries it."""
        found = getattr(C, _MARK, None)
        if found is None:
            found = cls()
            setattr(C, _MARK, found)
        return found


class KnowsLength(nn.Module):
    """Keeps a Length in the buffer `l_kernel`, where checkpoints have it, without a look at the device's memory in between."""

    C: torch.Tensor
    l_kernel: torch.Tensor

    def _register_length(self) -> None:
        self._length = Length.of(self.C)
        self.register_buffer("l_kernel", torch.tensor(self._length.value))
        self.register_state_dict_pre_hook(KnowsLength._tell)

    @staticmethod
    def _tell(module: Any, prefix: str, keep_vars: bool) -> None:
        module.l_kernel.fill_(module._length.value)

    def _set_length(self, value: int) -> None:
        self._length.value = value
        self.l_kernel.fill_(value)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if f"{prefix}l_kernel" in state_dict:
            self._length.value = int(self.l_kernel)
