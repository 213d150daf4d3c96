"""Tensors whose memory ends at a protected page: a read or write past the end is caught at once, a write before the
beginning by `check`."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

_PAGE = mmap.PAGESIZE
_UNWRITTEN, _CANARY = 0xFF, 0xA5  # four bytes of the first are NaN, in every dtype
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """Allocates guarded tensors, and checks the memory around them."""

    def __init__(self) -> None:
        self._around: list[tuple[mmap.mmap, int, int]] = []
        self._storages: dict[int, torch.UntypedStorage] = {}

    def empty(self, size: int) -> torch.UntypedStorage:
        """`size` unwritten bytes, at least one, at a multiple of 16."""
        room = -(-size // _PAGE) * _PAGE
        memory = mmap.mmap(-1, room + 2 * _PAGE)
        memory[_PAGE : _PAGE + room] = bytes([_CANARY]) * room
        first = _PAGE + room - size - -size % 16
        memory[first : first + size] = bytes([_UNWRITTEN]) * size
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for page in (at, at + _PAGE + room):
            assert _mprotect(page, _PAGE, 0) == 0
        self._around.append((memory, first, size))
        return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=first).untyped_storage()

    def like(self, x: Tensor) -> Tensor:
        """An unwritten tensor with the shape, strides and storage size of x."""
        size = x.untyped_storage().nbytes()
        return _view(x, self.empty(size)) if size else x

    def copy(self, x: Tensor) -> Tensor:
        """A copy of x with its whole storage; tensors that share a storage share the copy."""
        theirs = x.untyped_storage()
        if theirs.nbytes() == 0:
            return x
        if theirs.data_ptr() not in self._storages:
            ours = self.empty(theirs.nbytes())
            ours.copy_(theirs)
            self._storages[theirs.data_ptr()] = ours
        return _view(x, self._storages[theirs.data_ptr()])

    def check(self) -> None:
        for memory, first, size in self._around:
            end = len(memory) - _PAGE
            for part in (memory[_PAGE:first], memory[first + size : end]):
                assert part.count(_CANARY) == len(part), "a kernel wrote outside of a tensor"


def _view(x: Tensor, storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=x.dtype).set_(storage, x.storage_offset(), x.shape, x.stride())


def bits(x: Tensor) -> Tensor:
    """The bytes of its elements."""
    return torch.empty(x.shape, dtype=x.dtype).copy_(x).flatten().view(torch.uint8)


def bytes_of(x: Tensor) -> Tensor:
    """The bytes of its storage."""
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
