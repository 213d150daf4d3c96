"""fold_states on CPU tensors: the reference, what is refused, and parts of a sequence."""

from __future__ import annotations

import pytest
import torch
from fold_states_on_device import drawn, exact
from helpers import rel_rms

import gdn_cuda
from gdn_cuda.gdn.inputs import make_gdn_inputs

DV, DK = 6, 8


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_against_products_in_fp64(precision: str, dtype: torch.dtype, reverse: bool, seed: int) -> None:
    """Whatever torch is allowed to do with products in fp32."""
    state, summaries = (x.to(dtype) for x in drawn(3, 1, 2, dv=DV, dk=DK, seed=seed))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        found = gdn_cuda.fold_states(state, summaries[..., :DV, :], summaries[..., DV:, :], reverse=reverse)
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.dtype == dtype and rel_rms(found, exact(state, summaries, reverse)) < (
        1e-7 if dtype == torch.float32 else 1e-15
    )


def test_three_parts_of_a_sequence(seed: int) -> None:
    x = make_gdn_inputs(B=1, T=90, Hk=1, Hv=2, dk=16, dv=8, dtype=torch.float64, seed=seed, gate_range=(-0.1, 0.0))
    x = {name: y.double() for name, y in x.items()}
    rows = {name: x[name] for name in ("key", "value", "beta", "gate")}
    parts = [{name: y[:, first : first + 30] for name, y in rows.items()} for first in (0, 30, 60)]
    every = torch.stack([gdn_cuda.chunked_summary(**part) for part in parts])
    found = gdn_cuda.fold_states(x["state"], every[..., :8, :], every[..., 8:, :])
    assert rel_rms(found, gdn_cuda.chunked_forward(**x)[1]) < 1e-12


WRONG = {
    "state": [lambda x: x[0], lambda x: x.mT.contiguous().mT, lambda x: x.bfloat16(), lambda x: x[..., :0]],
    "additions": [lambda x: x[0], lambda x: x[..., 1:, :], lambda x: x.double(), lambda x: x.mT.contiguous().mT],
    "transitions": [
        lambda x: x[0],
        lambda x: x[1:],
        lambda x: x[..., 1:],
        lambda x: x.double(),
        lambda x: x.mT.contiguous().mT,
    ],
    "out": [lambda x: x[..., 1:], lambda x: x.double(), lambda x: x.mT.contiguous().mT],
}


@pytest.mark.parametrize("argument, at", [(name, i) for name, every in WRONG.items() for i in range(len(every))])
def test_wrong_tensors_are_refused_by_name(argument: str, at: int) -> None:
    state, summaries = drawn(3, 2, 2, dv=DV, dk=DK, seed=0)
    x = {"state": state, "additions": summaries[..., :DV, :], "transitions": summaries[..., DV:, :], "out": state.clone()}
    x[argument] = WRONG[argument][at](x[argument])
    with pytest.raises(ValueError, match=rf"fold_states: {argument}: expected .+, got .+"):
        gdn_cuda.fold_states(**x)


def test_an_output_that_overlaps_is_refused() -> None:
    state, summaries = drawn(3, 2, 2, dv=DV, dk=DK, seed=0)
    rest = summaries[..., :DV, :], summaries[..., DV:, :]
    with pytest.raises(ValueError, match=r"fold_states: out: expected .+, got .+"):
        gdn_cuda.fold_states(state, *rest, out=state)
