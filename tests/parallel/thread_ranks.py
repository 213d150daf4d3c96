"""Ranks that are threads of one process: `gdn_cuda.parallel` with W parts on one GPU, or on a CPU without gloo."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gdn_cuda import parallel
from gdn_cuda.parallel.ranks import Ranks

PATIENCE = 120  # seconds


class Board:
    """Where the ranks of a group put tensors for each other."""

    def __init__(self, size: int):
        self.barrier, self.put = threading.Barrier(size, timeout=PATIENCE), [None] * size
        self.collectives = 0

    def exchange(self, rank: int, given: Any) -> list[Any]:
        self.put[rank] = given
        if self.barrier.wait() == 0:
            self.collectives += 1
        found = list(self.put)
        self.barrier.wait()
        return found


class ThreadRanks(Ranks):
    def __init__(self, board: Board, rank: int, size: int):
        self.board, self.rank, self.size = board, rank, size
        self.gathered: list[int] = []  # bytes that this rank has put into each all-gather
        self.exchanged: list[int] = []  # and into each all-to-all

    def supports(self, device: torch.device) -> bool:
        return device.type in ("cpu", "cuda")

    def _start_all_gather(self, x: Tensor) -> Callable[[], Tensor]:
        self.gathered.append(x.nbytes)
        every = torch.stack(self.board.exchange(self.rank, x.detach()))
        return lambda: every

    def _all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        self.exchanged.append(x.nbytes)
        every = self.board.exchange(self.rank, x.detach().split(list(send)))
        assert [each[self.rank].shape[0] for each in every] == list(receive)
        return torch.cat([each[self.rank] for each in every])


def on_threads(size: int, function: Callable[[Ranks], Any]) -> tuple[list[Any], int]:
    """What `function` returns on each rank, and the number of collectives. The first error of a rank is raised here."""
    board, results, errors = Board(size), [None] * size, []

    def run(rank: int) -> None:
        try:
            with torch.autograd.set_multithreading_enabled(False):  # or the backward of all ranks would be one thread's
                results[rank] = function(ThreadRanks(board, rank, size))
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            errors.append(error)
            board.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results, board.collectives


def refused(function: Any, message: str, size: int = 2) -> None:
    """On the rank that is wrong, rank 1, and before any collective after the context's."""

    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [21])
        before = ranks.board.collectives
        if ranks.rank == 1:
            with pytest.raises(ValueError, match=re.escape(message)):
                function(context)
        assert ranks.board.collectives == before

    on_threads(size, run)
