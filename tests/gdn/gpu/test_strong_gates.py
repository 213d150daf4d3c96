"""Strong gates and resets through every kernel, against the recurrence in fp64 (tests/gdn/strong_gates.py).

The last test runs this file again with GDN_PREFILL, for the other kernels of chunked_forward.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from strong_gates import (
    CASES,
    INF,
    NAN,
    ONE_GATE,
    SEVERAL,
    STATES,
    Case,
    check,
    check_decode,
    check_other_heads_are_untouched,
    chunked_forward,
    from_chunk_steps,
    gates_of_that_sum,
    id_of,
    recurrent_forward,
    sum_of_the_caller,
)

import gdn_cuda
from gdn_cuda import InferenceMode, reference
from gdn_cuda.gdn.inputs import make_gdn_inputs

BOUND, STATE_BOUND = 5e-3, 1e-5  # docs/numerics.md
CHUNK_STEPS_BOUND = 1e-2
PATH = os.environ.get("GDN_PREFILL", "auto")
GPU = {"device": "cuda", "dk": 128, "dv": 128}


# ---- chunked_forward


@pytest.mark.parametrize("case", CASES, ids=id_of)
def test_chunked_forward(case: Case, seed: int) -> None:
    x = case.inputs(seed, **GPU)
    check(case, *chunked_forward(x), x, BOUND, BOUND)


@pytest.mark.parametrize("dk,dv", [(64, 64), (96, 192), (40, 72), (192, 128), (256, 256)])
@pytest.mark.parametrize("case", ONE_GATE[5::6] + SEVERAL[2:3] + STATES[3::7], ids=id_of)
def test_head_dimensions(case: Case, dk: int, dv: int, seed: int) -> None:
    x = case.inputs(seed, device="cuda", dk=dk, dv=dv)
    check(case, *chunked_forward(x), x, BOUND, BOUND)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gate_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", [*ONE_GATE[::7], SEVERAL[2], STATES[-1], CASES[-1]], ids=id_of)
def test_norms_dtypes_and_more_heads_than_fit_at_once(
    case: Case, dtype: torch.dtype, gate_dtype: torch.dtype, seed: int
) -> None:
    x = case.inputs(seed, B=5, Hk=16, Hv=32, dtype=dtype, **GPU)
    x["gate"] = x["gate"].to(gate_dtype)
    out, state = chunked_forward(x, use_qk_l2norm=True)
    unit = {name: torch.nn.functional.normalize(x[name].double(), dim=-1) for name in ("query", "key")}
    few = {name: t[:1] for name, t in (x | unit).items()}  # the oracle is slow
    check(case, out[:1], state[:1], few, BOUND, BOUND)
    assert state.isfinite().all()


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("T,place", [(1500, 700), (1500, 1279), (1500, 1280), (3300, 700), (3300, 1535), (3300, 1536)])
@pytest.mark.parametrize("state", [0.0, NAN, INF])
def test_long_sequences_of_few_heads(state: float, T: int, place: int, deterministic: bool, seed: int) -> None:
    case = Case("long", ((5, -1e6), (place, -INF)), state=state, token=("value", 650, NAN) if state != 0 else None)
    x = case.inputs(seed, B=1, T=T, device="cuda", dk=128, dv=128, gate_range=(-0.01, 0.0))
    check(case, *chunked_forward(x, deterministic=deterministic), x, BOUND, BOUND)


def test_checkpoints_behind_a_reset(seed: int) -> None:
    case = Case("checkpoints", ((70, -INF),), state=NAN)
    x = case.inputs(seed, **GPU)
    checkpoints = gdn_cuda.chunked_forward(**x, checkpoint_every=64)[2].view(2, 2, 2, 128, 128)
    until = {name: t if name == "state" else t[:, :128] for name, t in x.items()}
    check(case, gdn_cuda.chunked_forward(**until)[0], checkpoints[:, 1], until, BOUND, BOUND)
    assert not checkpoints[:, 0].isfinite().all()


def test_nan_stays_in_its_sequence_and_head(seed: int) -> None:
    x = make_gdn_inputs(T=150, Hk=1, Hv=2, dk=128, dv=128, dtype=torch.bfloat16, device="cuda", seed=seed, gate_range=(-1, 0))
    check_other_heads_are_untouched(chunked_forward, x)
    x["gate"][:, 40] = -INF
    check_other_heads_are_untouched(chunked_forward, x)
    check_other_heads_are_untouched(recurrent_forward, x)


# ---- token by token


@pytest.mark.parametrize("mode", list(InferenceMode))
@pytest.mark.parametrize("case", CASES[::3], ids=id_of)
def test_recurrent_forward(case: Case, mode: InferenceMode, seed: int) -> None:
    x = case.inputs(seed, **GPU)
    check(case, *recurrent_forward(x, mode), x, BOUND, STATE_BOUND)


@pytest.mark.parametrize("case", ONE_GATE[::4] + SEVERAL + STATES[::3], ids=id_of)
def test_fused_decode(case: Case, seed: int) -> None:
    x = case.inputs(seed, beta_max=1.0, **GPU)
    check_decode(case, x, BOUND, 1e-4)  # inverting softplus to obtain the gate costs some digits


@pytest.mark.parametrize("gate", [-1e4, -INF])
@pytest.mark.parametrize("state", [0.0, INF, NAN])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_verify_and_staged_decode(gate: float, state: float, state_dtype: torch.dtype, seed: int) -> None:
    """Enough sequences that several tokens run in gdn/verify, and one token in the staged configuration of gdn/decode."""
    case = Case("verify", ((2, gate),), state=state)
    x = case.inputs(seed, B=64, T=5, Hk=8, Hv=16, beta_max=1.0, **GPU)
    x["state"] = x["state"].to(state_dtype)
    if state_dtype == torch.float32:
        check_decode(case, x, BOUND, 1e-4)
    else:  # rounded after every token
        check_decode(case, x, 1e-2, 1e-2)


# ---- Chunk steps


@pytest.mark.parametrize("case", ONE_GATE + SEVERAL + STATES, ids=id_of)
def test_chunk_steps(case: Case, seed: int) -> None:
    x = case.inputs(seed, **GPU)
    check(case, *from_chunk_steps(x), x, CHUNK_STEPS_BOUND, CHUNK_STEPS_BOUND)


@pytest.mark.parametrize("dk,dv", [(64, 64), (96, 192), (256, 256), (40, 24)])
@pytest.mark.parametrize("case", [ONE_GATE[-2], SEVERAL[2], STATES[-1], STATES[12]], ids=id_of)
def test_head_dimensions_of_chunk_steps(case: Case, dk: int, dv: int, seed: int) -> None:
    x = case.inputs(seed, device="cuda", dk=dk, dv=dv)
    check(case, *from_chunk_steps(x), x, CHUNK_STEPS_BOUND, CHUNK_STEPS_BOUND)


def test_chunk_steps_with_gates_cumulated_by_the_caller(seed: int) -> None:
    x = Case("a sum with -inf", ((20, -INF), (40, -1.0), (100, -INF))).inputs(seed, **GPU)
    out, state = from_chunk_steps(x, sum_of_the_caller(x["gate"]))
    summed = x | {"gate": gates_of_that_sum(x["gate"])}
    check(Case("", ((20, -INF), (100, -INF))), out, state, summed, CHUNK_STEPS_BOUND, CHUNK_STEPS_BOUND)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cumulated_gates(dtype: torch.dtype) -> None:
    gate = torch.full((1, 128, 3), -0.125, dtype=dtype, device="cuda")
    gate[:, 5], gate[:, 70], gate[:, 90, 1] = -INF, -1e9, NAN
    out = torch.empty(1, 128, 3, device="cuda")
    gdn_cuda.chunk_local_cumsum_bf16(gate, out, 1, 128, 3)
    expected = gate.float().clamp(min=-128).view(1, 2, 64, 3).cumsum(2).view(1, 128, 3)
    assert torch.equal(out.nan_to_num(7.0), expected.nan_to_num(7.0))  # sums of eighths are exact
    assert out[:, 90:, 1].isnan().all() and out.isnan().sum() == 38


# ---- gates from projections


@pytest.mark.parametrize("heads", [7, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gating_where_a_factor_overflows_or_underflows(heads: int, dtype: torch.dtype) -> None:
    A_log = torch.tensor([90.0, 89.0, 88.5, 80.0, 0.0, -90.0, 0.5, 60.0])[:heads].cuda()
    a = torch.tensor([-INF, -1e6, -200.0, -104.0, -95.0, -81.0, -79.0, -10.0, 0.0, 3.0, 25.0, 1e6, INF], dtype=dtype).cuda()
    a = a[:, None].expand(-1, heads).contiguous()
    zeros = torch.zeros(heads, device="cuda")
    _, gate = gdn_cuda.fused_gdn_gating(A_log, zeros, a, a, is_var_len=True)
    _, expected = reference.fused_gdn_gating(A_log.double(), zeros.double(), a.double(), a.double())
    assert not gate.isnan().any()
    too_large = expected < -3.4e38
    assert (gate[too_large] == -INF).all() and (gate[expected > -1e-46] == 0).all()
    rest = ~too_large & (expected < -1e-37)
    assert ((gate.double() - expected) / expected)[rest].abs().max() < 2e-5


def test_decode_with_an_infinite_rate(seed: int) -> None:
    """A_log = 90 and a = -200: the gate is 0, where infinity times 0 would be NaN."""
    torch.manual_seed(seed)
    q, k, v = (torch.randn(3, 1, 2, 128, device="cuda").bfloat16() for _ in range(3))
    a, A_log, zeros = torch.full((3, 1, 2), -200.0, device="cuda"), torch.full((2,), 90.0, device="cuda"), torch.zeros(2).cuda()
    pool = torch.randn(3, 2, 128, 128, device="cuda")
    undecayed = pool.clone()
    out = gdn_cuda.fused_decode(q, k, v, a, a, A_log, zeros, pool)
    expected = gdn_cuda.fused_decode(q, k, v, a, a, zeros - 90, zeros, undecayed)
    assert torch.equal(out, expected) and torch.equal(pool, undecayed) and out.isfinite().all()


@pytest.mark.skipif(PATH != "auto", reason="this is the process with GDN_PREFILL")
@pytest.mark.parametrize("path", ["mma", "recurrent"])
def test_chunked_forward_through_another_kernel(path: str) -> None:
    """In a new process, as the variable is read once per process."""
    only = "chunked or dimensions or norms or long or checkpoints or stays"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", only, __file__]
    done = subprocess.run(command, env={**os.environ, "GDN_PREFILL": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
