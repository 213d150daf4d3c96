"""How maps of slices are composed."""

from __future__ import annotations

import torch

from gdn_cuda.parallel.maps import composed

DV, DK = 6, 8


def drawn(*leading: int, rows: int, seed: int) -> torch.Tensor:
    return torch.randn(*leading, rows, DK, generator=torch.Generator().manual_seed(seed))


def fold(state: torch.Tensor, summary: torch.Tensor) -> torch.Tensor:
    return state @ summary[:, DV:] + summary[:, :DV]


def test_two_composed_maps_are_one_after_the_other() -> None:
    state, first, second = drawn(2, rows=DV, seed=0).double(), *(drawn(2, rows=DV + DK, seed=i).double() for i in (1, 2))
    one, other = (fold(state, x) for x in (first, composed(first, second, DV)))
    torch.testing.assert_close(other, fold(one, second), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(composed(one, second, DV), other, rtol=1e-13, atol=1e-13)


def test_a_map_of_zeros_hides_what_is_before_it_in_its_head_alone() -> None:
    state, m = torch.full((2, DV, DK), torch.nan), torch.eye(DK).repeat(2, 1, 1)
    m[0] = 0
    found = composed(state, torch.cat([torch.ones(2, DV, DK), m], -2), DV)
    assert torch.equal(found[0], torch.ones(DV, DK)) and found[1].isnan().all()
