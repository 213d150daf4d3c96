"""The length for which an output matrix C has been replaced by C̃ = C (I − Ā^length), common to all kernels with that C."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_MARK = "_gdn_cuda_length"


class Length:
    """One object for all kernels with the same C, so that none converts it a second time. 0: C is not converted."""

    def __init__(self, value: int = 0):
        self.value = value

    @classmethod
    def of(cls, C: torch.Tensor) -> Length:
        """The Length attached to the tensor C."""
        found = getattr(C, _MARK, None)
        return cls().mark(C) if found is None else found

    def mark(self, C: torch.Tensor) -> Length:
        setattr(C, _MARK, self)
        return self


class KnowsLength(nn.Module):
    """Keeps a Length, and stores it in the buffer `l_kernel` for checkpoints, without reading device memory in between.

    The module's C carries its Length when it is assigned, converted, copied or loaded. A tensor without one is a substitute for
    C, as in `torch.func.functional_call`: it has the same length, and the module must not convert it in place.
    """

    C: torch.Tensor
    l_kernel: torch.Tensor
    _own_length: Length

    def _register_length(self) -> None:
        self._own_length = Length.of(self.C)
        self.register_buffer("l_kernel", torch.tensor(self._own_length.value, device=self.C.device))
        self.register_state_dict_pre_hook(KnowsLength._tell)

    @property
    def _stands_in(self) -> bool:
        return getattr(self.C, _MARK, None) is None

    @property
    def _length(self) -> int:
        return getattr(self.C, _MARK, self._own_length).value

    @staticmethod
    def _tell(module: Any, prefix: str, keep_vars: bool) -> None:
        module.l_kernel.fill_(module._length)

    def _set_length(self, value: int) -> None:
        Length.of(self.C).value = value
        self.l_kernel.fill_(value)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "C" and value is not None and (name in self._parameters or name in self._buffers):
            self._own_length = Length.of(self.C)

    def __setstate__(self, state: dict[str, Any]) -> None:  # for a copy, whose parameters have lost their Length
        super().__setstate__(state)
        self._own_length.mark(self.C)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        if self._stands_in:  # the conversion replaced the tensor
            self._own_length = Length(self._own_length.value).mark(self.C)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        length = self._length
        super()._load_from_state_dict(state_dict, prefix, *rest)
        told = f"{prefix}l_kernel" in state_dict and not self.l_kernel.is_meta
        self._own_length.value = int(self.l_kernel) if told else length
