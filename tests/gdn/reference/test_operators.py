"""The operator-level functions without slots: dtypes, modes, gating, cumsum, transpose, the steps of the chunked form."""

import math

import pytest
import torch
from gdn_inputs import to_double
from helpers import rel_rms

from gdn_cuda.gdn.inputs import make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.reference import (
    chunk_local_cumsum,
    chunked,
    chunked_forward,
    compute_o,
    compute_u_w,
    fused_gdn_gating,
    recurrent,
    recurrent_forward,
    seq_state_update,
    transpose_to_mn_major,
)

PREFILL, DECODE, SPEC_VERIFY = 0, 1, 2
ROUNDING = {torch.bfloat16: 3e-3, torch.float16: 4e-4, torch.float32: 1e-5}
LENGTHS = [0, 65, 1, 64, 0, 130]


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("parameter_dtype", [torch.bfloat16, torch.float32])
def test_gating(shape, dtype, parameter_dtype, rng):
    a, b = (10 * torch.randn(shape, generator=rng)).to(dtype), (3 * torch.randn(shape, generator=rng)).to(dtype)
    A_log, dt_bias = (torch.randn(4, generator=rng).to(parameter_dtype) for _ in range(2))
    a.view(-1)[:3] = torch.tensor([25.0, 90.0, -90.0])
    beta, gate = fused_gdn_gating(A_log, dt_bias, a, b)
    assert beta.dtype == dtype
    assert gate.dtype == torch.float32
    for i, (x, y) in enumerate(zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)):
        raised = x + dt_bias[i % 4].item()
        softplus = raised if raised > 20 else math.log1p(math.exp(raised))
        assert gate.flatten()[i].item() == pytest.approx(-math.exp(A_log[i % 4].item()) * softplus, rel=2e-6)
        assert beta.flatten()[i].item() == pytest.approx(1 / (1 + math.exp(-y)), rel=4e-3 if dtype != torch.float32 else 1e-6)


def test_gating_gradients(rng):
    leaves = [torch.randn(4, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    leaves += [torch.randn(2, 3, 4, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(fused_gdn_gating, leaves)


def inputs(packed, seed, dtype=torch.bfloat16, **options):
    shape = {
        "Hk": 2,
        "Hv": 4,
        "dk": 16,
        "dv": 8,
        "seed": seed,
        "gate_range": (-2.0, 0.0),
        "beta_max": 2.0,
        "dtype": dtype,
    } | options
    return make_packed_gdn_inputs(LENGTHS, **shape) if packed else make_gdn_inputs(2, 70, **shape)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("state_dtype", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", [PREFILL, DECODE, SPEC_VERIFY])
def test_recurrent_forward(packed, dtype, state_dtype, mode, seed):
    x = inputs(packed, seed, dtype)
    x["state"] = None if state_dtype is None else x["state"].to(state_dtype)
    x["beta"] = x["beta"].to(torch.bfloat16)
    oracle = {n: t.double() if t is not None and t.is_floating_point() else t for n, t in x.items()}
    expected, final, steps = recurrent(**oracle, keep_steps=True)
    output, new_state = recurrent_forward(**x, inference_mode=mode)
    assert output.dtype == dtype
    assert new_state.dtype == (state_dtype or torch.float32)
    assert rel_rms(output, expected) < ROUNDING[dtype]
    assert rel_rms(new_state, steps if mode == SPEC_VERIFY else final) < ROUNDING[state_dtype or torch.float32]


@pytest.mark.parametrize("packed", [False, True])
def test_verify_starts_from_the_states_of_the_previous_verify(packed, seed):
    x = inputs(packed, seed, torch.float64)
    sequences = x["state"].shape[0]
    states = torch.randn(sequences, 4, 4, 8, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    accepted = torch.tensor([4, 0, 1, 2, -3, 3][:sequences], dtype=torch.int32)
    columns = [3, 0, 0, 1, 0, 2][:sequences]
    chosen = torch.stack([states[n, column] for n, column in enumerate(columns)])
    expected, _, steps = recurrent(**(x | {"state": chosen}), keep_steps=True)
    arguments = x | {"state": states, "inference_mode": SPEC_VERIFY}
    output, new_state = recurrent_forward(**arguments, num_accepted_tokens=accepted)
    assert torch.equal(output, expected)
    assert torch.equal(new_state, steps)
    first = recurrent_forward(**arguments)
    assert torch.equal(first[0], recurrent(**(x | {"state": states[:, 0]}))[0])
    with pytest.raises(IndexError, match="recurrent_forward: num_accepted_tokens: expected <= 4, got 5"):
        recurrent_forward(**arguments, num_accepted_tokens=accepted + 1)


def test_recurrent_forward_options(seed):
    x = inputs(False, seed, torch.float64, key_mode="unnormalized")
    output, new_state = recurrent_forward(**x, is_qk_norm=True, scale=0.3)
    expected, final, _ = recurrent(**x, use_qk_l2norm=True, scale=0.3)
    assert torch.equal(output, expected)
    assert torch.equal(new_state, final)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("asked", [None, torch.float32, torch.bfloat16])
def test_chunked_forward(packed, dtype, given, asked, seed):
    x = inputs(packed, seed, dtype, key_mode="unnormalized")
    x["state"] = None if given is None else x["state"].to(given)
    oracle = {n: t.double() if t is not None and t.is_floating_point() else t for n, t in x.items()}
    expected, final, _ = recurrent(**oracle, use_qk_l2norm=True, scale=0.3)
    output, state, checkpoints = chunked_forward(**x, use_qk_l2norm=True, scale=0.3, state_dtype=asked, checkpoint_every=64)
    stored = asked or given or torch.float32
    assert output.dtype == dtype
    assert state.dtype == checkpoints.dtype == stored
    assert rel_rms(output, expected) < ROUNDING[dtype]
    assert rel_rms(state, final) < ROUNDING[stored]
    assert checkpoints.shape == (4 if packed else 2, 4, 8, 16)


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_operators_in_fp64_have_gradients(form, seed):
    x = make_gdn_inputs(1, 5, 1, 2, 3, 2, seed=seed, gate_range=(-2.0, -0.1))
    leaves = [x[n].requires_grad_() for n in ("query", "key", "value", "state", "beta", "gate")]

    def run(query, key, value, state, beta, gate):
        if form == "recurrent":
            return recurrent_forward(query, key, value, state, beta, gate)
        return chunked_forward(query, key, value, beta, gate, state)[:2]

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("head_first", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_cumsum_in_chunks(dtype, head_first, packed, rng):
    starts = torch.tensor([0, 0, 65, 66, 130, 130, 260])
    shape = (260, 3) if packed else (2, 150, 3)
    x = -torch.rand(shape, generator=rng).to(dtype)
    expected = torch.zeros(shape, dtype=torch.float64)
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True) if packed else [(0, 150)]:
        for t in range(first, last):
            new_chunk = (t - first) % 64 == 0
            expected[..., t, :] = x[..., t, :].double() + (0 if new_chunk else expected[..., t - 1, :])
    given = x.transpose(-1, -2).contiguous() if head_first else x
    summed = chunk_local_cumsum(given, head_first, starts if packed else None)
    assert summed.dtype == torch.float32
    assert summed.shape == given.shape
    assert rel_rms(summed.transpose(-1, -2) if head_first else summed, expected) < 1e-6


def test_cumsum_of_no_tokens():
    assert chunk_local_cumsum(torch.zeros(2, 0, 3)).shape == (2, 0, 3)
    assert chunk_local_cumsum(torch.zeros(0, 3), cu_seqlens=torch.tensor([0])).shape == (0, 3)
    assert not chunk_local_cumsum(torch.ones(5, 3), cu_seqlens=torch.tensor([0, 2]))[2:].any()


@pytest.mark.parametrize("shape", [(5, 3), (2, 70, 4), (2, 3, 64, 8), (1, 1), (2, 0, 4), (0, 5, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("alignment", [4, 16, 128])
def test_mn_major(shape, dtype, alignment, rng):
    x = torch.randn(shape, generator=rng).to(dtype)
    y = transpose_to_mn_major(x, alignment)
    assert torch.equal(x, y)
    m, k = shape[-2:]
    if 0 in shape:
        return
    column = y.stride(-1) if k > 1 else y.untyped_storage().nbytes() // y.element_size() // (y.numel() // m)
    assert y.stride(-2) == 1
    assert column * y.element_size() % alignment == 0
    assert m <= column < m + alignment // y.element_size()
    whole = y.as_strided((y.numel() // m, column), (column, 1))
    assert whole.numel() * y.element_size() == y.untyped_storage().nbytes()
    assert not whole[:, m:].any()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("with_gate", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
def test_the_steps_make_up_the_chunked_form(packed, with_gate, with_state, seed):
    x = inputs(packed, seed, torch.float64)
    x["gate"] = x["gate"] if with_gate else torch.zeros_like(x["gate"])
    cu_seqlens = x.get("cu_seqlens")
    initial = x["state"] if with_state else None
    gate = chunk_local_cumsum(x["gate"], cu_seqlens=cu_seqlens) if with_gate else None
    u, w = compute_u_w(x["key"], x["value"], x["beta"], gate, cu_seqlens)
    states, final, v_new = seq_state_update(x["key"], u, w, gate, initial, cu_seqlens)
    o = compute_o(x["query"], states, x["key"], v_new, gate, cu_seqlens)
    expected, expected_final, _ = chunked(**(x | {"state": initial}))
    assert u.shape == v_new.shape == x["value"].shape
    assert w.shape == (*x["value"].shape[:-1], 16)
    assert rel_rms(o, expected) < 1e-11
    assert rel_rms(final, expected_final) < 1e-11
    steps = recurrent(**(x | {"state": initial}), keep_steps=True)[2]
    start = torch.zeros_like(x["state"]) if initial is None else initial
    if packed:
        before = [start[1], steps[63], start[2], start[3], start[5], steps[193], steps[257]]
        assert rel_rms(states, torch.stack(before)) < 1e-11
    else:
        assert rel_rms(states, torch.stack([start, steps[:, 63]], dim=1)) < 1e-11
    assert rel_rms(compute_o(x["query"], states, x["key"], v_new, gate, cu_seqlens, 0.5), 2 * expected) < 1e-11


def test_u_and_w_solve_their_triangular_system(seed):
    """(I + A) u = β v and (I + A) w = β exp(G) k, row by row."""
    x = make_gdn_inputs(1, 64, 1, 1, 8, 4, seed=seed, gate_range=(-2.0, 0.0), beta_max=2.0)
    total = x["gate"].cumsum(1)
    u, w = compute_u_w(x["key"], x["value"], x["beta"], total)
    k, v, beta, G = x["key"][0, :, 0], x["value"][0, :, 0], x["beta"][0, :, 0], total[0, :, 0]
    for i in range(64):
        left_u, left_w = u[0, i, 0].clone(), w[0, i, 0].clone()
        for j in range(i):
            a = beta[i] * (k[i] @ k[j]) * (G[i] - G[j]).exp()
            left_u += a * u[0, j, 0]
            left_w += a * w[0, j, 0]
        assert torch.allclose(left_u, beta[i] * v[i], atol=1e-12, rtol=0)
        assert torch.allclose(left_w, beta[i] * G[i].exp() * k[i], atol=1e-12, rtol=0)


@pytest.mark.parametrize("packed", [False, True])
def test_the_steps_compute_in_fp32(packed, seed):
    x = inputs(packed, seed, torch.bfloat16, gate_range=(-100.0, 0.0))
    cu_seqlens = x.get("cu_seqlens")
    gate = transpose_to_mn_major(chunk_local_cumsum(x["gate"], cu_seqlens=cu_seqlens))
    beta = transpose_to_mn_major(x["beta"])
    u, w = compute_u_w(x["key"], x["value"], beta, gate, cu_seqlens)
    states, final, v_new = seq_state_update(x["key"], u, w, gate, x["state"], cu_seqlens)
    o = compute_o(x["query"], states, x["key"], v_new, gate, cu_seqlens)
    assert {t.dtype for t in (u, w, states, final, v_new, o)} == {torch.float32}
    expected, expected_final, _ = recurrent(**to_double(x))
    assert rel_rms(o, expected) < 1e-3  # the fp32 cumsum reaches −6400 in a chunk, where fp32 resolves 5e-4
    assert rel_rms(final, expected_final) < 1e-3


def test_the_steps_of_no_tokens():
    nothing = torch.tensor([0, 0, 0])
    k, v, beta = torch.zeros(0, 1, 8), torch.zeros(0, 2, 4), torch.zeros(0, 2)
    u, w = compute_u_w(k, v, beta, None, nothing)
    states, final, v_new = seq_state_update(k, u, w, None, torch.ones(2, 2, 4, 8), nothing)
    assert compute_o(k, states, k, v_new, None, nothing).shape == v.shape
    assert states.shape == (0, 2, 4, 8)
    assert bool((final == 1).all())
