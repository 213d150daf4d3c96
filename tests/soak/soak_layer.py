"""A layer between its projections, as an engine calls it: a convolution and a recurrence, each with a pool of states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from soak_calls import DRAFTS, TREE, tokens_of
from soak_pools import Pool, spoil
from torch import Tensor
from torch.nn.functional import silu

import gdn_cuda

WIDTH = 4  # taps
COLUMNS = WIDTH - 2 + DRAFTS  # of the convolution's state, with room for a verify
VOCABULARY = 512
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
LATE = ("replay", "ring", "ring verify")  # states lack the last tokens, which buffers have

Rows = dict[str, Tensor]
STEP_NAMES = {"state": "step_states", "scales": "step_scales"}


class Layer(ABC):
    """Inputs of a token are the rows of its id in tables."""

    name = ""
    operators = ""
    ops: tuple[str, ...] = ("plain", "chain", "slots", "tree")
    instead: ClassVar[dict[str, str]] = {}  # alone, calls of an operator are calls of another with the same bits
    promised = True  # whether a sequence has the bits that it has alone
    joins = False  # whether a prompt in one call that reports the states where parts end has the bits of the parts
    null_slot: int | None = None  # of padding rows; None: they have negative slots
    reports = True  # whether prompts report states between their ends, and skip sequences with negative slots
    apart = 0.0  # where bits are not promised, a state's relative RMS difference from the request alone; 0: that of sums
    bounds = (5e-3, 5e-3)  # relative RMS errors of outputs and last states against the recurrence in fp64, docs/numerics.md

    def __init__(self, device: str, channels: int, tables: dict[str, tuple[int, ...]], state: tuple[int, ...]) -> None:
        self.device, self.state_shape = device, state
        self.state_dtypes = [F32]  # of the pools, in turn
        self.rng = torch.Generator().manual_seed(len(self.name))
        self.tables = {name: self.normal(VOCABULARY, *shape) for name, shape in tables.items()}
        self.tables["mixed"] = self.normal(VOCABULARY, channels)
        self.weight, self.bias = self.normal(channels, WIDTH) / WIDTH**0.5, self.normal(channels) / 4

    def normal(self, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(shape, generator=self.rng).to(self.device, dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return (low + (high - low) * torch.rand(shape, generator=self.rng)).to(self.device)

    # ---- Pools

    def pool(self, slots: int, number: int) -> Pool:
        reserved = 0 if self.null_slot is None else 1
        slots += reserved
        conv = torch.empty(slots, COLUMNS, self.weight.shape[0], device=self.device, dtype=BF16).mT
        states = self.empty_states(number, slots)
        return Pool({"conv": conv, **states, **self.buffers(states["state"])}, number, reserved)

    def empty_states(self, number: int, *sizes: int) -> Rows:
        """States as those of a pool, of int8 with their scales."""
        shape, dtype = (*sizes, *self.state_shape), self.state_dtypes[number % len(self.state_dtypes)]
        states = {"state": torch.empty(shape, device=self.device, dtype=dtype)}
        if dtype == torch.int8:
            states["scales"] = torch.empty(*shape[:-1], shape[-1] // 32, device=self.device)
        return states

    def buffers(self, state: Tensor) -> Rows:
        return {}

    def steps(self, op: str, width: int, pool: Pool) -> Rows:
        """Where a verify stores the states after its tokens: "step_" and the names of states."""
        tokens = {"chain": DRAFTS, "tree": TREE}.get(op)
        states = self.empty_states(pool.number, width, tokens) if tokens else {}
        return {STEP_NAMES[name]: spoil(tensor) for name, tensor in states.items()}

    def window(self, ids: Sequence[int]) -> Tensor:
        """The convolution's last inputs of a prefix."""
        rows = self.tables["mixed"][list(ids[1 - WIDTH :])].mT
        return torch.nn.functional.pad(rows, (WIDTH - 1 - rows.shape[-1], 0))

    # ---- Calls

    def prompt(self, pool: Pool, ids: Tensor, slots: Tensor, cu_seqlens: Tensor, fresh: Tensor, **options: Any) -> Any:
        """Packed prompts, or parts of them: (outputs of the convolution, outputs, checkpoints or None). With write_indices the
        state goes from one slot to another; the convolution's is in the latter already."""
        rows = {name: table[ids] for name, table in self.tables.items()}
        x = rows.pop("mixed").mT[None]
        packed = {"cu_seqlens": cu_seqlens, "has_initial_state": ~fresh}
        conv = {"conv_state": pool.tensors["conv"], "state_indices": options.get("write_indices", slots), "activation": "silu"}
        mixed = gdn_cuda.causal_conv1d(x, self.weight, self.bias, **conv, **packed)
        mixed = mixed[0].mT
        return (mixed, *self.scan(pool, mixed, rows, state_indices=slots, **packed, **options))

    def step(self, op: str, pool: Pool, x: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """One token or several of every sequence, of ids (B, T): (outputs of the convolution, outputs, and for trees its
        inputs). Allocates and launches only, so that it can be captured."""
        rows = {name: table[x["ids"]] for name, table in self.tables.items()}
        raw, homes = rows.pop("mixed"), x["homes"]
        conv = (pool.tensors["conv"], self.weight, self.bias, "silu")
        columns, null = raw, {"null_slot": self.null_slot}
        if op == "tree":
            mixed, columns = self.convolved_tree(pool.tensors["conv"], raw, x)
        elif op == "layer":  # in one launch, whose output of the convolution is not seen
            mixed = gdn_cuda.causal_conv1d_update(raw[:, 0], conv[0][homes.clamp(min=0)], *conv[1:])[:, None]
            return mixed, self.one_launch(pool, raw[:, 0], {name: y[:, 0] for name, y in rows.items()}, homes), columns
        elif tokens_of(op) == 1:
            mixed = gdn_cuda.causal_conv1d_update(raw[:, 0], *conv, conv_state_indices=homes, **null)[:, None]
        else:
            more = {"conv_state_indices": homes, "num_accepted_tokens": x["conv_accepted"], **null}
            mixed = gdn_cuda.causal_conv1d_update(raw.mT, *conv, **more).mT.contiguous()
        return mixed, self.recurrence(op, pool, mixed, rows, x), columns

    def convolved_tree(self, state: Tensor, raw: Tensor, x: Rows) -> tuple[Tensor, Tensor]:
        """Every token after the inputs on its path, each as a sequence of its own."""
        (B, T, D), taps = raw.shape, WIDTH - 1
        columns = torch.cat([state[x["homes"].clamp(min=0)][..., -taps:], raw.mT], -1)
        index = x["windows"][:, :, None].expand(B, T, D, taps)
        states = columns[:, None].expand(B, T, *columns.shape[1:]).gather(-1, index).reshape(B * T, D, taps)
        given = (raw.reshape(B * T, D), states, self.weight, self.bias, "silu")
        return gdn_cuda.causal_conv1d_update(*given).view(B, T, D), columns

    def recurrence(self, op: str, pool: Pool, mixed: Tensor, rows: Rows, x: Rows) -> Tensor:
        if op in LATE:
            return self.replay(op, pool, mixed, rows, x["homes"], None if op == "ring" else x["accepted"], x["folds"])
        if op == "slots":
            return self.update(pool, mixed, rows, x["states"], num_accepted_tokens=x["accepted"])
        names = () if op == "plain" else (*STEP_NAMES.values(), "step_slots")
        more = {name: x[name] for name in names if name in x}
        return self.update(pool, mixed, rows, x["homes"], **more, **({"parents": x["parents"]} if op == "tree" else {}))

    # ---- What a layer defines

    @abstractmethod
    def scan(self, pool: Pool, mixed: Tensor, rows: Rows, **call: Any) -> tuple[Tensor, Tensor | None]:
        """A prompt's part."""

    @abstractmethod
    def update(self, pool: Pool, mixed: Tensor, rows: Rows, slots: Tensor, **call: Any) -> Tensor:
        """A step."""

    @abstractmethod
    def literal(self, mixed: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """The recurrence in fp64, token by token from zeros: outputs and the last state."""

    # A layer whose `ops` has them defines these too.
    def one_launch(self, pool: Pool, raw: Tensor, rows: Rows, slots: Tensor) -> Tensor:
        raise AssertionError(f"{self.name}: one_launch: expected a layer whose ops has it, got {self.ops}")

    def replay(
        self, op: str, pool: Pool, mixed: Tensor, rows: Rows, slots: Tensor, accepted: Tensor | None, folds: Tensor
    ) -> Tensor:
        raise AssertionError(f"{self.name}: replay: expected a layer whose ops has {op}, got {self.ops}")

    def commit(self, op: str, pool: Pool, slots: Tensor, accepted: Tensor | None) -> None:
        raise AssertionError(f"{self.name}: commit: expected a layer whose ops has {op}, got {self.ops}")

    def literal_conv(self, ids: Tensor) -> Tensor:
        x = torch.nn.functional.pad(self.tables["mixed"][ids].double(), (0, 0, WIDTH - 1, 0)).unfold(0, WIDTH, 1)
        return silu((x * self.weight.double()).sum(-1) + self.bias.double())
