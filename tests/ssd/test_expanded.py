"""selective_scan on expanded tensors is Mamba-2's scan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.ssd import scan
from gdn_cuda.ssd.call import Call
from gdn_cuda.ssd.expanded import expanded_into, expanded_pool, expanded_scan, expanded_summary


def _call(divided: str, z: bool, D: int) -> dict[str, Any]:
    torch.manual_seed(1)
    batch, T, H, P, G, N = 1 if divided == "packed" else 2, 70, 4, 3, 2, 5
    states = 3 if divided == "packed" else batch

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float64)

    return {
        "x": normal(batch, T, H, P),
        "dt": normal(batch, T, H),
        "A": -normal(H).exp(),
        "B": normal(batch, T, G, N),
        "C": normal(batch, T, G, N),
        "D": (None, normal(H), normal(H, P))[D],
        "z": normal(batch, T, H, P) if z else None,
        "dt_bias": normal(H),
        "initial_state": normal(states, H, P, N),
        "has_initial_state": torch.tensor([True, False, True][:states]),
        "cu_seqlens": torch.tensor([0, 30, 30, 70]) if divided == "packed" else None,
        "seq_idx": torch.tensor([[0] * 20 + [1] * 50, [2] * 70]).int() if divided == "numbered" else None,
        "dt_softplus": True,
    }


@pytest.mark.parametrize("divided", ["padded", "packed", "numbered"])
@pytest.mark.parametrize("z", [False, True])
@pytest.mark.parametrize("D", [0, 1, 2])
def test_against_ssd_scan(divided: str, z: bool, D: int) -> None:
    x = _call(divided, z, D)
    leaves = {name: y.requires_grad_() for name, y in x.items() if isinstance(y, Tensor) and y.is_floating_point()}
    found = expanded_scan(Call(**x, dt_lowest=0.1, dt_highest=2.0))
    wanted = gdn_cuda.ssd_scan(**x, dt_limit=(0.1, 2.0), return_last_state=True)
    weights = [torch.randn_like(y) for y in wanted]
    gradients = (torch.autograd.grad(results, list(leaves.values()), weights) for results in (found, wanted))
    for name, one, other in zip(
        ("out", "last state", *leaves), (*found, *next(gradients)), (*wanted, *next(gradients)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("write", [None, [0, 9, 1], [-1, 7, 9]])
@pytest.mark.parametrize("slots", [[2, 0, 1], [2, -1, 0], [1, 5, -1], [-1, -2, 4]])
def test_pools(slots: list[int], write: list[int] | None, packed: bool) -> None:
    x = _call("packed" if packed else "padded", True, 1)
    if not packed:
        slots, write = slots[1:], write and write[1:]
    x["initial_state"] = torch.randn(4, 4, 3, 5, dtype=torch.float64)
    x |= {"state_indices": torch.tensor(slots), "write_indices": None if write is None else torch.tensor(write)}
    found = Call(**x, dt_lowest=0.0, dt_highest=2.0, update_state=True, state_scales=None, out=torch.empty_like(x["x"]))
    found.initial_state = x["initial_state"].clone()
    expanded_pool(found)
    del x["seq_idx"]
    wanted = gdn_cuda.ssd_scan(**x, dt_limit=(0.0, 2.0))
    torch.testing.assert_close(found.out, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(found.initial_state, x["initial_state"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("write", [[4, 0, 1], [-1, 9, 3], [-1, 5, -2]])
def test_last_states_in_slots(write: list[int], packed: bool) -> None:
    """The other slots, NaN among them, keep their bits."""
    x = _call("packed" if packed else "padded", True, 1)
    write = write if packed else write[1:]
    before = torch.randn(5, 4, 3, 5, dtype=torch.float64)
    before[2] = torch.nan
    x |= {"last_state": before.clone(), "write_indices": torch.tensor(write)}
    found = Call(**x, dt_lowest=0.0, dt_highest=2.0, out=torch.empty_like(x["x"]))
    found.last_state = before.clone()
    expanded_into(found)
    del x["seq_idx"]
    wanted, pool = gdn_cuda.ssd_scan(**x, dt_limit=(0.0, 2.0), return_last_state=True)
    torch.testing.assert_close(found.out, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.last_state, pool, rtol=1e-9, atol=1e-9, equal_nan=True)
    _, last = gdn_cuda.ssd_scan(**x | {"last_state": None, "write_indices": None}, dt_limit=(0.0, 2.0), return_last_state=True)
    for slot in range(5):
        wanted = last[write.index(slot)] if slot in write else before[slot]
        torch.testing.assert_close(pool[slot], wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("packed", [False, True])
def test_summaries(packed: bool) -> None:
    """NaN in one sequence is in its own results alone."""
    x = _call("packed" if packed else "padded", False, 0)
    x["dt"][0, 10] = torch.nan
    x["dt"][-1, -1] = 1e300
    own = {name: x[name] for name in ("x", "dt", "A", "B", "dt_bias", "initial_state", "cu_seqlens")}
    found = expanded_summary(Call(**own, dt_softplus=True, dt_lowest=0.0, dt_highest=1e9))
    wanted = gdn_cuda.ssd_summary(**own, dt_softplus=True, dt_limit=(0.0, 1e9))
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-9, atol=1e-9, equal_nan=True)
    finite = wanted[0].isfinite()
    assert torch.equal(found[0].isfinite() & finite, finite) or packed
    torch.testing.assert_close(found[0][-1, :, :, 0], wanted[0][-1, :, :, 0], rtol=1e-9, atol=1e-9, equal_nan=True)


def test_summaries_of_expanded_tensors_have_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "has_kernel", lambda *call: False)
    x, dt, B = torch.randn(1, 5, 2, 8).requires_grad_(), torch.rand(1, 5, 2), torch.randn(1, 5, 1, 8)
    state, _ = gdn_cuda.ssd_summary(x, dt, -torch.ones(2), B)
    with pytest.raises(RuntimeError, match=r"^ssd_summary: no gradient is computed; for gradients use gdn_cuda.ssd_scan$"):
        state.sum().backward()
