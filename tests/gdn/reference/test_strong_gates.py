"""Gates down to -inf in the reference: in both forms a reset erases everything before it exactly."""

from __future__ import annotations

import pytest
import torch
from gdn_inputs import to_double
from helpers import rel_rms
from strong_gates import CASES, INF, NAN, ONE_GATE, SEVERAL, Case, check, check_other_heads_are_untouched, id_of, oracle

from gdn_cuda.gdn.inputs import make_gdn_inputs
from gdn_cuda.reference import chunk_local_cumsum, chunked, fused_gdn_gating, recurrent, recurrent_forward

FORMS = [recurrent, chunked]
SMALL = {"dk": 8, "dv": 4}


def test_the_oracle_restarts_from_zero_at_a_reset(seed):
    case = Case("nan before a reset", ((31, -INF), (40, -1e6)), state=NAN, token=("value", 30, INF))
    x = to_double(case.inputs(seed, **SMALL))
    out, state = oracle(x)
    rest = {name: t if name == "state" else t[:, 31:] for name, t in x.items()}
    rest["gate"] = rest["gate"].clone()
    rest["gate"][:, 0] = 0
    fresh = oracle(rest | {"state": torch.zeros_like(x["state"])})
    assert torch.equal(out[:, 31:], fresh[0]) and torch.equal(state, fresh[1])
    assert not out[:, :31].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES, ids=id_of)
def test_strong_gates(dtype, case, seed):
    x = case.inputs(seed, dtype=dtype, **SMALL)
    bound = 1e-11 if dtype == torch.float64 else 2e-5
    for form in FORMS:
        out, state, _ = form(**x)
        check(case, out, state, x, bound, bound)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ONE_GATE[::3] + SEVERAL, ids=id_of)
def test_gradients_are_finite_and_stop_at_a_reset(form, case, seed):
    x = {name: t.requires_grad_() for name, t in case.inputs(seed, dtype=torch.float64, **SMALL).items()}
    out, state, _ = form(**x)
    (out[:, -20:].square().sum() + state.square().sum()).backward()
    assert all(bool(t.grad.isfinite().all()) for t in x.values())
    resets = [token for token, gate in case.gates if gate < -1000 and token < 130]
    if resets:
        assert not x["state"].grad.any() and not x["value"].grad[:, : max(resets)].any()


@pytest.mark.parametrize("form", FORMS)
def test_gradients_after_a_reset_equal_those_of_a_fresh_start(form, seed):
    x = Case("reset", ((40, -INF),)).inputs(seed, dtype=torch.float64, **SMALL)
    rest = {name: t.clone() if name == "state" else t[:, 40:].clone() for name, t in x.items()}
    rest["gate"][:, 0] = 0
    rest["state"].zero_()
    gradients = []
    for inputs in (x, rest):
        leaves = {name: t.requires_grad_() for name, t in inputs.items()}
        out, state, _ = form(**leaves)
        (out[:, -110:].square().sum() + state.square().sum()).backward()
        gradients.append(leaves)
    for name in ("query", "key", "value", "beta"):
        assert rel_rms(gradients[0][name].grad[:, 40:], gradients[1][name].grad) < 1e-11, name
    assert rel_rms(gradients[0]["gate"].grad[:, 41:], gradients[1]["gate"].grad[:, 1:]) < 1e-10
    assert not gradients[0]["gate"].grad[:, 40].any()


@pytest.mark.parametrize("form", FORMS)
def test_nan_stays_in_its_sequence_and_head(form, seed):
    x = make_gdn_inputs(T=100, Hk=1, Hv=2, seed=seed, gate_range=(-1.0, 0.0), **SMALL)
    check_other_heads_are_untouched(lambda x: form(**x)[:2], x)


def test_cumulated_gates_keep_full_precision_after_a_reset():
    gate = torch.full((1, 128, 1), -0.1)
    gate[:, 5], gate[:, 70], gate[:, 90] = -INF, -1e9, NAN
    summed = chunk_local_cumsum(gate)
    assert (summed[0, 5, 0], summed[0, 64, 0]) == (pytest.approx(-128.5), pytest.approx(-0.1))
    assert torch.allclose(summed[:, 6:64].diff(dim=1), torch.tensor(-0.1), atol=2e-5)
    assert summed[:, :90].isfinite().all() and summed[:, 90:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gating_where_a_factor_overflows_or_underflows(dtype):
    """-exp(A_log) softplus(x) where a factor is infinite or 0: fp32 against fp64, and fp64 against a sum of logarithms."""
    A_log, x = (
        torch.tensor([90.0, 90.0, 90.0, 80.0, 0.0, 90.0, -90.0]),
        torch.tensor([-200.0, -80.0, -2.0, -90.0, -95.0, 5.0, 30.0]),
    )
    expected = -(A_log.double() + torch.nn.functional.softplus(x.double()).log()).exp()
    A_log, x = A_log.to(dtype).requires_grad_(), x[None].to(dtype).requires_grad_()
    gate = fused_gdn_gating(A_log, torch.zeros_like(A_log), x, x)[1]
    fits = expected.abs() < torch.finfo(dtype).max
    assert rel_rms(gate[0][fits], expected[fits]) < 2e-5
    assert ((gate[0].double() - expected).abs() <= 2e-5 * expected.abs() + 1e-44)[fits].all() and (gate[0][~fits] == -INF).all()
    gate[0][fits].sum().backward()
    assert A_log.grad[fits].isfinite().all() and not x.grad[0, fits].isnan().any()
    assert fused_gdn_gating(A_log, A_log, torch.full_like(x, -INF), x)[1].abs().max() == 0


def _raw_gates(seed, T=6, Hv=2):
    inputs = {name: y for name, y in to_double(make_gdn_inputs(T=T, Hk=1, Hv=Hv, seed=seed, **SMALL)).items() if name != "gate"}
    rng = torch.Generator().manual_seed(seed)
    inputs["gate"] = torch.randn(1, T, Hv, generator=rng, dtype=torch.float64)
    return inputs, torch.zeros(Hv, dtype=torch.float64), torch.full((Hv,), 0.1, dtype=torch.float64)


@pytest.mark.parametrize("reset", ["a", "A_log", "dt_bias"])
def test_gradients_of_raw_gates_stop_at_a_reset(reset, seed):
    """With an infinite A_log, dt_bias or a, the gate is −∞, and the gradients are those of a very strong finite gate."""
    found = {}
    for size in (INF, 1e5 if reset != "A_log" else 12.0):
        x, A_log, dt_bias = _raw_gates(seed)
        if reset == "a":
            x["gate"][0, 3, 0] = size
        else:
            (A_log if reset == "A_log" else dt_bias)[0] = size
            x["gate"][..., 0] = x["gate"][..., 0].abs()
        leaves = [x["gate"].requires_grad_(), A_log.requires_grad_(), dt_bias.requires_grad_(), x["state"].requires_grad_()]
        out, state = recurrent_forward(**x, A_log=A_log, dt_bias=dt_bias)
        found[size] = torch.autograd.grad(out.square().sum() + state.square().sum(), leaves)
    for mine, large in zip(*found.values(), strict=True):
        assert mine.isfinite().all() and rel_rms(mine, large) < 1e-12


def test_gradients_of_a_linear_gate_of_0(seed):
    """They equal those of its logarithm, which is −∞."""
    x, _, _ = _raw_gates(seed)
    x["gate"] = torch.sigmoid(x["gate"])
    x["gate"][0, 3, 0] = 0.0
    leaves = [x[name].requires_grad_() for name in ("gate", "state", "value")]
    out, state = recurrent_forward(**x, gate_is_linear=True)
    mine = torch.autograd.grad(out.square().sum() + state.square().sum(), leaves)
    out, state, _ = recurrent(**(x | {"gate": x["gate"].log()}))
    theirs = torch.autograd.grad(out.square().sum() + state.square().sum(), leaves[1:])
    assert mine[0].isfinite().all() and mine[0][0, 3, 0] == 0
    assert all(torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(mine[1:], theirs, strict=True))
