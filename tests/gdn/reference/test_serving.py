"""fused_decode, and chunked_forward on a pool, against serving written as a loop over sequences, tokens and heads."""

import math

import numpy as np
import pytest
import torch
from helpers import rel_rms

from gdn_cuda.gdn.inputs import make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.reference import chunked_forward, fused_decode, recurrent

HK, HV, DK, DV = 2, 4, 8, 4


def make_request(lengths, seed, dtype=torch.bfloat16, pool_dtype=torch.float32, slots=12, packed=False):
    """Arguments of fused_decode for sequences of these lengths (padded: all the same length)."""
    rng = torch.Generator().manual_seed(seed)
    shape = (sum(lengths),) if packed else (len(lengths), lengths[0])

    def normal(*sizes, scale=1.0):
        return scale * torch.randn(*sizes, generator=rng)

    request = {
        "query": normal(*shape, HK, DK).to(dtype),
        "key": normal(*shape, HK, DK).to(dtype),
        "value": normal(*shape, HV, DV).to(dtype),
        "a": normal(*shape, HV, scale=3.0).to(dtype),
        "b": normal(*shape, HV, scale=2.0).to(dtype),
        "A_log": normal(HV).float(),
        "dt_bias": normal(HV).to(dtype),
        "state_pool": normal(slots, HV, DV, DK).to(pool_dtype),
    }
    if packed:
        request["cu_seqlens"] = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return request


def serve(request, lengths, reads, writes, l2norm=True, scale=DK**-0.5):
    """The results that an engine expects, in fp64: the output, and the states by the place they are written to, where

    reads[n] is a slot or None (skip), writes[n][t] a key of the returned dictionary or None (do not write)."""
    x = {name: t.double().numpy() for name, t in request.items() if torch.is_tensor(t)}
    output = np.zeros(request["value"].shape)
    written = {}
    first = 0
    for n, length in enumerate(lengths):
        states = None if reads[n] is None else x["state_pool"][reads[n]].copy()
        for t in range(0 if states is None else length):
            row = first + t if "cu_seqlens" in request else (n, t)
            for h in range(HV):
                q, k = x["query"][row][h // (HV // HK)], x["key"][row][h // (HV // HK)]
                if l2norm:
                    q, k = q / math.sqrt(q @ q + 1e-6), k / math.sqrt(k @ k + 1e-6)
                raised = x["a"][row][h] + x["dt_bias"][h]
                softplus = raised if raised > 20 else math.log1p(math.exp(raised))
                state = math.exp(-math.exp(x["A_log"][h]) * softplus) * states[h]
                state = state + np.outer((x["value"][row][h] - state @ k) / (1 + math.exp(-x["b"][row][h])), k)
                output[row][h] = scale * state @ q
                states[h] = state
            if writes[n][t] is not None:
                written[writes[n][t]] = torch.from_numpy(states.copy())
        first += length
    return torch.from_numpy(output), written


def check(request, lengths, reads, writes, tolerance=1e-5, **options):
    """Runs fused_decode and checks the output, the slots that it should write and those that it should not."""
    expected_output, written = serve(
        request, lengths, reads, writes, options.get("use_qk_l2norm", True), options.get("scale", DK**-0.5)
    )
    pool = request["state_pool"]
    before = pool.clone()
    output = fused_decode(**request, **options)
    rounding = {torch.bfloat16: 4e-3, torch.float16: 5e-4}.get(output.dtype, tolerance)
    assert output.dtype == request["value"].dtype
    assert rel_rms(output, expected_output) <= rounding
    assert not output.double()[expected_output == 0].any()
    slot_tolerance = 4e-3 if pool.dtype == torch.bfloat16 else tolerance
    for slot in range(pool.shape[0]):
        if slot in written:
            assert rel_rms(pool[slot], written[slot]) <= slot_tolerance
        else:
            assert torch.equal(pool[slot], before[slot])
    return output


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_one_token_per_sequence(dtype, pool_dtype, index_dtype, seed):
    request = make_request([1] * 4, seed, dtype, pool_dtype)
    slots = [7, 0, 11, 3]
    request["state_indices"] = torch.tensor(slots, dtype=index_dtype)
    check(request, [1] * 4, slots, [[s] for s in slots])


def test_without_indices_sequence_n_uses_slot_n(seed):
    check(make_request([2] * 3, seed), [2] * 3, [0, 1, 2], [[None, 0], [None, 1], [None, 2]])


def test_without_indices_the_null_slot_is_still_skipped(seed):
    check(make_request([1] * 3, seed), [1] * 3, [None, 1, 2], [[], [1], [2]], null_slot=0)


@pytest.mark.parametrize("options", [{"use_qk_l2norm": False}, {"scale": 0.7}])
def test_options(options, seed):
    request = make_request([2] * 3, seed)
    request["key"] /= DK
    check(request, [2] * 3, [0, 1, 2], [[None, 0], [None, 1], [None, 2]], **options)


@pytest.mark.parametrize("null_slot", [None, 0])
def test_padding_rows_are_skipped(null_slot, seed):
    request = make_request([2] * 4, seed)
    request["value"][1] = torch.nan  # values in a padding row must have no effect
    request["state_indices"] = torch.tensor([5, -1, 0, 2])
    third = None if null_slot == 0 else 0
    check(request, [2] * 4, [5, None, third, 2], [[None, 5], [], [None, third], [None, 2]], null_slot=null_slot)


def test_a_null_slot_past_the_pool_is_no_error(seed):
    request = make_request([1] * 2, seed)
    request["state_indices"] = torch.tensor([12, 3])
    check(request, [1] * 2, [None, 3], [[], [3]], null_slot=12)


def test_all_rows_skipped(seed):
    request = make_request([1] * 2, seed)
    request["state_indices"] = torch.tensor([-1, -7])
    check(request, [1] * 2, [None, None], [[], []])


def test_packed_with_empty_sequences(seed):
    lengths = [0, 3, 1, 0, 2, 0]
    request = make_request(lengths, seed, packed=True)
    request["state_indices"] = torch.tensor([4, 9, -1, 10, 0, -1])
    check(request, lengths, [4, 9, None, 10, 0, None], [[], [None, None, 9], [], [], [None, 0], []])


def test_packed_tokens_after_the_last_sequence_give_zero(seed):
    request = make_request([2, 1, 2], seed, packed=True)
    request["cu_seqlens"] = request["cu_seqlens"][:3]
    request["state_indices"] = torch.tensor([4, 9])
    output = check(request, [2, 1], [4, 9], [[None, 4], [9]])
    assert not output[3:].any()


def test_empty_batch(seed):
    request = make_request([0, 0], seed)
    check(request, [0, 0], [0, 1], [[], []])
    request = make_request([], seed, packed=True)
    check(request, [], [], [])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count_dtype", [torch.int32, torch.int64])
def test_speculative_verify(packed, count_dtype, seed):
    """Accepted counts of 1, 3, 0 and -2 start from columns 0, 2, 0 and 0: a count below 1 is read as 1."""
    lengths = [3, 3, 3, 3]
    request = make_request(lengths, seed, slots=20, packed=packed)
    indices = torch.arange(12).view(4, 3) + 5
    request["state_indices"] = indices
    request["num_accepted_tokens"] = torch.tensor([1, 3, 0, -2], dtype=count_dtype)
    reads = [int(indices[n, column]) for n, column in enumerate([0, 2, 0, 0])]
    check(request, lengths, reads, indices.tolist())


def test_speculative_verify_of_unequal_lengths(seed):
    lengths = [1, 0, 3, 2]
    request = make_request(lengths, seed, slots=20, packed=True)
    indices = torch.arange(12).view(4, 3) + 5
    request["state_indices"] = indices
    request["num_accepted_tokens"] = torch.tensor([2, 1, 1, 3])
    check(request, lengths, [6, 8, 11, 16], [row[:n] for row, n in zip(indices.tolist(), lengths, strict=True)])


@pytest.mark.parametrize("null_slot", [None, 0])
def test_verify_skips_a_sequence_whose_read_slot_is_absent(null_slot, seed):
    request = make_request([2] * 5, seed)
    last_write = 8 if null_slot is None else 0
    request["state_indices"] = torch.tensor([[-1, 4], [-1, 5], [6, -1], [0, 7], [9, last_write]])
    request["num_accepted_tokens"] = torch.tensor([1, 2, 1, 1, 1])
    fourth = None if null_slot == 0 else 0
    writes = [[], [None, 5], [6, None], [fourth, 7], [9, None if null_slot == 0 else 8]]
    check(request, [2] * 5, [None, 5, 6, fourth, 9], writes, null_slot=null_slot)


def test_indices_per_token_without_counts_read_the_first_column(seed):
    request = make_request([2] * 2, seed)
    request["state_indices"] = torch.tensor([[3, 4], [5, 6]])
    check(request, [2] * 2, [3, 5], [[3, 4], [5, 6]])


def test_verify_continues_where_the_accepted_tokens_ended(seed):
    """Verify 3 tokens, accept 2, verify 3 more from there: the same as decoding 5 tokens one by one."""
    one_by_one = make_request([5], seed, torch.float64, torch.float64)
    one_by_one["state_indices"] = torch.tensor([1])
    pool = one_by_one["state_pool"].clone()
    expected = fused_decode(**one_by_one)
    indices = torch.tensor([[1, 2, 3]])

    def verify(tokens, accepted):
        part = {n: t[:, tokens] if t.dim() >= 3 and n != "state_pool" else t for n, t in one_by_one.items()}
        part |= {"state_pool": pool, "state_indices": indices, "num_accepted_tokens": torch.tensor([accepted])}
        return fused_decode(**part)

    first = verify(slice(0, 3), 1)
    second = verify(slice(2, 5), 2)
    assert rel_rms(first[:, :2], expected[:, :2]) < 1e-13
    assert rel_rms(second, expected[:, 2:]) < 1e-13
    assert rel_rms(pool[3], one_by_one["state_pool"][1]) < 1e-13


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("step_dtype", [torch.float32, torch.bfloat16])
def test_with_step_states_the_pool_is_not_written(packed, step_dtype, seed):
    lengths = [2, 0, 3, 1] if packed else [3] * 4
    request = make_request(lengths, seed, packed=packed)
    request["state_indices"] = torch.tensor([3, 5, -1, 8])
    steps = torch.full((6, 4, HV, DV, DK), 7.0, dtype=step_dtype)
    before = steps.clone()
    rows = [2, 0, 4, 5]
    targets = [[(row, t) for t in range(n)] for row, n in zip(rows, lengths, strict=True)]
    reads = [3, 5, None, 8]
    _, written = serve(request, lengths, reads, targets)
    check(request, lengths, reads, [[None] * 3] * 4, step_states=steps, step_slots=torch.tensor(rows, dtype=torch.int32))
    for row in range(6):
        for t in range(4):
            if (row, t) in written:
                assert rel_rms(steps[row, t], written[row, t]) <= (4e-3 if step_dtype == torch.bfloat16 else 1e-5)
            else:
                assert torch.equal(steps[row, t], before[row, t])


def test_negative_step_slots_are_not_written(seed):
    request = make_request([2, 2], seed)
    steps = torch.zeros(3, 2, HV, DV, DK)
    check(request, [2, 2], [0, 1], [[None] * 2] * 2, step_states=steps, step_slots=torch.tensor([-1, 1]))
    assert steps[1].any()
    assert not steps[[0, 2]].any()


def test_only_stored_values_are_rounded(seed):
    """With a bf16 pool, one call of eight tokens is closer to fp64 than eight calls of one token, which round eight times."""
    request = make_request([8] * 4, seed, torch.float32, torch.bfloat16)
    request["A_log"] -= 6
    _, exact = serve(request, [8] * 4, range(4), [[None] * 7 + [n] for n in range(4)])
    together = request | {"state_pool": request["state_pool"].clone()}
    fused_decode(**together)
    for t in range(8):
        fused_decode(**{n: x[:, t : t + 1] if x.dim() >= 3 and n != "state_pool" else x for n, x in request.items()})
    expected = torch.stack([exact[n] for n in range(4)])
    error = rel_rms(together["state_pool"][:4], expected)
    assert error <= rel_rms(expected.bfloat16(), expected) * 1.01
    assert rel_rms(request["state_pool"][:4], expected) > 1.2 * error


def test_a_pool_with_strides_between_slots(seed):
    request = make_request([2] * 3, seed)
    wide = torch.full((12, HV * DV * DK + 10), 5.0)
    pool = wide[:, 10:].view(12, HV, DV, DK).copy_(request["state_pool"])
    request |= {"state_pool": pool, "state_indices": torch.tensor([7, 1, 4])}
    check(request, [2] * 3, [7, 1, 4], [[None, 7], [None, 1], [None, 4]])
    assert bool((wide[:, :10] == 5).all())


def test_slices_of_one_packed_projection(seed):
    request = make_request([2] * 3, seed)
    row = torch.cat([request[n].flatten(2) for n in ("query", "key", "value")], -1)
    parts = row.split([HK * DK, HK * DK, HV * DV], -1)
    for name, part, d in zip(("query", "key", "value"), parts, (DK, DK, DV), strict=True):
        request[name] = part.unflatten(-1, (-1, d))
    check(request, [2] * 3, [0, 1, 2], [[None, 0], [None, 1], [None, 2]])


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("state_indices", [3, 12, 4], "fused_decode: state_indices: expected < 12, got 12"),
        ("state_indices", [[3, 4], [5, 6], [7, 99]], "fused_decode: state_indices: expected < 12, got 99"),
        ("state_indices", [[3], [4], [5]], "fused_decode: state_indices: expected room for 2 tokens, got 1"),
        ("step_slots", [0, 1, 5], "fused_decode: step_slots: expected < 5, got 5"),
        ("num_accepted_tokens", [1, 3, 1], "fused_decode: num_accepted_tokens: expected <= 2, got 3"),
    ],
)
def test_bad_indices_are_errors_before_anything_is_written(argument, value, message, seed):
    request = make_request([2] * 3, seed)
    steps = torch.zeros(5, 2, HV, DV, DK)
    if argument == "step_slots":
        request["step_states"] = steps
    if argument == "num_accepted_tokens":
        request["state_indices"] = torch.arange(6).view(3, 2)
    request[argument] = torch.tensor(value)
    before = request["state_pool"].clone()
    with pytest.raises(IndexError, match=message):
        fused_decode(**request)
    assert torch.equal(request["state_pool"], before)
    assert not steps.any()


def test_too_few_step_states_are_refused(seed):
    request = make_request([3] * 2, seed) | {"step_states": torch.zeros(2, 2, HV, DV, DK), "step_slots": torch.tensor([0, 1])}
    with pytest.raises(IndexError, match="fused_decode: step_states: expected room for 3 tokens, got 2"):
        fused_decode(**request)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_chunked_forward_on_a_pool(packed, pool_dtype, index_dtype, seed):
    lengths = [130, 0, 64, 65, 0] if packed else [130] * 5
    shape = {"Hk": HK, "Hv": HV, "dk": DK, "dv": DV, "seed": seed, "gate_range": (-1.0, 0.0), "dtype": torch.bfloat16}
    x = make_packed_gdn_inputs(lengths, **shape) if packed else make_gdn_inputs(5, 130, **shape)
    pool = torch.randn(9, HV, DV, DK, generator=torch.Generator().manual_seed(seed)).to(pool_dtype)
    indices = [6, 3, -1, 0, -1]
    states = torch.stack([pool[i] if i >= 0 else torch.zeros(HV, DV, DK, dtype=pool_dtype) for i in indices])
    expected, expected_final, steps = recurrent(**(x | {"state": states}), keep_steps=True)
    before = pool.clone()
    output, returned, checkpoints = chunked_forward(
        **(x | {"state": pool}), state_indices=torch.tensor(indices, dtype=index_dtype), checkpoint_every=64
    )
    assert returned is pool
    skipped = slice(130, 194) if packed else [2, 4]
    expected[skipped] = 0
    assert not output[skipped].any()
    assert rel_rms(output, expected) < 4e-3
    for n, slot in enumerate(indices):
        if slot >= 0 and lengths[n]:
            assert rel_rms(pool[slot], expected_final[n]) < (4e-3 if pool_dtype == torch.bfloat16 else 1e-5)
    untouched = [slot for slot in range(9) if slot not in [i for i, n in zip(indices, lengths, strict=True) if n]]
    assert torch.equal(pool[untouched], before[untouched])
    assert checkpoints.dtype == pool_dtype
    if packed:
        expected_checkpoints = steps[[63, 127, 193, 257]]
        expected_checkpoints[2] = 0
    else:
        expected_checkpoints = steps[:, 63::64].flatten(0, 1)
        expected_checkpoints[[4, 5, 8, 9]] = 0
    assert rel_rms(checkpoints, expected_checkpoints) < (4e-3 if pool_dtype == torch.bfloat16 else 1e-5)


def test_chunked_forward_refuses_a_slot_past_the_pool(seed):
    x = make_gdn_inputs(2, 5, HK, HV, DK, DV, seed=seed)
    pool = torch.ones(3, HV, DV, DK)
    with pytest.raises(IndexError, match="chunked_forward: state_indices: expected < 3, got 3"):
        chunked_forward(**(x | {"state": pool}), state_indices=torch.tensor([0, 3]))
    assert bool((pool == 1).all())
