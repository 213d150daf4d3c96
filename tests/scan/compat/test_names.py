"""gdn_cuda.compat.mamba_ssm and .lrnnx: the scans' names, arguments and results, and where the peers' results are wrong."""

from __future__ import annotations

import inspect
from itertools import pairwise
from types import ModuleType
from typing import Any

import oracle
import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.compat import lrnnx, mamba_ssm

BATCH, DIM, N, L = 2, 3, 4, 7
# Parameters in the peers' sources: mamba_ssm 2.3.2, lrnnx 1.0.0.post1.
STEP = "state x dt A B C D z dt_bias dt_softplus"
BLOCK = "xz conv1d_weight conv1d_bias x_proj_weight delta_proj_weight out_proj_weight out_proj_bias A B C D delta_bias"
NORMS = "b_rms_weight c_rms_weight dt_rms_weight b_c_dt_rms_eps"
SIGNATURES: dict[ModuleType, dict[str, str]] = {
    mamba_ssm: {
        "selective_scan_fn": "u delta A B C D z delta_bias delta_softplus return_last_state",
        "selective_state_update": f"{STEP} state_batch_indices",
        "mamba_inner_fn": f"{BLOCK} B_proj_bias C_proj_bias delta_softplus checkpoint_lvl {NORMS}",
        "mamba_inner_ref": f"{BLOCK} B_proj_bias C_proj_bias delta_softplus",
    },
    lrnnx: {
        "selective_scan_fn": "u delta A B C D z delta_bias deltaA delta_softplus return_last_state discretization",
        "simplified_scan_fn": "u delta A B C deltaA return_last_state discretization",
        "s5_inner_fn": "u delta A B C D deltaA discretization conj_sym",
        "s7_scan_fn": "u A B C bias return_last_state",
        "s7_inner_fn": "hidden_states in_proj_weight x_proj_weight gate_proj_weight d_state base_params",
        "rglru_scan_fn": "u delta A return_last_state",
        "selective_state_update": f"{STEP} deltaA state_batch_indices discretization",
        "selective_state_update_ref": f"{STEP} deltaA discretization",
        "simplified_state_update": "state x dt A B C D deltaA discretization conj_sym",
    },
}


@pytest.mark.parametrize(("peer", "name"), [(peer, name) for peer in SIGNATURES for name in SIGNATURES[peer]])
def test_arguments_have_the_peers_names_and_order(peer: ModuleType, name: str) -> None:
    assert name in peer.__all__
    assert list(inspect.signature(getattr(peer, name)).parameters) == SIGNATURES[peer][name].split()
    plain = f"{name.removesuffix('_ref').removesuffix('_fn')}_ref"
    assert plain in peer.__all__


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)


def inputs(rng: torch.Generator, constant_b: bool = False) -> dict[str, Tensor]:
    rows, columns = (BATCH, DIM, L), (BATCH, N, L)
    return {
        "u": draw(rng, *rows), "delta": draw(rng, *rows).abs(), "A": -draw(rng, DIM, N).abs() - 0.1,
        "B": draw(rng, DIM, N) if constant_b else draw(rng, *columns), "C": draw(rng, *columns), "D": draw(rng, DIM),
        "z": draw(rng, *rows), "delta_bias": draw(rng, DIM).abs(),
    }  # fmt: skip


@pytest.mark.parametrize("constant_b", [False, True])
def test_selective_scans(constant_b: bool, rng: torch.Generator) -> None:
    """All arguments in their order; the last state contains a constant B, which mamba_ssm's lacks."""
    x = inputs(rng, constant_b)
    expected = oracle.selective_scan(**x, delta_softplus=True)
    for function in (mamba_ssm.selective_scan_fn, mamba_ssm.selective_scan_ref):
        for a, b in zip(function(*x.values(), True, True), expected, strict=True):
            assert rel_rms(a, b) < 1e-5
    other = draw(rng, BATCH, DIM, L).abs()
    expected = oracle.selective_scan(**x, delta_a=other, delta_softplus=True, discretization="bilinear")
    for function in (lrnnx.selective_scan_fn, lrnnx.selective_scan_ref):
        for a, b in zip(function(*x.values(), other, True, True, "bilinear"), expected, strict=True):
            assert rel_rms(a, b) < 1e-5


@pytest.mark.parametrize("discretization", oracle.DISCRETIZATIONS)
def test_lrnnx_steps_are_those_of_the_scan(discretization: str, rng: torch.Generator) -> None:
    """lrnnx's own differ for bilinear, and for rglru with a B that varies."""
    x = inputs(rng)
    x["A"] = torch.sigmoid(x["A"]) if discretization == "rglru" else x["A"]
    other = draw(rng, BATCH, DIM, L).abs()
    out, last = oracle.selective_scan(**x, delta_a=other, delta_softplus=True, discretization=discretization)
    state, same = torch.zeros(BATCH, DIM, N), torch.zeros(BATCH, DIM, N)
    for t in range(L):
        at = {name: x[name][..., t] for name in ("u", "delta", "B", "C", "z")}
        first = (at["u"], at["delta"], x["A"], at["B"], at["C"], x["D"], at["z"], x["delta_bias"], True, other[..., t])
        y = lrnnx.selective_state_update(state, *first, torch.arange(BATCH), discretization)
        assert rel_rms(y, out[..., t]) < 1e-5
        assert torch.equal(lrnnx.selective_state_update_ref(same, *first, discretization), y)
    assert rel_rms(state, last) < 1e-5 and torch.equal(state, same)


def test_mamba_ssm_step(rng: torch.Generator) -> None:
    """D and dt_bias in bf16, as its kernel takes them; slots, and a negative one."""
    x = inputs(rng)
    x["D"], x["delta_bias"] = x["D"].bfloat16(), x["delta_bias"].bfloat16()
    start = draw(rng, 5, DIM, N)
    slots = torch.tensor([3, -1])
    state = start.clone()
    step = [x["u"], x["delta"], x["A"], x["B"], x["C"], x["D"], x["z"], x["delta_bias"]]
    step = [t if t.dim() < 3 else t[..., 0] for t in step]
    y = mamba_ssm.selective_state_update(state, *step, True, slots)
    alone = {name: t[:1, ..., :1] if t.dim() == 3 else t for name, t in x.items()}
    out, last = oracle.selective_scan(**alone, delta_softplus=True, initial_state=start[3:4])
    assert rel_rms(y[:1], out[..., 0]) < 1e-5 and not y[1].any()
    assert rel_rms(state[3:4], last) < 1e-5
    assert all(torch.equal(state[n], start[n]) for n in (0, 1, 2, 4))


# ---- LRU and S5

H, P = 3, 5
SIMPLIFIED = ("bilinear", "zoh", "dirac")


def system(rng: torch.Generator) -> dict[str, Tensor]:
    A = draw(rng, P, dtype=torch.complex64)
    return {
        "delta": draw(rng, BATCH, P, L).abs(), "A": torch.complex(-A.real.abs() - 0.1, A.imag),
        "B": draw(rng, P, H, dtype=torch.complex64), "C": draw(rng, H, P, dtype=torch.complex64),
    }  # fmt: skip


def literal_simplified(u: Tensor, x: dict[str, Tensor], other: Tensor, discretization: str) -> tuple[Tensor, Tensor]:
    delta, A, B, C = (oracle.wide(x[name]) for name in ("delta", "A", "B", "C"))
    state, outputs = A.new_zeros(BATCH, P), []
    for t in range(L):
        decay, factor = oracle.transition(discretization, delta[..., t], oracle.wide(other)[..., t], A)
        state = decay * state + factor * (oracle.wide(u)[..., t].to(A.dtype) @ B.T)
        outputs.append(state @ C.T)
    return torch.stack(outputs, -1), state


@pytest.mark.parametrize("discretization", SIMPLIFIED)
def test_simplified_scans_and_steps(discretization: str, rng: torch.Generator) -> None:
    x, u, other = system(rng), draw(rng, BATCH, H, L, dtype=torch.complex64), draw(rng, BATCH, P, L).abs()
    expected, last = literal_simplified(u, x, other, discretization)
    for a, b in zip(lrnnx.simplified_scan_fn(u, *x.values(), other, True, discretization), (expected, last), strict=True):
        assert rel_rms(a, b) < 1e-5
    D = draw(rng, H)
    y = lrnnx.s5_inner_fn(u, *x.values(), D, other, discretization, False)
    assert rel_rms(y, expected.real + D.double()[:, None] * u.real) < 1e-5

    real, square = u.real.contiguous(), draw(rng, H, H)
    expected, last = literal_simplified(real, x, other, discretization)
    state = torch.zeros(BATCH, P, dtype=torch.complex64)
    for t in range(L):
        at = (real[..., t], x["delta"][..., t], x["A"], x["B"], x["C"])
        y = lrnnx.simplified_state_update(state, *at, square, other[..., t], discretization, True)
        assert rel_rms(y, 2 * expected[..., t].real + real[..., t].double() @ square.double().T) < 1e-5
    assert rel_rms(state, last) < 1e-5


# ---- S7 and RG-LRU


def literal_s7(u: Tensor, A: Tensor, B: Tensor, C: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    state, outputs = torch.zeros(A.shape[:2], dtype=torch.float64), []
    for t in range(u.shape[2]):
        driven = torch.einsum("bnh,bh->bn", B[..., t], u[..., t]) + bias[..., t]
        state = (1 - 1 / (A[..., t] ** 2 + 0.5)) * state + driven
        outputs.append(torch.einsum("bhn,bn->bh", C[..., t], state))
    return torch.stack(outputs, -1), state


def test_s7(rng: torch.Generator) -> None:
    u, A, bias = draw(rng, BATCH, H, L), draw(rng, BATCH, N, L), draw(rng, BATCH, N, L)
    B, C = draw(rng, BATCH, N, H, L), draw(rng, BATCH, H, N, L)
    expected = literal_s7(*map(oracle.wide, (u, A, B, C, bias)))
    for a, b in zip(lrnnx.s7_scan_fn(u, A, B, C, bias, True), expected, strict=True):
        assert rel_rms(a, b) < 1e-5


def test_the_s7_layer(rng: torch.Generator) -> None:
    x, sizes = draw(rng, BATCH, L, H), [N, H * N, H * N, H, N]
    weights = [draw(rng, H, H), 0.3 * draw(rng, sum(sizes), H), draw(rng, H, H)]
    base = draw(rng, N)
    u = x.double() @ weights[0].double().T
    offsets = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    A, B, C, D, bias = ((u @ weights[1].double().T)[..., a:b] for a, b in pairwise(offsets))
    B = B.reshape(BATCH, L, H, N).permute(0, 3, 2, 1)
    C = C.reshape(BATCH, L, H, N).permute(0, 2, 3, 1)
    y = literal_s7(u.mT, (A + base.double()).mT, B, C, bias.mT)[0].mT + D * u
    gate = torch.sigmoid(torch.nn.functional.gelu(y) @ weights[2].double().T)
    assert rel_rms(lrnnx.s7_inner_fn(x, *weights, N, base), gate * y + x.double()) < 1e-5


def test_rglru(rng: torch.Generator) -> None:
    u, delta, A = draw(rng, BATCH, DIM, L), draw(rng, BATCH, DIM, L).abs(), torch.sigmoid(draw(rng, DIM, N))
    one: dict[str, Any] = {"B": torch.ones(DIM, N), "C": torch.ones(DIM, N), "discretization": "rglru"}
    expected = oracle.selective_scan(u, delta, A, **one)
    for a, b in zip(lrnnx.rglru_scan_fn(u, delta, A, True), expected, strict=True):
        assert rel_rms(a, b) < 1e-5
