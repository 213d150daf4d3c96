"""The two forms of the recurrence against each other, against an independent loop, and against closed forms."""

import math

import numpy as np
import pytest
import torch
from gdn_inputs import take_sequence, to_double
from helpers import rel_rms

from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.reference import chunked, recurrent

FP64_TOLERANCE = 1e-11
LOOSEST_TOLERANCE = 5e-3  # the largest error that any kernel may have: a wrong recurrence must have a larger one
GATES = [(0.0, 0.0), (-0.1, 0.0), (-5.0, 0.0), (-100.0, 0.0), (-100.0, -100.0)]


def loop(query, key, value, beta, gate, state, scale, undecayed_prediction=False, head_of=lambda h, ratio: h // ratio):
    """The recurrence element by element on numpy arrays; `undecayed_prediction` and `head_of` make it wrong on purpose."""
    q, k, v, b, g = (x.double().numpy() for x in (query, key, value, beta, gate))
    s = state.double().numpy().copy()
    (B, T, Hk, dk), (Hv, dv) = k.shape, v.shape[2:]
    out = np.zeros((B, T, Hv, dv))
    for n in range(B):
        for h in range(Hv):
            source = head_of(h, Hv // Hk)
            for t in range(T):
                decay = math.exp(g[n, t, h])
                for i in range(dv):
                    row = [float(x) for x in s[n, h, i]]
                    seen = row if undecayed_prediction else [decay * x for x in row]
                    row = [decay * x for x in row]
                    predicted = sum(seen[j] * k[n, t, source, j] for j in range(dk))
                    correction = b[n, t, h] * (v[n, t, h, i] - predicted)
                    row = [row[j] + correction * k[n, t, source, j] for j in range(dk)]
                    out[n, t, h, i] = scale * sum(row[j] * q[n, t, source, j] for j in range(dk))
                    s[n, h, i] = row
    return torch.from_numpy(out), torch.from_numpy(s)


def assert_close(got, expected, tolerance):
    for x, y in zip(got[:2], expected[:2], strict=True):
        assert rel_rms(x, y) <= tolerance


def test_rel_rms_is_infinite_for_nan_and_wrong_shapes():
    x = torch.tensor([3.0, 4.0])
    assert rel_rms(x, x) == 0
    assert rel_rms(x * 1.01, x) == pytest.approx(0.01, rel=1e-5)
    assert rel_rms(x, 0 * x) == 5
    assert rel_rms(x / torch.tensor([1.0, 0.0]), x) == rel_rms(x * torch.nan, x) == rel_rms(x[None], x) == math.inf


@pytest.mark.parametrize("form", [recurrent, chunked])
@pytest.mark.parametrize("key_mode", KEY_MODES)
@pytest.mark.parametrize("gates", GATES)
def test_matches_an_independent_loop(form, key_mode, gates, seed):
    beta_max = 0.05 if key_mode == "unnormalized" else 2.0
    x = make_gdn_inputs(2, 6, 2, 4, 5, 3, seed=seed, gate_range=gates, beta_max=beta_max, key_mode=key_mode)
    expected = loop(**x, scale=5**-0.5)
    options = {"chunk": 4} if form is chunked else {}
    assert_close(form(**x, **options), expected, 1e-13)


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("key_mode", KEY_MODES[:4])
@pytest.mark.parametrize("beta_max", [1.0, 2.0])
def test_the_chunked_form_equals_the_recurrence(gates, key_mode, beta_max, seed):
    x = make_gdn_inputs(2, 199, 1, 2, 24, 16, seed=seed, gate_range=gates, beta_max=beta_max, key_mode=key_mode)
    assert_close(chunked(**x), recurrent(**x), FP64_TOLERANCE)


@pytest.mark.parametrize("T", [1, 2, 63, 64, 65, 127, 128, 129])
def test_the_chunked_form_equals_the_recurrence_at_odd_lengths(T, seed):
    x = make_gdn_inputs(1, T, 2, 4, 16, 8, seed=seed, gate_range=(-3.0, 0.0), beta_max=2.0, key_mode="parallel")
    assert_close(chunked(**x), recurrent(**x), FP64_TOLERANCE)


def test_the_chunked_form_equals_the_recurrence_over_several_groups_of_chunks(seed):
    x = make_gdn_inputs(2, 32 * 4 * 2 + 7, 1, 2, 8, 8, seed=seed, gate_range=(-1.0, 0.0), beta_max=2.0)
    output, final, checkpoints = chunked(**x, chunk=4, checkpoint_every=12)
    expected_output, expected_final, steps = recurrent(**x, keep_steps=True)
    assert rel_rms(output, expected_output) <= FP64_TOLERANCE
    assert rel_rms(final, expected_final) <= FP64_TOLERANCE
    assert rel_rms(checkpoints, steps[:, 11::12].flatten(0, 1)) <= FP64_TOLERANCE


@pytest.mark.parametrize("heads", [(1, 1), (1, 8), (2, 6), (3, 3), (4, 8)])
def test_each_group_of_value_heads_reads_its_key_head(heads, seed):
    Hk, Hv = heads
    x = make_gdn_inputs(1, 70, Hk, Hv, 8, 8, seed=seed, gate_range=(-1.0, 0.0))
    for form in (recurrent, chunked):
        output, final, _ = form(**x)
        for h in range(Hv):
            source = h // (Hv // Hk)
            alone = {
                "query": x["query"][:, :, source, None],
                "key": x["key"][:, :, source, None],
                "value": x["value"][:, :, h, None],
            }
            alone |= {"beta": x["beta"][:, :, h, None], "gate": x["gate"][:, :, h, None], "state": x["state"][:, h, None]}
            assert_close((output[:, :, h, None], final[:, h, None]), recurrent(**alone), FP64_TOLERANCE)


@pytest.mark.parametrize("key_mode", ["repeated", "parallel", "random"])
def test_a_recurrence_that_predicts_with_the_undecayed_state_is_rejected(key_mode, seed):
    x = make_gdn_inputs(2, 12, 1, 2, 4, 4, seed=seed, gate_range=(-2.0, -1.0), key_mode=key_mode)
    wrong = loop(**x, scale=0.5, undecayed_prediction=True)
    for form in (recurrent, chunked):
        output, final, _ = form(**x)
        assert_close((output, final), loop(**x, scale=0.5), 1e-13)
        assert rel_rms(wrong[0], output) > 10 * LOOSEST_TOLERANCE
        assert rel_rms(wrong[1], final) > 2 * LOOSEST_TOLERANCE  # at least 0.02 for 300 seeds


def test_interleaved_key_heads_are_rejected(seed):
    x = make_gdn_inputs(1, 8, 2, 4, 4, 4, seed=seed, gate_range=(-1.0, 0.0))
    wrong = loop(**x, scale=0.5, head_of=lambda h, ratio: h % 2)
    assert rel_rms(wrong[0], recurrent(**x)[0]) > 10 * LOOSEST_TOLERANCE


@pytest.mark.parametrize("form", [recurrent, chunked])
@pytest.mark.parametrize("cu_dtype", [torch.int32, torch.int64])
def test_a_packed_batch_has_the_bits_of_each_sequence_alone(form, cu_dtype, seed):
    lengths = [0, 1, 64, 0, 65, 3, 130, 0]
    x = make_packed_gdn_inputs(
        lengths, cu_dtype=cu_dtype, Hk=2, Hv=4, dk=16, dv=8, seed=seed, dtype=torch.bfloat16, beta_max=2.0
    )
    output, final, _ = form(**x)
    assert output.shape == x["value"].shape
    for n, (first, last) in enumerate(zip(x["cu_seqlens"][:-1], x["cu_seqlens"][1:], strict=True)):
        alone_output, alone_final, _ = form(**take_sequence(x, n))
        assert torch.equal(output[first:last], alone_output[0])
        assert torch.equal(final[n], alone_final[0])
        if lengths[n] == 0:
            assert torch.equal(final[n], x["state"][n])


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_tokens_after_the_last_sequence_give_zero(form, seed):
    x = make_packed_gdn_inputs([5, 4], Hk=1, Hv=2, dk=8, dv=8, seed=seed)
    longer = {n: t if n in ("state", "cu_seqlens") else torch.cat([t, t[:3] * torch.nan]) for n, t in x.items()}
    output, final, _ = form(**longer)
    assert torch.equal(output[:9], form(**x)[0])
    assert torch.equal(final, form(**x)[1])
    assert not output[9:].any()


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_malformed_offsets_are_refused(form, seed):
    x = make_packed_gdn_inputs([5, 4], Hk=1, Hv=2, dk=8, dv=8, seed=seed)
    for offsets in ([0, 5, 10], [0, 6, 5], [1, 5, 9]):
        with pytest.raises(ValueError, match="cu_seqlens: expected offsets"):
            form(**(x | {"cu_seqlens": torch.tensor(offsets)}))


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_batches_of_no_sequences_and_no_tokens(form, seed):
    x = make_gdn_inputs(2, 0, 1, 2, 8, 4, seed=seed)
    output, final, _ = form(**x)
    assert output.shape == (2, 0, 2, 4)
    assert torch.equal(final, x["state"])
    x["state"] = None
    assert not form(**x)[1].any()
    none = make_packed_gdn_inputs([], Hk=1, Hv=2, dk=8, dv=4, seed=seed)
    assert form(**none)[0].shape == (0, 2, 4)
    assert form(**none)[1].shape == (0, 2, 4, 8)
    assert recurrent(**none, keep_steps=True)[2].shape == (0, 2, 4, 8)
    batch = make_gdn_inputs(0, 5, 1, 2, 8, 4, seed=seed)
    assert form(**batch)[0].shape == (0, 5, 2, 4)


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_a_missing_state_is_a_zero_state(form, seed):
    x = make_gdn_inputs(2, 70, 1, 2, 8, 4, seed=seed, gate_range=(-1.0, 0.0))
    zero = x | {"state": torch.zeros_like(x["state"])}
    none = x | {"state": None}
    assert_close(form(**none), form(**zero), 0.0)


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_the_inputs_are_not_modified(form, seed):
    x = make_gdn_inputs(2, 70, 1, 2, 8, 4, seed=seed)
    before = {name: t.clone() for name, t in x.items()}
    form(**x, use_qk_l2norm=True)
    assert all(torch.equal(t, before[name]) for name, t in x.items())


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_scale(form, seed):
    x = make_gdn_inputs(1, 70, 1, 2, 16, 4, seed=seed, gate_range=(-1.0, 0.0))
    output, final, _ = form(**x)
    assert_close(form(**x, scale=0.25), (output, final), 1e-15)
    assert_close(form(**x, scale=3.0), (12 * output, final), 1e-14)
    assert not form(**x, scale=0.0)[0].any()


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_l2norm(form, seed):
    x = make_gdn_inputs(1, 70, 1, 2, 16, 4, seed=seed, gate_range=(-1.0, 0.0), key_mode="unnormalized")
    x["key"][:, ::5] = 0
    x["key"][:, 1::5] *= 1e-3  # so small that the 1e-6 under the root matters
    normal = {
        n: torch.stack([r / math.sqrt((r @ r).item() + 1e-6) for r in x[n].reshape(-1, 16)]).view_as(x[n])
        for n in ("query", "key")
    }
    assert_close(form(**x, use_qk_l2norm=True), form(**(x | normal)), 1e-13)
    assert rel_rms(form(**x, scale=0.25)[0], form(**(x | normal))[0]) > LOOSEST_TOLERANCE


@pytest.mark.parametrize("form", [recurrent, chunked])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("key_mode", KEY_MODES[:4])
def test_arithmetic_is_in_fp32_or_the_requested_precision(form, dtype, key_mode, seed):
    x = make_gdn_inputs(2, 130, 1, 2, 32, 16, dtype, seed=seed, beta_max=2.0, key_mode=key_mode)
    expected = recurrent(**to_double(x))
    output, final, _ = form(**x)
    assert output.dtype == final.dtype == torch.float32
    assert_close((output, final), expected, 2e-5)
    output, final, _ = form(**x, compute_dtype=torch.float64)
    assert output.dtype == final.dtype == torch.float64
    assert_close((output, final), expected, FP64_TOLERANCE)


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_strided_views(form, seed):
    x = make_gdn_inputs(2, 70, 2, 4, 8, 8, torch.bfloat16, seed=seed)
    row = torch.cat([x[n].flatten(2) for n in ("query", "key", "value")], dim=-1)
    views = [part.unflatten(2, (-1, 8)) for part in row.split([16, 16, 32], dim=-1)]
    assert not views[0].is_contiguous()
    sliced = x | dict(zip(("query", "key", "value"), views, strict=True))
    assert_close(form(**sliced), form(**x), 0.0)


def test_weak_gates_after_strong_ones_keep_full_precision(seed):
    """Summed in fp32, the gates of the second half would be known to 5e-4 only."""
    x = make_gdn_inputs(1, 128, 1, 2, 16, 8, torch.float32, seed=seed, gate_range=(-0.1, -0.1))
    x["gate"].view(1, 2, 64, 2)[:, :, :32] = -100.1
    expected = recurrent(**to_double(x))
    assert_close(chunked(**x), expected, 2e-6)


@pytest.mark.parametrize("form", [recurrent, chunked])
@pytest.mark.parametrize("key_mode", KEY_MODES[:4])
@pytest.mark.parametrize("strongest", [0.0, -20.0, -88.0, -100.0, -1e4])
def test_long_products_of_gates_do_not_overflow(form, key_mode, strongest, seed):
    x = make_gdn_inputs(
        1, 200, 1, 2, 16, 16, torch.float32, seed=seed, gate_range=(strongest, 0.0), beta_max=2.0, key_mode=key_mode
    )
    leaves = {name: t.requires_grad_() for name, t in x.items()}
    output, final, _ = form(**leaves)
    assert bool(output.isfinite().all())
    assert bool(final.isfinite().all())
    (output.sum() + final.sum()).backward()
    assert all(bool(t.grad.isfinite().all()) for t in leaves.values())


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_orthonormal_keys_store_and_retrieve_exactly(form, rng):
    """With beta = 1 and no decay, S = Σ v kᵀ after n orthonormal keys, so a query equal to key j returns value j."""
    n = 16
    keys = torch.linalg.qr(torch.randn(n, n, generator=rng, dtype=torch.float64))[0]
    values = torch.randn(1, n, 1, 5, generator=rng, dtype=torch.float64)
    key = keys[None, :, None]
    ones, none = torch.ones(1, n, 1, dtype=torch.float64), torch.zeros(1, n, 1, dtype=torch.float64)
    output, final, _ = form(key, key, values, ones, none, scale=1.0)
    assert rel_rms(output, values) < 1e-13
    assert rel_rms(final[0, 0], values[0, :, 0].T @ keys) < 1e-13
    asked, unchanged, _ = form(key.flip(1), key, values, 0 * ones, none, final, scale=1.0)
    assert rel_rms(asked, values.flip(1)) < 1e-13
    assert rel_rms(unchanged, final) < 1e-13


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_a_repeated_key_keeps_the_last_value(form, seed):
    x = make_gdn_inputs(1, 100, 1, 1, 8, 8, seed=seed, key_mode="repeated")
    x |= {"beta": torch.ones_like(x["beta"]), "gate": torch.zeros_like(x["gate"]), "state": None}
    output, _, _ = form(x["key"], *(x[n] for n in ("key", "value", "beta", "gate")), scale=1.0)
    assert rel_rms(output, x["value"]) < 1e-12


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_a_gate_of_minus_100_erases_the_state(form, seed):
    x = make_gdn_inputs(1, 70, 1, 2, 16, 16, torch.float32, seed=seed, gate_range=(-100.0, -100.0))
    output, final, _ = form(**x, scale=1.0)
    k, v = (x["key"].expand(-1, -1, 2, -1), x["value"])
    written = x["beta"][..., None] * v
    assert rel_rms(output, written * (k * x["query"]).sum(-1, keepdim=True)) < 1e-6
    assert rel_rms(final, written[:, -1, :, :, None] * k[:, -1, :, None, :]) < 1e-6


def test_states_after_every_token(seed):
    x = make_packed_gdn_inputs([3, 0, 5], Hk=1, Hv=2, dk=8, dv=4, seed=seed, gate_range=(-1.0, 0.0))
    _, final, steps = recurrent(**x, keep_steps=True)
    assert torch.equal(steps[[2, 7]], final[[0, 2]])
    for n, (first, last) in enumerate([(0, 3), (3, 3), (3, 8)]):
        whole = take_sequence(x, n)
        padded_steps = recurrent(**whole, keep_steps=True)[2]
        assert torch.equal(padded_steps[0], steps[first:last])
        for t in range(last - first):
            part = {name: tensor if name == "state" else tensor[:, : t + 1] for name, tensor in whole.items()}
            assert torch.equal(recurrent(**part)[1][0], steps[first + t])


def test_checkpoints(seed):
    lengths = [64, 0, 63, 200, 128, 129]
    x = make_packed_gdn_inputs(lengths, Hk=1, Hv=2, dk=8, dv=4, seed=seed, gate_range=(-1.0, 0.0))
    steps = recurrent(**x, keep_steps=True)[2]
    for every in (64, 128):
        rows = [
            int(first) + end - 1
            for first, length in zip(x["cu_seqlens"], lengths, strict=False)
            for end in range(every, length + 1, every)
        ]
        checkpoints = chunked(**x, checkpoint_every=every)[2]
        assert rel_rms(checkpoints, steps[rows]) <= FP64_TOLERANCE
        assert checkpoints.shape[0] == sum(length // every for length in lengths)
    assert chunked(**x)[2].shape == (0, 2, 4, 8)
    with pytest.raises(ValueError, match="checkpoint_every: expected a multiple of 64, got 96"):
        chunked(**x, checkpoint_every=96)


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_a_sequence_in_two_parts_equals_the_unsplit_sequence(form, seed):
    x = make_gdn_inputs(2, 150, 1, 2, 16, 8, seed=seed, gate_range=(-2.0, 0.0), beta_max=2.0)
    state = x.pop("state")
    output, final, _ = form(**x, state=state)
    first, middle, _ = form(**{n: t[:, :71] for n, t in x.items()}, state=state)
    second, last, _ = form(**{n: t[:, 71:] for n, t in x.items()}, state=middle)
    assert_close((torch.cat([first, second], 1), last), (output, final), FP64_TOLERANCE)


@pytest.mark.parametrize("form", [recurrent, chunked])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("l2norm", [False, True])
def test_gradients(form, packed, l2norm, seed):
    options = {"use_qk_l2norm": l2norm} | ({"chunk": 4} if form is chunked else {})
    shape = {"Hk": 1, "Hv": 2, "dk": 3, "dv": 2, "seed": seed, "gate_range": (-2.0, -0.1), "beta_max": 2.0}
    x = make_packed_gdn_inputs([5, 0, 2], **shape) if packed else make_gdn_inputs(1, 6, **shape)
    cu_seqlens = x.pop("cu_seqlens", None)
    leaves = [t.requires_grad_() for t in x.values()]

    def run(*tensors):
        return form(*tensors, cu_seqlens, **options)[:2]

    assert torch.autograd.gradcheck(run, leaves, fast_mode=False)


def test_both_forms_have_the_same_gradients(seed):
    x = make_gdn_inputs(1, 130, 1, 2, 16, 8, seed=seed, gate_range=(-3.0, 0.0), beta_max=2.0, key_mode="parallel")
    leaves = [t.requires_grad_() for t in x.values()]
    grads = []
    for form in (recurrent, chunked):
        output, final, _ = form(*leaves)
        grads.append(torch.autograd.grad((output**2).sum() + (final**2).sum(), leaves))
    for a, b in zip(*grads, strict=True):
        assert rel_rms(a, b) <= 1e-10
