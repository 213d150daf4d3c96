"""Layers of Mamba and of Mamba-2."""

from __future__ import annotations

from typing import Any

import torch
from soak_layer import BF16, F32, Layer, Rows
from soak_pools import Pool
from torch import Tensor
from torch.nn.functional import silu, softplus

import gdn_cuda
from gdn_cuda import SsdReplayBuffers

WINDOW = 8  # tokens of a ring
_BUFFERS = SsdReplayBuffers._fields


class Mamba(Layer):
    """Prompts of several requests are one scan, for which the engine gathers states. Segments of a scan depend on the call, so
    bits are not promised."""

    name = "mamba"
    operators = "`selective_scan`, `selective_state_update`"
    promised = False
    bounds = (4e-3, 1e-5)
    reports = False

    def __init__(self, device: str, dim: int, N: int) -> None:
        super().__init__(device, dim, {"dt": (dim,), "z": (dim,), "B": (N,), "C": (N,)}, (dim, N))
        self.A = -torch.arange(1, N + 1, device=device, dtype=F32).repeat(dim, 1)
        self.D = self.normal(dim, dtype=F32)
        delta = self.uniform(-6.9, -2.3, dim).exp()
        self.dt_bias = delta + torch.log(-torch.expm1(-delta))

    def scan(self, pool: Pool, mixed: Tensor, rows: Rows, **call: Any) -> tuple[Tensor, Tensor | None]:
        state = pool.tensors["state"]
        u, dt, B, C, z = (y.mT[None] for y in (mixed, rows["dt"], rows["B"], rows["C"], rows["z"]))
        slots, has = call["state_indices"].long(), call["has_initial_state"]
        out, last = gdn_cuda.selective_scan(
            *(u, dt, self.A, B, C, self.D, z, self.dt_bias),
            delta_softplus=True,
            return_last_state=True,
            initial_state=torch.where(has[:, None, None], state[slots], 0),
            cu_seqlens=call["cu_seqlens"],
        )
        state[slots] = last
        return out[0].mT, None

    def update(self, pool: Pool, mixed: Tensor, rows: Rows, slots: Tensor, **call: Any) -> Tensor:
        single = not call
        x, dt, B, C, z = (y[:, 0] if single else y for y in (mixed, rows["dt"], rows["B"], rows["C"], rows["z"]))
        given = (pool.tensors["state"], x, dt, self.A, B, C, self.D, z, self.dt_bias, True)
        out = gdn_cuda.selective_state_update(*given, state_batch_indices=slots, null_slot=self.null_slot, **call)
        return out[:, None] if single else out

    def literal(self, mixed: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        delta = softplus(rows["dt"] + self.dt_bias.double())
        A, D = self.A.double(), self.D.double()
        state, out = mixed.new_zeros(self.state_shape), torch.empty_like(mixed)
        for t in range(len(mixed)):
            state = (delta[t, :, None] * A).exp() * state + (delta[t] * mixed[t])[:, None] * rows["B"][t]
            out[t] = (state * rows["C"][t]).sum(-1) + D * mixed[t]
        return out * silu(rows["z"]), state


class Mamba2(Layer):
    name = "mamba-2"
    operators = "`ssd_scan`, `selective_state_update`, `ssd_replay_decode`, `mamba2_decode_layer`"
    ops = (*Layer.ops, "replay", "ring", "layer")
    bounds = (4e-3, 3e-3)
    joins = True
    null_slot = 0

    def __init__(self, device: str, heads: int, P: int, N: int, groups: int) -> None:
        self.H, self.P, self.N, self.G = heads, P, N, groups
        super().__init__(device, heads * P + 2 * groups * N, {"dt": (heads,), "z": (heads, P)}, (heads, P, N))
        self.A, self.D = -self.uniform(1, 16, heads), self.normal(heads, dtype=F32)
        delta = self.uniform(-6.9, -2.3, heads).exp()
        self.dt_bias = delta + torch.log(-torch.expm1(-delta))

    def buffers(self, state: Tensor) -> Rows:
        return gdn_cuda.ssd_replay_buffers(state, WINDOW, self.G, dtype=BF16)._asdict()

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, B, C = mixed.split([self.H * self.P, self.G * self.N, self.G * self.N], -1)
        return x.unflatten(-1, (self.H, -1)), B.unflatten(-1, (self.G, -1)), C.unflatten(-1, (self.G, -1))

    def scan(self, pool: Pool, mixed: Tensor, rows: Rows, **call: Any) -> tuple[Tensor, Tensor | None]:
        x, B, C = self.split(mixed)
        found = gdn_cuda.ssd_scan(
            *(x, rows["dt"], self.A, B, C, self.D, rows["z"], self.dt_bias, pool.tensors["state"]),
            dt_softplus=True,
            return_last_state=True,
            deterministic=True,
            **call,
        )
        return found[0], found[2] if len(found) > 2 else None

    def update(self, pool: Pool, mixed: Tensor, rows: Rows, slots: Tensor, **call: Any) -> Tensor:
        single = not call
        x, B, C = self.split(mixed[:, 0] if single else mixed)
        dt, z = (y[:, 0] if single else y for y in (rows["dt"], rows["z"]))
        given = (pool.tensors["state"], x, dt, self.A, B, C, self.D, z, self.dt_bias, True)
        out = gdn_cuda.selective_state_update(*given, state_batch_indices=slots, null_slot=self.null_slot, **call)
        return out[:, None] if single else out

    def replay(
        self, op: str, pool: Pool, mixed: Tensor, rows: Rows, slots: Tensor, accepted: Tensor | None, folds: Tensor
    ) -> Tensor:
        x, B, C = self.split(mixed)
        return gdn_cuda.ssd_replay_decode(
            *(x, rows["dt"], self.A, B, C, pool.tensors["state"], *(pool.tensors[name] for name in _BUFFERS)),
            *(self.D, rows["z"], self.dt_bias, slots),
            num_accepted_tokens=accepted,
            fold_mask=folds,
            null_slot=self.null_slot,
            dt_softplus=True,
        )

    def one_launch(self, pool: Pool, raw: Tensor, rows: Rows, slots: Tensor) -> Tensor:
        weights = {"conv_weight": self.weight, "conv_bias": self.bias, "A": self.A, "D": self.D, "dt_bias": self.dt_bias}
        pools = {"conv_pool": pool.tensors["conv"], "state_pool": pool.tensors["state"], "state_indices": slots}
        options = {"z": rows["z"].flatten(1), "groups": self.G, "dt_softplus": True, "null_slot": self.null_slot}
        out = gdn_cuda.mamba2_decode_layer(raw, rows["dt"], **weights, **pools, **options)
        return out.view(-1, 1, self.H, self.P)

    def commit(self, op: str, pool: Pool, slots: Tensor, accepted: Tensor | None) -> None:
        buffers = SsdReplayBuffers(*(pool.tensors[name] for name in _BUFFERS))
        gdn_cuda.ssd_commit_replay(pool.tensors["state"], buffers, self.A, slots, accepted)

    def literal(self, mixed: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        x, B, C = self.split(mixed)
        B, C = (y.repeat_interleave(self.H // self.G, -2) for y in (B, C))
        delta, D = softplus(rows["dt"] + self.dt_bias.double()), self.D.double()
        decay = (delta * self.A.double()).exp()
        state, out = mixed.new_zeros(self.state_shape), torch.empty_like(x)
        for t in range(len(mixed)):
            state = decay[t, :, None, None] * state + (delta[t, :, None] * x[t])[..., None] * B[t, :, None]
            out[t] = (state * C[t, :, None]).sum(-1) + D[:, None] * x[t]
        return out * silu(rows["z"]), state
