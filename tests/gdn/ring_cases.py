"""A server that decodes by a ring, and its expected results: the literal recurrence in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import replay_cases
import torch
from ring_server import BF16, F16, F32, I8, RingServer, serve
from torch import Tensor

import gdn_cuda

__all__ = ["BF16", "F16", "F32", "I8", "Server", "serve"]
UPDATE_BOUND = {BF16: 8e-3, F16: 1e-3}


class Server(RingServer, replay_cases.Server):
    def __init__(self, seed: int, *, window: int = 4, verifies: bool = False, state: torch.dtype = F32, **options: Any) -> None:
        replay_cases.Server.__init__(self, seed, state=state, **options)
        self.begin(gdn_cuda.ring_buffers(self.pool, window, self.Hk, dtype=self.io), window, verifies)
        if state != F32:  # updates are rounded too
            self.state_bound = max(self.state_bound, UPDATE_BOUND.get(self.io, 0.0))

    def commit_only(self, commit: Callable[..., Tensor]) -> Tensor:
        accepted = self.accepted if self.verifies else None
        return commit(self.pool, self.buffers, self.slots, accepted, state_scales=self.scales)

    def commit(self, commit: Callable[..., Tensor] = gdn_cuda.commit_replay) -> None:
        super().commit(commit)
