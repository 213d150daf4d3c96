"""The two layouts of (B, D, L) tensors: contiguous, and the transposed view of a contiguous (B, L, D) one."""

from __future__ import annotations

from torch import Tensor


def channels_are_last(x: Tensor) -> bool:
    """The same decision as in csrc/operators/layout.hpp."""
    return x.stride(1) == 1 and not (x.shape[2] > 1 and x.stride(2) == 1)


def empty_rows(like: Tensor, channels_last: bool) -> Tensor:
    """A dense tensor of the same size."""
    B, D, L = like.shape
    return like.new_empty((B, L, D)).transpose(1, 2) if channels_last else like.new_empty((B, D, L))


def empty_in_layout(like: Tensor) -> Tensor:
    return empty_rows(like, channels_are_last(like))


def in_layout(x: Tensor, like: Tensor) -> Tensor:
    """A copy of x in the layout of `like`."""
    return empty_in_layout(like).to(x.dtype).copy_(x)
