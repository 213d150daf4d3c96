"""Wrong input of ssd_scan and ssd_summary raises an error that names function, argument, expected and got."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import gdn_cuda

ROWS, HEADS = torch.ones(2, 5, 4, 8), torch.ones(4)
X: dict[str, Any] = {"x": ROWS, "dt": ROWS[..., 0], "A": -HEADS, "B": torch.ones(2, 5, 2, 6), "C": torch.ones(2, 5, 2, 6)}
STATES = torch.ones(2, 4, 8, 6)
POOL = {"initial_state": STATES, "state_indices": torch.tensor([0, 1])}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"x": ROWS[0]}, "x: expected rank 4 (B, T, H, P), got (5, 4, 8)"),
    ({"x": ROWS.int()}, "x: expected bfloat16 or float16 or float32 or float64, got int32"),
    ({"x": ROWS[..., ::2]}, "x: expected a contiguous last dimension"),
    ({"dt": ROWS[..., :1]}, "dt: expected (B, T, H) = (2, 5, 4), got (2, 5, 4, 1)"),
    ({"A": HEADS[:3]}, "A: expected (H,) = (4,), got (3,)"),
    ({"A": HEADS.int()}, "A: expected float32 or bfloat16 or float16, got int32"),
    ({"B": X["B"].bfloat16()}, "B: expected float32, got bfloat16"),
    ({"B": torch.ones(2, 5, 3, 6)}, "B: expected a number of groups that divides the 4 heads, got 3"),
    ({"B": torch.ones(2, 5, 0, 6)}, "B: expected a number of groups that divides the 4 heads, got 0"),
    ({"B": torch.ones(2, 5, 2, 0)}, "B: expected a state or more"),
    ({"C": torch.ones(2, 5, 1, 6)}, "C: expected (B, T, G, N), the shape of B = (2, 5, 2, 6), got (2, 5, 1, 6)"),
    ({"D": torch.ones(4, 7)}, "D: expected (H,) or (H, P) = (4, 8), got (4, 7)"),
    ({"dt_bias": HEADS[:1]}, "dt_bias: expected (H,) = (4,), got (1,)"),
    ({"z": ROWS[:1]}, "z: expected (B, T, H, P), the shape of x = (2, 5, 4, 8), got (1, 5, 4, 8)"),
    ({"initial_state": STATES[:1]}, "initial_state: expected (sequences, H, P, N) = (2, 4, 8, 6), got (1, 4, 8, 6)"),
    ({"initial_state": STATES.double()}, "initial_state: expected float32 or bfloat16 or float16, got float64"),
    ({"cu_seqlens": torch.tensor([0, 5])}, "x: expected a batch of 1, as cu_seqlens packs sequences along T"),
    ({"seq_idx": torch.zeros(2, 5)}, "seq_idx: expected int32, got float32"),
    ({"seq_idx": torch.zeros(5).int()}, "seq_idx: expected (B, T) = (2, 5), got (5,)"),
    ({"dt_limit": (1.0, 0.5)}, "dt_limit: expected a lower bound that is not above the upper one, got (1, 0.5)"),
    ({"has_initial_state": torch.ones(2)}, "has_initial_state: expected bool, got float32"),
    ({"state_dtype": torch.int32}, "state_dtype: expected torch.float32, bfloat16, float16 or None"),
    ({"last_state": STATES, "state_dtype": torch.float32}, "state_dtype: expected None with last_state"),
    ({"last_state": STATES[:1]}, "last_state: expected (sequences, H, P, N) = (2, 4, 8, 6), got (1, 4, 8, 6)"),
    ({"last_state": STATES[:1].expand(2, -1, -1, -1)}, "last_state: expected"),
    ({"out": ROWS[:1]}, "out: expected the shape of x = (2, 5, 4, 8), got (1, 5, 4, 8)"),
    ({"out": ROWS.half()}, "out: expected float32, got float16"),
    ({"out": ROWS}, "out: expected memory that does not overlap that of x"),
    (
        {"last_state": STATES, "initial_state": STATES},
        "last_state: expected memory that does not overlap that of",
    ),
    ({"write_indices": torch.tensor([0, 1])}, "write_indices: expected None without state_indices or last_state"),
    ({"last_state": STATES, "write_indices": torch.tensor([0])}, "write_indices: expected (sequences,) = (2,), got (1,)"),
    ({"last_state": STATES, "write_indices": torch.tensor([0.0, 1.0])}, "write_indices: expected int32 or int64"),
    ({"last_state": STATES[0], "write_indices": torch.tensor([0, 1])}, "last_state: expected rank 4"),
    (
        {"last_state": STATES, "initial_state": STATES, "write_indices": torch.tensor([1, 0])},
        "last_state: expected memory that does not overlap that of",
    ),
    ({"update_state": False}, "update_state: expected True without state_indices, got False"),
    ({"state_indices": torch.tensor([0, 1])}, "initial_state: expected a pool (slots, H, P, N) with state_indices, got None"),
    (POOL | {"state_indices": torch.tensor([0, 1, 2])}, "state_indices: expected"),
    (POOL | {"state_indices": torch.tensor([0.0, 1.0])}, "state_indices: expected"),
    (POOL | {"write_indices": torch.tensor([0])}, "write_indices: expected"),
    (
        POOL | {"write_indices": torch.tensor([0, 1]), "update_state": False},
        "write_indices: expected None without update_state",
    ),
    (POOL | {"last_state": STATES.clone()}, "last_state: expected None with state_indices"),
    (POOL | {"seq_idx": torch.zeros(2, 5).int()}, "seq_idx: expected None with state_indices"),
    (POOL | {"state_dtype": torch.float16}, "state_dtype: expected None or the pool's torch.float32 with state_indices"),
    (POOL | {"initial_state": STATES[:1].expand(2, -1, -1, -1)}, "initial_state: expected"),
]


ROWS_OF_STATES = torch.ones(3, 4, 8, 6)
PACKED: dict[str, Any] = {name: y[:1] if y.dim() > 1 else y for name, y in X.items()} | {"cu_seqlens": torch.tensor([0, 2, 5])}
ENDS = torch.tensor([0, 1, 2, 5])
WRONG_CHECKPOINTS: list[tuple[dict[str, Any], str]] = [
    ({"checkpoint_every": 63}, "checkpoint_every: expected a multiple of 64, got 63"),
    ({"checkpoint_every": -64}, "checkpoint_every: expected a multiple of 64, got -64"),
    ({"checkpoint_every": 64.0}, "checkpoint_every: expected a multiple of 64, got 64.0"),
    ({"checkpoint_every": 64, "boundaries": ENDS}, "boundaries: expected None with checkpoint_every, got a tensor"),
    (
        {"checkpoint_every": 64, "checkpoint_offsets": ENDS[:2]},
        "checkpoint_offsets: expected None with checkpoint_every, got a tensor",
    ),
    (
        {"checkpoint_offsets": ENDS[:2], "boundaries": ENDS},
        "boundaries: expected None with checkpoint_offsets, got a tensor",
    ),
    ({"checkpoints": ROWS_OF_STATES}, "checkpoints: expected None without checkpoint_every, checkpoint_offsets or boundaries"),
    (
        {"states_before": ROWS_OF_STATES},
        "states_before: expected None without checkpoint_every, checkpoint_offsets or boundaries",
    ),
    ({"boundaries": ENDS, "states_before": ROWS_OF_STATES}, "states_before: expected None without checkpoint_every"),
    ({"boundaries": 5}, "boundaries: expected a tensor with one dimension, or None, got int"),
    ({"boundaries": ENDS[None]}, "boundaries: expected a tensor with one dimension, or None, got (1, 4)"),
    ({"boundaries": ENDS[:0]}, "boundaries: expected at least one element, got none"),
    ({"boundaries": ENDS.float()}, "boundaries: expected int32 or int64, got float32"),
    ({"boundaries": torch.tensor([0, 2, 1, 5])}, "boundaries: expected offsets that never decrease, from 0 to 5, got 1 at"),
    ({"boundaries": torch.tensor([0, 2, 6])}, "boundaries: expected offsets that never decrease, from 0 to 5, got 6 at"),
    ({"boundaries": torch.tensor([0, 1, 5])}, "boundaries: expected the end of every sequence, got none at 2"),
    ({"boundaries": torch.tensor([0, 2, 4])}, "boundaries: expected the end of every sequence, got none at 5"),
    ({"checkpoint_offsets": ENDS}, "checkpoint_offsets: expected (sequences,) = (2,), got (4,)"),
    ({"checkpoint_offsets": torch.tensor([3, 3])}, "checkpoint_offsets: expected at most the 2 tokens of sequence 0, got 3"),
    ({"boundaries": ENDS, "checkpoints": ROWS_OF_STATES[:2]}, "checkpoints: expected (sequences, H, P, N) = (3, 4, 8, 6), got"),
    (
        {"boundaries": ENDS, "checkpoints": ROWS_OF_STATES[:1].expand(3, -1, -1, -1)},
        "checkpoints: expected",
    ),
    (
        {"checkpoint_every": 64, "checkpoints": ROWS_OF_STATES, "states_before": ROWS_OF_STATES},
        "states_before: expected memory that does not overlap that of checkpoints",
    ),
    (
        {"boundaries": ENDS, "checkpoints": ROWS_OF_STATES, "initial_state": ROWS_OF_STATES[:2]},
        "checkpoints: expected memory that does not overlap that of initial_state",
    ),
    (
        {"boundaries": ENDS, "cu_seqlens": None, "seq_idx": torch.zeros(1, 5).int()},
        "seq_idx: expected None with boundaries, got a tensor",
    ),
    ({"boundaries": ENDS, "cu_seqlens": None}, "boundaries: expected None without cu_seqlens, got a tensor"),
]


@pytest.mark.parametrize("change, message", WRONG_CHECKPOINTS, ids=[message for _, message in WRONG_CHECKPOINTS])
def test_checkpoints_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^ssd_scan: {re.escape(message)}"):
        gdn_cuda.ssd_scan(**PACKED | change)


@pytest.mark.parametrize("name", ["dt", "B", "C", "z", "out"])
def test_packed_tensors_have_a_batch_dimension_together(name: str) -> None:
    x = {"x": ROWS[0], "dt": ROWS[0, ..., 0], "B": ROWS[0], "C": ROWS[0], "z": ROWS[0], "out": torch.empty_like(ROWS[0])}
    given = x | {"A": -torch.ones(ROWS.shape[2]), "cu_seqlens": torch.tensor([0, ROWS.shape[1]])}
    assert gdn_cuda.ssd_scan(**given) is x["out"]
    with pytest.raises(ValueError, match=f"^ssd_scan: {name}: expected .*, got \\(1, 1, "):
        gdn_cuda.ssd_scan(**given | {name: x[name][None]})


@pytest.mark.parametrize("mode", [{"checkpoint_every": 64}, {"checkpoint_offsets": ENDS[1:3]}, {"boundaries": ENDS}])
def test_checkpoints_are_refused_where_gradients_are_needed(mode: dict[str, Any]) -> None:
    ((name, value),) = mode.items()
    wanted = re.escape(f"{name}: expected 0 or None where an input requires a gradient, got ")
    with pytest.raises(ValueError, match=f"^ssd_scan: {wanted}{value if name == 'checkpoint_every' else 'a tensor'}"):
        gdn_cuda.ssd_scan(**PACKED | mode | {"A": X["A"].clone().requires_grad_()})


@pytest.mark.parametrize("change, message", WRONG, ids=[message for _, message in WRONG])
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^ssd_scan: {re.escape(message)}"):
        gdn_cuda.ssd_scan(**X | change)


def test_offsets_beside_numbers_of_sequences_are_refused() -> None:
    one = {name: y[:1] if y.dim() > 1 else y for name, y in X.items()}
    numbers = {"cu_seqlens": torch.tensor([0, 5]), "seq_idx": torch.zeros(1, 5).int()}
    with pytest.raises(ValueError, match=r"^ssd_scan: seq_idx: expected None with cu_seqlens, got a tensor"):
        gdn_cuda.ssd_scan(**one | numbers)


@pytest.mark.parametrize("name", ["out", "last_state", "state_indices"])
def test_what_has_no_gradients_is_refused_where_they_are_needed(name: str) -> None:
    given = {"out": {"out": torch.empty_like(ROWS)}, "last_state": {"last_state": torch.empty_like(STATES)}}
    x = X | {"A": X["A"].clone().requires_grad_()} | given.get(name, POOL)
    with pytest.raises(ValueError, match=f"^ssd_scan: {name}: expected None where an input requires a gradient, got a tensor"):
        gdn_cuda.ssd_scan(**x)


def test_a_summary_names_itself() -> None:
    with pytest.raises(ValueError, match=r"^ssd_summary: dt: expected \(B, T, H\) = \(2, 5, 4\), got \(2, 5\)"):
        gdn_cuda.ssd_summary(ROWS, ROWS[..., 0, 0], -HEADS, X["B"])
    dt = ROWS[..., 0].clone().requires_grad_()
    state, _ = gdn_cuda.ssd_summary(ROWS, dt, -HEADS, X["B"])
    with pytest.raises(RuntimeError, match=r"ssd_summary: no gradient is computed; for gradients use gdn_cuda.ssd_scan"):
        state.sum().backward()
