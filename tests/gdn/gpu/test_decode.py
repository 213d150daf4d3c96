"""fused_decode on the GPU against the recurrence in fp64, and everything a serving engine does to it."""

from __future__ import annotations

import gc

import pytest
import torch
from gdn_inputs import make_step
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda.reference import fused_decode as reference_decode

OUTPUT_BOUND, STATE_BOUND = 5e-3, 1e-5
BF16_STATE_BOUND = 2.0**-8  # one rounding of the state
DIMS = [(128, 128), (64, 64), (96, 192), (192, 96), (256, 256), (8, 8), (40, 72), (120, 128), (200, 24), (128, 8)]


def run_both(inputs: dict[str, Tensor], **options: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(output, pool) of the kernel and of the reference in fp64; the output is poisoned first."""
    double = {name: x.double().cpu() if x.is_floating_point() else x.cpu() for name, x in inputs.items()}
    reference_options = {
        name: (x.double().cpu() if x.is_floating_point() else x.cpu()) if isinstance(x, Tensor) else x
        for name, x in options.items()
    }
    expected = reference_decode(**double, **reference_options)
    if "step_states" in options:
        options_steps = options["step_states"]
        assert isinstance(options_steps, Tensor)
    out = torch.full(inputs["value"].shape, float("nan"), dtype=inputs["value"].dtype, device="cuda")
    result = gdn_cuda.fused_decode(**inputs, **options, out=out)
    assert result is out
    if "step_states" in options:
        return out, options["step_states"], expected, reference_options["step_states"]  # type: ignore[return-value]
    return out, inputs["state_pool"], expected, double["state_pool"]


def check_step(inputs: dict[str, Tensor], **options: object) -> None:
    out, state, expected, expected_state = run_both(inputs, **options)
    assert rel_rms(out, expected) < OUTPUT_BOUND
    bound = STATE_BOUND if state.dtype == torch.float32 else BF16_STATE_BOUND
    assert rel_rms(state, expected_state) < bound


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dk,dv", DIMS)
def test_head_dimensions(dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    check_step(make_step(3, 1, dk=dk, dv=dv, state=state, seed=seed))


@pytest.mark.parametrize("Hk,Hv", [(1, 1), (16, 32), (2, 6), (1, 8), (30, 30)])
@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
def test_head_ratios_and_dtypes(Hk: int, Hv: int, io: torch.dtype, seed: int) -> None:
    check_step(make_step(2, 1, Hk=Hk, Hv=Hv, io=io, seed=seed))


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("B", [1, 7, 64, 300])
def test_batch_sizes(B: int, state: torch.dtype, seed: int) -> None:
    check_step(make_step(B, 1, Hk=8, Hv=16, state=state, seed=seed))


@pytest.mark.parametrize("T", [2, 5, 8, 17])
def test_several_tokens(T: int, seed: int) -> None:
    check_step(make_step(3, T, seed=seed))


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dk,dv", [(128, 128), (64, 200), (96, 192), (192, 96), (256, 256)])
def test_several_tokens_of_many_sequences(dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    check_step(make_step(40, 6, Hk=8, Hv=16, dk=dk, dv=dv, state=state, seed=seed))


def test_verify_of_many_sequences(seed: int) -> None:
    B, T = 40, 5
    inputs = make_step(B, T, Hk=8, Hv=16, slots=B * T + 2, seed=seed)
    inputs["state_indices"] = torch.randperm(B * T + 2)[: B * T].view(B, T).int().cuda()
    inputs["state_indices"][2, 3] = -1  # not written
    inputs["state_indices"][7] = -1  # skipped
    check_step(inputs, num_accepted_tokens=torch.randint(0, T + 1, (B,), dtype=torch.int32, device="cuda"))
    check_step(
        make_step(B, T, Hk=8, Hv=16, seed=seed),
        step_states=torch.zeros(B + 1, T, 16, 128, 128, device="cuda"),
        step_slots=torch.randperm(B + 1)[:B].cuda(),
    )


def test_no_norm_own_scale_int64_indices(seed: int) -> None:
    inputs = make_step(3, 2, seed=seed)
    inputs["key"] = torch.nn.functional.normalize(inputs["key"].float(), dim=-1).bfloat16()
    inputs["state_indices"] = inputs["state_indices"].long()
    check_step(inputs, use_qk_l2norm=False, scale=0.3)


def test_unaligned_views(seed: int) -> None:
    inputs = make_step(3, 1, dk=72, dv=40, seed=seed)
    wide = torch.zeros(3, 1, 2, 73, dtype=torch.bfloat16, device="cuda")
    wide[..., 1:] = inputs["key"]
    inputs["key"] = wide[..., 1:]
    check_step(inputs)


def test_slots_not_in_the_indices_are_not_written(seed: int) -> None:
    inputs = make_step(4, 1, slots=64, seed=seed)
    before = inputs["state_pool"].clone()
    other_cache = inputs["state_pool"]._base.clone()[:, 1]  # type: ignore[union-attr]
    gdn_cuda.fused_decode(**inputs)
    others = torch.ones(64, dtype=torch.bool)
    others[inputs["state_indices"].cpu().long()] = False
    assert torch.equal(inputs["state_pool"][others.cuda()], before[others.cuda()])
    assert torch.equal(inputs["state_pool"]._base[:, 1], other_cache)  # type: ignore[index]
    assert not torch.equal(inputs["state_pool"], before)


def test_skipped_sequences_give_zero_and_write_nothing(seed: int) -> None:
    inputs = make_step(5, 2, seed=seed)
    inputs["state_indices"][1] = -1
    inputs["state_indices"][3] = 0
    check_step(inputs, null_slot=0)
    out, *_ = run_both(inputs, null_slot=0)
    assert not out[1].any() and not out[3].any() and out[0].any()


def test_a_slot_past_the_pool_gives_nan_and_writes_nothing(seed: int) -> None:
    inputs = make_step(3, 1, seed=seed)
    inputs["state_indices"][1] = inputs["state_pool"].shape[0]
    touched = inputs["state_indices"][[0, 2]].long()
    before = inputs["state_pool"].clone()
    out = gdn_cuda.fused_decode(**inputs)
    assert out[1].isnan().all() and out[0].isfinite().all() and out[2].isfinite().all()
    before[touched] = inputs["state_pool"][touched]
    assert torch.equal(inputs["state_pool"], before)


def test_packed_batches_with_empty_sequences_and_unassigned_tokens(seed: int) -> None:
    inputs = make_step(6, 2, packed=True, seed=seed)
    lengths = torch.tensor([0, 3, 1, 0, 6, 0]).cumsum(0)
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.long), lengths]).cuda()  # 2 tokens at the end belong to nobody
    check_step(inputs, cu_seqlens=cu_seqlens)
    check_step(make_step(6, 2, packed=True, seed=seed), cu_seqlens=cu_seqlens.int())


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_speculative_verify_in_slots(state: torch.dtype, seed: int) -> None:
    B, T = 4, 5
    inputs = make_step(B, T, slots=B * T + 2, state=state, seed=seed)
    inputs["state_indices"] = torch.randperm(B * T + 2)[: B * T].view(B, T).int().cuda()
    inputs["state_indices"][2, 3] = -1  # not written
    accepted = torch.tensor([0, 1, 3, 5], dtype=torch.int32, device="cuda")
    check_step(inputs, num_accepted_tokens=accepted)


def test_speculative_verify_in_step_states(seed: int) -> None:
    B, T = 4, 3
    inputs = make_step(B, T, seed=seed)
    steps = torch.zeros(6, T + 1, 4, 128, 128, device="cuda")
    rows = torch.tensor([5, 0, 2, 3], dtype=torch.int32, device="cuda")
    before = inputs["state_pool"].clone()
    check_step(inputs, step_states=steps, step_slots=rows)
    assert torch.equal(inputs["state_pool"], before)


@pytest.mark.parametrize("T", [1, 3, 9])
@pytest.mark.parametrize("dk", [128, 40])
def test_states_of_every_step_and_the_last_one_to_the_pool(dk: int, T: int, seed: int) -> None:
    inputs = make_step(70, T, slots=80, dk=dk, seed=seed)
    steps, rows = torch.zeros(70, T + 1, 4, 128, dk, device="cuda"), torch.randperm(70).int().cuda()
    written = torch.randperm(80)[:70].cuda()
    inputs["state_indices"] = written.int()
    written[3] = -1
    before = inputs["state_pool"].clone()
    check_step(inputs, step_states=steps, step_slots=rows, write_indices=written)
    for n, slot in enumerate(written.tolist()):
        assert slot < 0 or torch.equal(inputs["state_pool"][slot], steps[rows[n], T - 1])
    others = torch.ones(80, dtype=torch.bool)
    others[written[written >= 0].cpu()] = False
    assert torch.equal(inputs["state_pool"][others], before[others])


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dk,dv", [(128, 128), (64, 200), (96, 192), (192, 96), (256, 256)])
@pytest.mark.parametrize("B", [3, 70])
def test_verify_equals_single_steps(B: int, dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    """T tokens in one call against T calls of one token: the same bits, as rows are summed in one order everywhere. With fp32
    states, which are not rounded between the calls; of a bf16 state, the first token and the state after it."""
    T = 4 if state == torch.float32 else 2
    inputs = make_step(B, T, Hk=2, Hv=8, dk=dk, dv=dv, state=state, seed=seed)
    kept, rows = torch.zeros(B, T, 8, dv, dk, dtype=state, device="cuda"), torch.arange(B).cuda()
    out = gdn_cuda.fused_decode(**inputs, step_states=kept, step_slots=rows)
    for t in range(T if state == torch.float32 else 1):
        token = {name: x[:, t : t + 1] if name in ("query", "key", "value", "a", "b") else x for name, x in inputs.items()}
        assert torch.equal(gdn_cuda.fused_decode(**token), out[:, t : t + 1])
        assert torch.equal(inputs["state_pool"][inputs["state_indices"].long()], kept[:, t])


def test_a_replayed_graph_reads_the_current_indices(seed: int) -> None:
    inputs = make_step(4, 1, slots=12, seed=seed)
    out = torch.empty_like(inputs["value"])
    gdn_cuda.fused_decode(**{**inputs, "state_pool": inputs["state_pool"].clone()}, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gdn_cuda.fused_decode(**inputs, out=out)
    for indices in ([0, 1, 2, 3], [11, -1, 5, 4], [3, 2, 1, 0]):
        eager = {name: x.clone() for name, x in inputs.items()}
        eager["state_indices"] = torch.tensor(indices, dtype=torch.int32, device="cuda")
        expected = gdn_cuda.fused_decode(**eager)
        inputs["state_indices"].copy_(eager["state_indices"])
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, expected)
        assert torch.equal(inputs["state_pool"], eager["state_pool"])


def test_a_kernel_not_yet_loaded_is_an_error_under_graph_capture() -> None:
    inputs = make_step(1, 1, dk=56, dv=16, io=torch.float16, state=torch.bfloat16)
    wide = torch.zeros(1, 1, 2, 57, dtype=torch.float16, device="cuda")
    inputs["query"] = wide[..., 1:]  # unaligned, fp16, bf16 state: no other test loads this configuration
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="warmup"), torch.cuda.graph(graph):
        gdn_cuda.fused_decode(**inputs)
    torch.cuda.synchronize()
    check_step(inputs)


def test_slot_offsets_are_64_bit() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    inputs = make_step(1, 1, Hk=16, Hv=32, state=torch.bfloat16)
    pool = torch.empty(6000, 32, 128, 128, dtype=torch.bfloat16, device="cuda")  # slot 5999 is past 2^31 elements
    pool[5999] = inputs["state_pool"][0]
    small = inputs["state_pool"][:1].clone()
    inputs["state_indices"] = torch.tensor([0], device="cuda")
    expected = gdn_cuda.fused_decode(**{**inputs, "state_pool": small})
    far = {**inputs, "state_pool": pool, "state_indices": torch.tensor([5999], device="cuda")}
    assert torch.equal(gdn_cuda.fused_decode(**far), expected)
    assert torch.equal(pool[5999], small[0])


def test_a_call_allocates_nothing_but_the_output(seed: int) -> None:
    inputs = make_step(8, 1, Hk=16, Hv=32, seed=seed)
    out = torch.empty_like(inputs["value"], memory_format=torch.contiguous_format)
    gdn_cuda.fused_decode(**inputs, out=out)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gdn_cuda.fused_decode(**inputs, out=out)
    assert torch.cuda.max_memory_allocated() == before


def test_equal_calls_give_equal_bits(seed: int) -> None:
    results = []
    for _ in range(3):
        inputs = make_step(16, 2, Hk=4, Hv=8, seed=seed)
        results.append((gdn_cuda.fused_decode(**inputs), inputs["state_pool"]))
    for out, pool in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(pool, results[0][1])


@pytest.mark.parametrize("argument", ["state_pool", "state_indices", "key", "A_log"])
def test_an_argument_on_another_device_is_refused_before_anything_is_written(argument: str, seed: int) -> None:
    inputs = make_step(2, 1, seed=seed)
    pool = inputs["state_pool"]
    before = pool.clone()
    inputs[argument] = inputs[argument].cpu()
    with pytest.raises(ValueError, match=f"fused_decode: {argument}: expected cuda:0"):
        gdn_cuda.fused_decode(**inputs)
    torch.cuda.synchronize()
    assert torch.equal(pool, before)


def test_a_step_compiled_by_torch_equals_the_eager_one(seed: int) -> None:
    inputs = make_step(3, 1, seed=seed)
    eager = {name: x.clone() for name, x in inputs.items()}
    expected = gdn_cuda.fused_decode(**eager)

    @torch.compile(fullgraph=True)
    def step(**tensors: Tensor) -> Tensor:
        return gdn_cuda.fused_decode(**tensors) * 2

    assert torch.equal(step(**inputs), expected * 2)
    assert torch.equal(inputs["state_pool"], eager["state_pool"])
