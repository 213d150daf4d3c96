"""How maps of slices are composed."""

from __future__ import annotations

import pytest
import torch

from gdn_cuda.parallel.maps import composed, fold

DV, DK = 6, 8


def drawn(*leading: int, rows: int, seed: int) -> torch.Tensor:
    return torch.randn(*leading, rows, DK, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_states_and_maps_are_composed_in_fp64(precision: str) -> None:
    """Whatever torch is allowed to do with products in fp32."""
    state, maps, additions = drawn(2, rows=DV, seed=0), drawn(3, 2, rows=DK, seed=1), drawn(3, 2, rows=DV, seed=2)
    expected = state.double()
    for m, a in zip(maps.double(), additions.double(), strict=True):
        expected = expected @ m + a
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        found = fold(state, maps.unbind(0), additions.unbind(0))
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found, expected.float())


def test_two_composed_maps_are_one_after_the_other() -> None:
    state, first, second = drawn(2, rows=DV, seed=0).double(), *(drawn(2, rows=DV + DK, seed=i).double() for i in (1, 2))
    one, other = (fold(state, [x[:, DV:]], [x[:, :DV]]) for x in (first, composed(first, second, DV)))
    torch.testing.assert_close(other, fold(one, [second[:, DV:]], [second[:, :DV]]), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(composed(one, second, DV), other, rtol=1e-13, atol=1e-13)


def test_a_map_of_zeros_hides_what_is_before_it_in_its_head_alone() -> None:
    state, m = torch.full((2, DV, DK), torch.nan), torch.eye(DK).repeat(2, 1, 1)
    m[0] = 0
    found = fold(state, [m], [torch.ones(2, DV, DK)])
    assert torch.equal(found[0], torch.ones(DV, DK)) and found[1].isnan().all()
    found = composed(state, torch.cat([torch.ones(2, DV, DK), m], -2), DV)
    assert torch.equal(found[0], torch.ones(DV, DK)) and found[1].isnan().all()
