"""The kernels of simplified_scan and s5_inner, forward and backward, in the emulator against the recurrence in complex128."""

from __future__ import annotations

import pytest
import simplified_oracle as oracle
import torch
from emulated import emulated
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import s5_inner, simplified_scan
from gdn_cuda.scan.diagonal import diagonal_scan

EVERY = pytest.mark.parametrize("name", oracle.NAMES)
FORMS = pytest.mark.parametrize(
    "varying, with_a, with_state", [(False, False, False), (True, False, True), (True, True, False), (False, True, True)]
)
BOUND = 1e-5


def scanned(seed: int, batch: int, P: int, L: int, varying: bool, with_a: bool, with_state: bool) -> list[Tensor | None]:
    """Arguments of diagonal_scan without the discretization."""
    x = oracle.drawn(seed, batch, P, P, L, varying=varying, with_a=with_a, with_state=with_state)
    return [x["u"], x["delta"], x["A"], x.get("delta_a"), x.get("initial_state")]


def check(given: list[Tensor | None], name: str, seed: int) -> None:
    leaves = [x.requires_grad_() for x in given if x is not None]
    expected = oracle.diagonal_scan(*given, name)
    rng = torch.Generator().manual_seed(seed)
    weights = [torch.randn(y.shape, generator=rng, dtype=torch.complex64) for y in expected]
    theirs = torch.autograd.grad(expected, leaves, [oracle.wide(w) for w in weights], allow_unused=True)
    with emulated():
        found = diagonal_scan(*given, name)
        ours = torch.autograd.grad(found, leaves, weights)
    for mine, other in zip(found, expected, strict=True):
        assert rel_rms(mine, other) < BOUND
    for mine, wanted, leaf in zip(ours, theirs, leaves, strict=True):
        assert rel_rms(mine, torch.zeros_like(leaf) if wanted is None else wanted) < BOUND


@EVERY
@FORMS
@pytest.mark.parametrize("L", [1, 3, 127, 128, 129, 513])
def test_values_and_gradients(name: str, varying: bool, with_a: bool, with_state: bool, L: int, seed: int) -> None:
    check(scanned(seed, 2, 3, L, varying, with_a, with_state), name, seed)


@EVERY
@pytest.mark.parametrize("varying", [False, True])
def test_no_tokens(name: str, varying: bool, seed: int) -> None:
    given = scanned(seed, 2, 3, 0, varying, False, True)
    with emulated():
        states, last = diagonal_scan(*given, name)
        assert states.shape == (2, 3, 0) and torch.equal(last, given[-1])
        for batch, P in ((0, 3), (2, 0)):
            assert diagonal_scan(*scanned(seed, batch, P, 4, varying, False, True), name)[0].shape == (batch, P, 4)


@pytest.mark.parametrize("name", ["zoh"])
@FORMS
def test_rows_that_blocks_share(name: str, varying: bool, with_a: bool, with_state: bool, seed: int) -> None:
    """Two blocks per row: few rows for 132 multiprocessors, of slightly more than eight tiles."""
    check(scanned(seed, 1, 2, 4201, varying, with_a, with_state), name, seed)


@EVERY
def test_steps_of_zero_and_a_hundred(name: str, seed: int) -> None:
    given = scanned(seed, 2, 5, 300, True, False, True)
    given[1][..., ::7] = 0
    given[1][..., ::11] = 100
    given[2][:4] = torch.tensor([0, -1e-6, 1e-9 - 1e-9j, -1e3 + 100j], dtype=torch.complex64)
    check(given, name, seed)


@EVERY
def test_infinities_and_nans_stay_in_their_row(name: str, seed: int) -> None:
    given = scanned(seed, 3, 4, 300, True, False, True)
    with emulated():
        clean = diagonal_scan(*given, name)
        for bad in (torch.inf, -torch.inf, torch.nan):
            hurt = [None if x is None else x.clone() for x in given]
            hurt[0][1, 2, 200] = bad
            found = diagonal_scan(*hurt, name)
            for ours, theirs in zip(found, clean, strict=True):
                same = torch.ones(3, 4, dtype=torch.bool)
                same[1, 2] = False
                assert torch.equal(ours[same], theirs[same])
            assert torch.equal(found[0][1, 2, :200], clean[0][1, 2, :200])
            assert not torch.isfinite(found[0][1, 2, 200])


def test_layouts_and_offsets_of_inputs(seed: int) -> None:
    """Transposed, shifted by one element, lazily conjugated."""
    given = scanned(seed, 2, 4, 256, True, False, True)
    moved = [x.mT.contiguous().mT if x is not None and x.dim() == 3 else x for x in given]
    shifted = [None if x is None else torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x) for x in given]
    conjugate = [x if x is None or not x.is_complex() else torch.conj_physical(x).conj() for x in given]
    with emulated():
        expected, *others = (diagonal_scan(*x, "zoh") for x in (given, moved, shifted, conjugate))
    for other in others:
        for ours, theirs in zip(other, expected, strict=True):
            assert torch.equal(ours, theirs)


@EVERY
def test_with_their_products(name: str, seed: int) -> None:
    x = oracle.drawn(seed, 2, 7, 10, 133, varying=True, with_state=True)
    expected, expected_last = oracle.simplified_scan(**x, discretization=name)
    with emulated():
        y, last = simplified_scan(**x, discretization=name, return_last_state=True)
    assert rel_rms(y, expected) < BOUND and rel_rms(last, expected_last) < BOUND
    del x["initial_state"]
    D = torch.randn(7)
    leaves = [z.requires_grad_() for z in (*x.values(), D)]
    wanted = 2 * oracle.simplified_scan(**x, discretization=name)[0].real + D.double()[:, None] * oracle.wide(x["u"]).real
    weight = torch.randn_like(wanted)
    with emulated():
        found = s5_inner(*leaves, discretization=name)
        ours = torch.autograd.grad(found, leaves, weight.float())
    assert rel_rms(found, wanted) < BOUND
    for mine, other in zip(ours, torch.autograd.grad(wanted, leaves, weight), strict=True):
        assert rel_rms(mine, other) < BOUND
