"""Strong gates and resets in the public functions on CPU tensors; tests/gdn/gpu has the same tests for the kernels."""

from __future__ import annotations

import pytest
import torch
from helpers import rel_rms
from strong_gates import (
    INF,
    NOT_FINITE_TOKENS,
    ONE_GATE,
    SEVERAL,
    STATES,
    Case,
    check,
    check_decode,
    chunked_forward,
    from_chunk_steps,
    gates_of_that_sum,
    id_of,
    recurrent_forward,
    sum_of_the_caller,
)

import gdn_cuda

SMALL = {"dk": 16, "dv": 8, "T": 130}
BF16 = 5e-3  # an output rounded once; the steps of the chunked form round u, w and v' too
FEW = ONE_GATE[::7] + SEVERAL[2:4] + STATES[::6] + NOT_FINITE_TOKENS[::5]


@pytest.mark.parametrize("case", FEW, ids=id_of)
def test_chunked_and_recurrent_forward(case: Case, seed: int) -> None:
    case = Case(case.name, tuple((token, gate) for token, gate in case.gates if token < 130), case.state, case.token)
    x = case.inputs(seed, **SMALL)
    for function in (chunked_forward, recurrent_forward):
        check(case, *function(x), x, BF16, 1e-5)


@pytest.mark.parametrize("case", ONE_GATE[::7] + SEVERAL[:1] + STATES[::6], ids=id_of)
def test_steps_of_the_chunked_form(case: Case, seed: int) -> None:
    x = case.inputs(seed, dk=16, dv=8)
    check(case, *from_chunk_steps(x), x, 8e-3, 8e-3)


def test_steps_of_the_chunked_form_with_gates_summed_by_the_caller(seed: int) -> None:
    case = Case("a sum with -inf", ((20, -INF), (40, -1.0), (100, -INF)))
    x = case.inputs(seed, dk=16, dv=8)
    out, state = from_chunk_steps(x, sum_of_the_caller(x["gate"]))
    check(case, out, state, x | {"gate": gates_of_that_sum(x["gate"])}, 8e-3, 8e-3)


@pytest.mark.parametrize("case", ONE_GATE[4::10] + STATES[4::10], ids=id_of)
def test_fused_decode(case: Case, seed: int) -> None:
    x = case.inputs(seed, dk=16, dv=8, T=70, beta_max=1.0)
    check_decode(case, x, BF16, 1e-4)


def test_fused_decode_with_a_rate_that_is_infinite_in_fp32(seed: int) -> None:
    """A_log = 90 and a = -200: the gate is 0, where infinity times 0 would be NaN."""
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, 1, 2, 16).bfloat16() for _ in range(3))
    a, A_log, zeros = torch.full((1, 1, 2), -200.0), torch.full((2,), 90.0), torch.zeros(2)
    pool = torch.randn(1, 2, 16, 16)
    undecayed = pool.clone()
    out = gdn_cuda.fused_decode(q, k, v, a, a, A_log, zeros, pool)
    expected = gdn_cuda.fused_decode(q, k, v, a, a, zeros - 90, zeros, undecayed)
    assert torch.equal(out, expected) and torch.equal(pool, undecayed) and rel_rms(out, expected) == 0
