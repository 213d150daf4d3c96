"""A server that decodes by ssd_replay_decode, and its expected results: the literal recurrence in fp64, a loop over heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from ring_server import BF16, F16, F32, I8, RingServer, serve
from torch import Tensor

import gdn_cuda

__all__ = ["BF16", "F16", "F32", "I8", "Server", "serve"]
OUTPUT_BOUND = {BF16: 4e-3, F16: 5e-4, F32: 1e-5, torch.float64: 1e-13}
STATE_BOUND = {F32: 1e-5, BF16: 4e-3, F16: 5e-4, I8: 2e-2, torch.float64: 1e-13}


def step_size(dt: Tensor, bias: Tensor | None, limit: tuple[float, float], softplus: bool) -> Tensor:
    """δ in fp64."""
    raised = dt.double() if bias is None else dt.double() + bias.double()
    if softplus:
        raised = torch.where(raised > 20, raised, raised.clamp(max=20).exp().log1p())
    return raised.clamp(*limit)


def literal(state: Tensor, token: dict[str, Tensor], heads: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The output (H, P) and the state (H, P, N) after one token, in fp64. A reset also clears infinities and NaN."""
    delta = step_size(token["dt"], heads["dt_bias"], heads["dt_limit"], heads["dt_softplus"])
    x, B, C = (token[name].double() for name in ("x", "B", "C"))
    out, after = torch.zeros_like(x), torch.zeros_like(state)
    for h in range(state.shape[0]):
        g = h // (state.shape[0] // B.shape[0])
        decay = math.exp(min(float(delta[h] * heads["A"][h].double()), 700.0))
        kept = torch.zeros_like(state[h]) if decay < 1e-46 else decay * state[h]
        after[h] = kept + torch.outer(delta[h] * x[h], B[g])
        out[h] = after[h] @ C[g]
    if heads["D"] is not None:
        D = heads["D"].double()
        out = out + (D if D.dim() == 2 else D[:, None]) * x
    if "z" in token:
        z = token["z"].double()
        out = out * z / (1 + torch.exp(-z))
    return out, after


class Server(RingServer):
    rows = "x"

    def __init__(
        self,
        seed: int,
        *,
        sequences: int = 3,
        window: int = 4,
        H: int = 4,
        G: int = 2,
        P: int = 16,
        N: int = 32,
        io: torch.dtype = BF16,
        state: torch.dtype = F32,
        index: torch.dtype = torch.int32,
        device: str = "cpu",
        verifies: bool = False,
        D: int = 1,
        z: bool = True,
        rate: float = 1.0,
        limit: tuple[float, float] = (0.0, math.inf),
        softplus: bool = True,
    ) -> None:
        super().__init__(seed, io, index, device)
        self.H, self.G, self.P, self.N, self.z = H, G, P, N, z
        self.draw_pool(sequences, H, P, N, dtype=state)
        self.begin(gdn_cuda.ssd_replay_buffers(self.pool, window, G, dtype=io), window, verifies)
        self.heads = {
            "A": -rate * (0.1 + torch.rand(H, generator=self.rng)).to(device),
            "dt_bias": self.draw(H, dtype=BF16 if io in (BF16, F16) else io) / 2,
            "D": (None, self.draw(H), self.draw(H, P))[D],
            "dt_limit": limit,
            "dt_softplus": softplus,
        }
        if io == torch.float64:
            self.heads = {name: y.double() if isinstance(y, Tensor) else y for name, y in self.heads.items()}
        self.output_bound, self.state_bound = OUTPUT_BOUND[io], STATE_BOUND[state]

    def tokens(self, *lead: int) -> dict[str, Tensor]:
        """Strided views of one projection."""
        H, G, P, N = self.H, self.G, self.P, self.N
        widths = [H * P, G * N, G * N, H * P, H]
        parts = self.draw(*lead, sum(widths) + -sum(widths) % 8, dtype=self.io)[..., : sum(widths)].split(widths, dim=-1)
        found = {
            "x": parts[0].unflatten(-1, (H, P)),
            "B": parts[1].unflatten(-1, (G, N)),
            "C": parts[2].unflatten(-1, (G, N)),
            "dt": parts[4],
        }
        return found | ({"z": parts[3].unflatten(-1, (H, P))} if self.z else {})

    def literal(self, state: Tensor, token: dict[str, Tensor], heads: dict[str, Any]) -> tuple[Tensor, Tensor]:
        return literal(state, token, heads)

    def commit_only(self, commit: Callable[..., Tensor]) -> Tensor:
        accepted = self.accepted if self.verifies else None
        return commit(self.pool, self.buffers, self.heads["A"], self.slots, accepted, state_scales=self.scales)

    def commit(self, commit: Callable[..., Tensor] = gdn_cuda.ssd_commit_replay) -> None:
        super().commit(commit)
