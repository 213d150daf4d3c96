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
