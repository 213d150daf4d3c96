"""gdn/prefill_mma in the emulator, as GPUs before Hopper run it, against the recurrence in fp64."""

from __future__ import annotations

import pytest
import torch
from calls_by_engines import FORMS, Call, check_gates
from emulated import emulated
from gdn_inputs import to_double
from helpers import rel_rms
from strong_gates import ONE_GATE, SEVERAL, STATES, Case, check, id_of
from strong_gates import chunked_forward as poisoned_forward

from gdn_cuda import chunked_forward, reference
from gdn_cuda.gdn.inputs import make_gdn_inputs

A100 = {"capability": 80, "multiprocessors": 108, "shared_bytes": 163 << 10}
BOUND = {torch.bfloat16: 5e-3, torch.float16: 1e-3}


# One warpgroup of value rows, and two.
@pytest.mark.parametrize("io", BOUND)
@pytest.mark.parametrize(
    "dk, dv", [(64, 40), (40, 72), (96, 64), (96, 80), (128, 24), (128, 128), (192, 8), (144, 72), (256, 72)]
)
def test_head_dimensions(dk: int, dv: int, io: torch.dtype, seed: int) -> None:
    x = make_gdn_inputs(B=1, T=150, Hk=1, Hv=2, dk=dk, dv=dv, dtype=io, gate_range=(-2.0, 0.0), beta_max=2.0, seed=seed)
    expected, expected_state, _ = reference.recurrent(**to_double(x))
    with emulated(**A100) as launched:
        out, state = chunked_forward(**x, out=torch.full_like(x["value"], torch.nan))[:2]
    assert any(name.startswith("gdn/prefill_mma{") for name in launched())
    assert state is not None and rel_rms(out, expected) < BOUND[io] and rel_rms(state, expected_state) < BOUND[io]


@pytest.mark.parametrize("form", FORMS)
def test_gates_in_every_form(form: str) -> None:
    with emulated(**A100) as launched:
        check_gates("chunked", Call((70, 0, 65), (1, 2), 64, 64, torch.bfloat16), form, torch.float16, "cpu")
    kernels = {name.partition("{")[0] for name in launched()}
    assert kernels >= ({"gdn/prefill_mma"} if form == "log" else {"gdn/prefill_mma", "gdn/chunk_gates"})


@pytest.mark.parametrize("case", ONE_GATE[5::6] + SEVERAL[2:3] + STATES[3::7], ids=id_of)
def test_strong_gates(case: Case, seed: int) -> None:
    x = case.inputs(seed, dk=64, dv=72, B=1)
    with emulated(**A100):
        out, state = poisoned_forward(x)
    check(case, out, state, x, 5e-3, 5e-3)
