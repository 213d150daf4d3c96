"""The ranks that share sequences, and their collectives, which a group of one does not make. The collectives have gradients."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from ..operators.schema import refuse

_TEXT_BYTES = 1024  # of a text that ranks compare; its digest is of all of it


class Ranks(ABC):
    """The collectives that `gdn_cuda.parallel` needs. All ranks call them in the same order."""

    rank: int
    size: int

    @abstractmethod
    def supports(self, device: torch.device) -> bool:
        """Whether collectives take tensors on this device."""

    @abstractmethod
    def _start_all_gather(self, x: Tensor) -> Callable[[], Tensor]:
        """`start_all_gather` of a contiguous tensor, with more than one rank."""

    @abstractmethod
    def _all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """`all_to_all` of a contiguous tensor, with more than one rank."""

    def start_all_gather(self, x: Tensor) -> Callable[[], Tensor]:
        """Starts the collective. The function that it returns waits for the tensors of all ranks, (size, *x.shape)."""
        return self._start_all_gather(x.contiguous()) if self.size > 1 else lambda: x[None]

    def all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """x: rows for rank 0, for rank 1 and so on, as many as `send` says. Returns those that ranks have for this one."""
        return self._all_to_all(x.contiguous(), send, receive) if self.size > 1 else x

    def texts(self, text: str) -> tuple[list[str], list[str]]:
        """The texts of all ranks, shortened, and digests of them. One collective."""
        if self.size == 1:
            return [text], [""]
        encoded = text.encode()[:_TEXT_BYTES]
        host = torch.zeros(32 + _TEXT_BYTES, dtype=torch.uint8)
        host[:32] = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
        host[32 : 32 + len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        cpu = torch.device("cpu")
        on = cpu if self.supports(cpu) else torch.device("cuda", torch.cuda.current_device())
        rows = [bytes(row) for row in self.start_all_gather(host.to(on))().tolist()]
        return [row[32:].rstrip(b"\0").decode(errors="ignore") for row in rows], [row[:32].hex() for row in rows]


@dataclass(frozen=True)
class ProcessRanks(Ranks):
    """Ranks of a process group of torch.distributed."""

    group: Any

    @property
    def rank(self) -> int:  # type: ignore[override]
        found: int = self.group.rank()
        return found

    @property
    def size(self) -> int:  # type: ignore[override]
        found: int = self.group.size()
        return found

    def supports(self, device: torch.device) -> bool:
        backends = dist.get_backend_config(self.group)  # "cpu:gloo,cuda:nccl"
        return device.type in {each.partition(":")[0] for each in backends.split(",")}

    def _start_all_gather(self, x: Tensor) -> Callable[[], Tensor]:
        # gloo takes the concatenated shape only
        flat = x.reshape(-1)
        every = flat.new_empty(self.size * flat.shape[0])
        work = dist.all_gather_into_tensor(every, flat, group=self.group, async_op=True)

        def wait() -> Tensor:
            work.wait()
            return every.view(self.size, *x.shape)

        return wait

    def _all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        found = x.new_empty((sum(receive), *x.shape[1:]))
        dist.all_to_all_single(found, x, list(receive), list(send), group=self.group)
        return found


@dataclass(frozen=True)
class RanksOfShapes(Ranks):
    """Makes no collectives: returns tensors of the shapes that these would have, for traces."""

    rank: int
    size: int

    def supports(self, device: torch.device) -> bool:
        return True

    def _start_all_gather(self, x: Tensor) -> Callable[[], Tensor]:
        return lambda: x.new_empty((self.size, *x.shape))

    def _all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        return x.new_empty((sum(receive), *x.shape[1:]))


def ranks_of(function: str, group: object) -> Ranks:
    if isinstance(group, Ranks):
        return group
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            refuse(function, "group", "a DeviceMesh of one dimension, mesh['cp']", f"one of {group.ndim}")
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        refuse(function, "group", "a ProcessGroup that this rank is in, or a DeviceMesh", type(group).__name__)
    return ProcessRanks(group)


# ---- With gradients


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor) -> Tensor:
        ctx.ranks = ranks
        return ranks.start_all_gather(x)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The sum, in the order of ranks, of what all have for this rank's tensor."""
        size, rows = grad.shape[:2]
        return None, ctx.ranks.all_to_all(grad.flatten(0, 1), [rows] * size, [rows] * size).view(grad.shape).sum(0)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        ctx.call = ranks, send, receive
        return ranks.all_to_all(x, send, receive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        ranks, send, receive = ctx.call
        return None, ranks.all_to_all(grad, receive, send), None, None


def all_gather(ranks: Ranks, x: Tensor) -> Tensor:
    """(size, *x.shape). The gradient of x is the sum over all ranks."""
    return x[None] if ranks.size == 1 else _AllGather.apply(ranks, x)


def all_to_all(ranks: Ranks, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
    """Rows, as `Ranks.all_to_all`."""
    return x if ranks.size == 1 else _AllToAll.apply(ranks, x, tuple(send), tuple(receive))


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        ctx.count = len(others)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, *[None] * ctx.count


def tied(x: Tensor, *others: Tensor) -> Tensor:
    """x, whose backward reaches the other tensors too, with gradients of 0: a rank whose part sends or reads nothing makes the
    collective of the backward nevertheless."""
    found: Tensor = _Tied.apply(x, *others)
    return found
