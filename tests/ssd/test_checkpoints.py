"""States that ssd_scan reports on CPU tensors, and on expanded tensors, against the last states of shorter calls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.ssd import scan

PACKED = (30, 0, 1, 100, 69)


@pytest.fixture(params=["reference", "expanded"], autouse=True)
def computed_by(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "expanded":
        monkeypatch.setattr(scan, "has_kernel", lambda *call: False)


def drawn(lengths: tuple[int, ...] | None = None) -> dict[str, Any]:
    torch.manual_seed(1)
    B, T, H, P, G, N = (2, 200, 4, 3, 2, 5) if lengths is None else (1, sum(lengths) + 5, 4, 3, 2, 5)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float64)

    return {
        "x": normal(B, T, H, P),
        "dt": normal(B, T, H),
        "A": -normal(H).exp(),
        "B": normal(B, T, G, N),
        "C": normal(B, T, G, N),
        "D": normal(H),
        "dt_bias": normal(H),
        "initial_state": normal(B if lengths is None else len(lengths), H, P, N),
        "dt_softplus": True,
        "cu_seqlens": None if lengths is None else torch.tensor([0, *lengths]).cumsum(0),
    }


def state_after(x: dict[str, Any], sequence: int, tokens: int) -> Tensor:
    row, first = (sequence, 0) if x["cu_seqlens"] is None else (0, int(x["cu_seqlens"][sequence]))
    part = {name: x[name][row : row + 1, first : first + tokens] for name in ("x", "dt", "B", "C")}
    part |= {"initial_state": x["initial_state"][sequence : sequence + 1], "cu_seqlens": None}
    last: Tensor = gdn_cuda.ssd_scan(**x | part, return_last_state=True)[1][0]
    return last


def check(x: dict[str, Any], rows: Tensor, places: list[tuple[int, int] | None]) -> None:
    for row, place in zip(rows, places, strict=True):
        torch.testing.assert_close(row, torch.zeros_like(row) if place is None else state_after(x, *place))


@pytest.mark.parametrize("lengths", [None, PACKED])
def test_after_every_so_many_tokens(lengths: tuple[int, ...] | None) -> None:
    x = drawn(lengths)
    before = torch.full((9, 4, 3, 5), torch.nan, dtype=torch.float64)
    out, last, rows = gdn_cuda.ssd_scan(**x, checkpoint_every=64, states_before=before)
    wanted = gdn_cuda.ssd_scan(**x, return_last_state=True)
    torch.testing.assert_close((out, last), wanted)
    ends = [200, 200] if lengths is None else list(lengths)
    places: list[Any] = [(n, 64 * (i + 1)) for n, length in enumerate(ends) for i in range(length // 64)]
    check(x, rows, places + [None] * (rows.shape[0] - len(places)))
    places = [(n, 64 * i) for n, length in enumerate(ends) for i in range(-(-length // 64))]
    check(x, before, places + [None] * (9 - len(places)))


def test_after_any_number_of_tokens() -> None:
    x = drawn()
    check(x, gdn_cuda.ssd_scan(**x, checkpoint_offsets=torch.tensor([17, 0]))[2], [(0, 17), None])


@pytest.mark.parametrize("pool", [False, True])
def test_boundaries(pool: bool) -> None:
    x, boundaries = drawn(PACKED), [0, 16, 16, 30, 31, 40, 131, 150, 200]
    offsets = x["cu_seqlens"].tolist()
    places = []
    for token in boundaries[1:]:
        sequence = next(n for n, (_, end) in enumerate(pairwise(offsets)) if end >= token)
        places.append((sequence, token - offsets[sequence]))
    if not pool:
        return check(x, gdn_cuda.ssd_scan(**x, boundaries=torch.tensor(boundaries))[2], list(places))
    states = torch.randn(4, 4, 3, 5, dtype=torch.float64)
    slots = torch.tensor([2, 1, -1, 9, 0])
    own = x | {"initial_state": states.clone(), "state_indices": slots}
    rows = gdn_cuda.ssd_scan(**own, boundaries=torch.tensor(boundaries))[2]
    x["initial_state"] = states[slots.clamp(0, 3)]
    assert not rows[3].any() and rows[4:6].isnan().all()
    kept = [0, 1, 2, 6, 7]
    check(x, rows[kept], [places[n] for n in kept])
    return None


def test_without_sequences() -> None:
    x = drawn(())
    x["x"], x["dt"], x["B"], x["C"] = (torch.ones(1, 70, *x[name].shape[2:]).double() for name in ("x", "dt", "B", "C"))
    assert not gdn_cuda.ssd_scan(**x, checkpoint_every=64)[2].any()


def test_what_a_call_returns() -> None:
    """The caller's tensor, or one of state_dtype; `out` and the last state too."""
    x = {name: y.float() if isinstance(y, Tensor) and y.is_floating_point() else y for name, y in drawn().items()}
    given = torch.empty(2, 4, 3, 5, dtype=torch.float16)
    offsets = torch.tensor([3, 200])
    out = torch.empty_like(x["x"])
    found = gdn_cuda.ssd_scan(**x, checkpoint_offsets=offsets, checkpoints=given, out=out)
    assert found[0] is out and found[2] is given
    rows = gdn_cuda.ssd_scan(**x, checkpoint_offsets=offsets, state_dtype=torch.float16)[2]
    torch.testing.assert_close(rows, given)
