"""The steps of scans on the GPU; poles, sizes of models, every configuration, large pools, graphs and compiled calls."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from step_cases import COMPLEX, REAL, check, close, draws, simplified
from steps_on_device import *  # noqa: F403
from steps_on_device import EVERY_STATE, STATES
from torch import Tensor

from gdn_cuda import _C, selective_state_update, simplified_state_update
from gdn_cuda.scan.simplified_step import _inputs as simplified_inputs

DTYPES = dict(zip(STATES, ("f32", "bf16", "f16", "c64"), strict=True))


def on_gpu(seed: int, name: str = "mamba", **more: Any) -> dict[str, Any]:
    return draws(seed, name, device="cuda", **more)


def moved(x: dict[str, Any]) -> dict[str, Any]:
    return {name: y.cuda() if isinstance(y, Tensor) else y for name, y in x.items()}


@pytest.mark.parametrize("name, is_complex", [*((n, False) for n in REAL), *((n, True) for n in COMPLEX)])
def test_extreme_poles_and_steps(name: str, is_complex: bool, seed: int) -> None:
    x = on_gpu(seed, name, batch=6, dim=64, bare=True, state=torch.complex64 if is_complex else torch.float32)
    x["dt"][:] = torch.tensor([0, 1e-6, 1e-3, 1, 20, 100.0])[:, None]
    sizes = torch.logspace(-6, 3, 16, device="cuda")
    rates = torch.exp(-sizes) if name == "rglru" else -sizes
    x["A"] = (torch.complex(rates, 100 * rates) if is_complex else rates).expand(64, 16)
    check(x, selective_state_update)


def test_slow_poles_keep_their_rate(seed: int) -> None:
    """Ā rounded to fp32 would change this rate by 1.3 %. The rounding of states averages out over the rows."""
    x = on_gpu(seed, batch=1, dim=512, tokens=20000, bare=True)
    x["A"][:], x["dt"][:], x["x"][:] = -1e-6, 1.0, 0.0
    before = x["state"].double()
    selective_state_update(**x)
    lost = 1 - (x["state"].double() / before).mean().item()
    assert abs(lost / (1 - torch.exp(torch.tensor(-0.02, dtype=torch.float64)).item()) - 1) < 2e-3


@pytest.mark.parametrize("phase", [1.0, 1e2, 1e4])
def test_phases(phase: float, seed: int) -> None:
    for name in ("mamba", "zoh", "dirac"):
        x = on_gpu(seed, name, dim=64, state=torch.complex64, bare=True)
        x["A"] = torch.complex(x["A"].real, phase * torch.randn(64, 16, device="cuda"))
        check(x, selective_state_update)


@EVERY_STATE
@pytest.mark.parametrize("batch, dim, N", [(1, 5120, 16), (300, 1000, 16), (301, 500, 128), (67, 2000, 24), (530, 300, 7)])
def test_batches_of_models(batch: int, dim: int, N: int, state: torch.dtype, seed: int) -> None:
    """One to four sequences per block, and a last block with fewer."""
    check(on_gpu(seed, batch=batch, dim=dim, N=N, state=state, io=torch.bfloat16), selective_state_update)


@EVERY_STATE
@pytest.mark.parametrize("N", [7, 16, 128])
def test_blocks_of_32_sequences(N: int, state: torch.dtype, seed: int) -> None:
    """Many groups, so that there are enough blocks; the last ones have four sequences, and some sequences have no state."""
    x = on_gpu(seed, batch=1060, dim=192, groups=96, N=N, state=state)
    x["state_batch_indices"] = torch.randperm(1060, generator=torch.Generator().manual_seed(seed)).cuda()
    x["state_batch_indices"][[0, 9, 31, 700, 1059]] = torch.tensor([-1, 1060, -(2**63), 2**40, -7], device="cuda")
    check(x, selective_state_update)


@pytest.mark.parametrize("state", STATES[:3])
@pytest.mark.parametrize("groups", [None, 1, 8])
def test_mamba_2(groups: int | None, state: torch.dtype, seed: int) -> None:
    """Heads of 64 channels, N = 128, and one value per head expanded for A, dt, dt_bias, D and delta_a."""
    for batch in (1, 40):
        x = on_gpu(seed, batch=batch, heads=16, dim=64, N=128, groups=groups, state=state, io=torch.bfloat16)
        for name in ("dt", "dt_bias", "D", "delta_a"):
            x[name] = x[name][..., :1].expand_as(x[name])
        x["A"] = x["A"][:, :1, :1].expand_as(x["A"])
        check(x, selective_state_update)


# ---- Slots


def test_slots_that_are_not_named_are_not_written(seed: int) -> None:
    x = on_gpu(seed, batch=4, slots=64, io=torch.bfloat16)
    x["state_batch_indices"] = torch.tensor([7, -1, 63, 0], dtype=torch.int32, device="cuda")
    before = x["state"].clone()
    check(x, selective_state_update)
    others = torch.ones(64, dtype=torch.bool, device="cuda")
    others[[7, 63, 0]] = False
    assert torch.equal(x["state"][others], before[others])


def test_a_sequence_has_the_same_bits_in_any_batch(seed: int) -> None:
    x = on_gpu(seed, batch=300, dim=1000)
    one = {name: y[:1].clone() if isinstance(y, Tensor) and y.shape[0] == 300 else y for name, y in x.items()}
    assert torch.equal(selective_state_update(**x)[:1], selective_state_update(**one))
    assert torch.equal(x["state"][:1], one["state"])


def problem_of(x: dict[str, Any]) -> str:
    """The heuristic's problem for one token, bf16 inputs, and rows of whole 16-byte units."""
    batch, dim, N = x["state"].shape
    plain = x["discretization"] == "mamba" and "delta_a" not in x and not x["state"].is_complex() and N % 8 == 0
    return (
        f"{{.sequences = {batch}, .tokens = 1, .groups = 1, .group_rows = {dim}, .columns = {N}, "
        f".state = DType::{DTYPES[x['state'].dtype]}, .aligned = true, .near = true, .plain = {str(plain).lower()}, "
        ".tied = false}"
    )


@pytest.mark.parametrize("N, state", [(N, s) for N in (4, 16, 40, 128, 256) for s in STATES if N * s.itemsize % 16 == 0])
def test_both_kernels_and_any_number_of_sequences_a_block_give_the_same_bits(N: int, state: torch.dtype, seed: int) -> None:
    device = _C.driver()["devices"][torch.cuda.current_device()]
    for name in COMPLEX if state.is_complex else REAL:
        x = on_gpu(seed, name, batch=9, dim=70, N=N, state=state, io=torch.bfloat16)
        if name == "mamba":
            del x["delta_a"]
        problem = problem_of(x)
        results = []
        for choice in _C.tuned_candidates("scan/selective_step", problem, device):
            _C.tuned_attempt("scan/selective_step", problem, choice, device)
            try:
                given = x | {"state": x["state"].clone()}
                results.append((selective_state_update(**given), given["state"]))
                assert _C.tuned_attempted("scan/selective_step", device["ordinal"])
            finally:
                _C.tuned_forget()
        assert len(results) == 5  # the direct kernel, and blocks of 1 to 8 sequences
        for mine, wanted in zip(results[1:], results[:1] * 4, strict=True):
            assert all(torch.equal(*both) for both in zip(mine, wanted, strict=True))


@pytest.mark.parametrize("state", STATES[:3])
@pytest.mark.parametrize("heads, dim, N, groups", [(16, 64, 128, 2), (6, 80, 256, 1), (24, 64, 64, 3)])
def test_every_kernel_of_rows_with_one_value_of_A_gives_the_same_bits(
    heads: int, dim: int, N: int, groups: int, state: torch.dtype, seed: int
) -> None:
    device = _C.driver()["devices"][torch.cuda.current_device()]
    x = on_gpu(seed, batch=9, heads=heads, dim=dim, N=N, groups=groups, state=state, io=torch.bfloat16)
    x |= {name: x[name][..., 0].contiguous() for name in ("dt", "dt_bias", "D")} | {"A": x["A"][:, 0, 0].contiguous()}
    del x["delta_a"]
    problem = (
        f"{{.sequences = 9, .tokens = 1, .groups = {groups}, .group_rows = {heads * dim // groups}, .columns = {N}, "
        f".state = DType::{DTYPES[state]}, .aligned = true, .near = true, .plain = true, .tied = true}}"
    )
    results, kernels = [], set()
    for choice in _C.tuned_candidates("scan/selective_step", problem, device):
        _C.tuned_attempt("scan/selective_step", problem, choice, device)
        try:
            given = x | {"state": x["state"].clone()}
            results.append((selective_state_update(**given), given["state"]))
            assert _C.tuned_attempted("scan/selective_step", device["ordinal"])
        finally:
            _C.tuned_forget()
        kernels.add(("row_steps = 0" not in choice, "direct = true" in choice))
    assert kernels == {(True, False), (False, True), (False, False)}
    for mine in results[1:]:
        assert all(torch.equal(*both) for both in zip(mine, results[0], strict=True))


def test_slots_of_rows_with_one_value_of_A_are_64_bit(seed: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    x = on_gpu(seed, batch=40, heads=16, dim=64, N=128, groups=2, state=torch.bfloat16, io=torch.bfloat16)
    x["A"] = x["A"][:, 0, 0].contiguous()
    pool = torch.empty(17000, 16, 64, 128, dtype=torch.bfloat16, device="cuda")  # the last slots are past 2^31 elements
    pool[-40:] = x["state"]
    far = x | {"state": pool, "state_batch_indices": torch.arange(17000 - 40, 17000, device="cuda")}
    assert torch.equal(selective_state_update(**far), selective_state_update(**x))
    assert torch.equal(pool[-40:], x["state"])


def test_equal_calls_give_equal_bits(seed: int) -> None:
    results = []
    for _ in range(3):
        x = on_gpu(seed, batch=64, dim=500, io=torch.bfloat16)
        results.append((selective_state_update(**x), x["state"]))
    for out, state in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(state, results[0][1])


def test_empty_batches_tokens_and_channels(seed: int) -> None:
    for more in ({"batch": 0}, {"tokens": 0}, {"dim": 0}):
        x = on_gpu(seed, **more)
        before = x["state"].clone()
        assert selective_state_update(**x).shape == x["x"].shape
        assert torch.equal(x["state"], before)


def test_slot_offsets_are_64_bit(seed: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    x = on_gpu(seed, batch=1, dim=5120, state=torch.bfloat16)
    pool = torch.empty(27000, 5120, 16, dtype=torch.bfloat16, device="cuda")  # the last slot is past 2^31 elements
    pool[26999] = x["state"][0]
    far = x | {"state": pool, "state_batch_indices": torch.tensor([26999], device="cuda")}
    assert torch.equal(selective_state_update(**far), selective_state_update(**x))
    assert torch.equal(pool[26999], x["state"][0])


def test_a_replayed_graph_reads_the_current_slots(seed: int) -> None:
    x = on_gpu(seed, batch=4, slots=12)
    x["state_batch_indices"] = torch.zeros(4, dtype=torch.int32, device="cuda") - 1
    x["out"] = torch.empty_like(x["x"])
    selective_state_update(**x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        selective_state_update(**x)
    for slots in ([0, 1, 2, 3], [11, -1, 5, 4], [3, 2, 1, 0]):
        x["state_batch_indices"].copy_(torch.tensor(slots))
        eager = {name: y.clone() if isinstance(y, Tensor) else y for name, y in x.items()}
        expected = selective_state_update(**eager)
        x["out"].fill_(float("nan"))
        graph.replay()
        assert torch.equal(x["out"], expected) and torch.equal(x["state"], eager["state"])


def test_a_call_allocates_nothing_but_the_output(seed: int) -> None:
    x = on_gpu(seed, batch=8, dim=1000, tokens=2)
    x["out"] = torch.empty_like(x["x"])
    selective_state_update(**x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    selective_state_update(**x)
    assert torch.cuda.max_memory_allocated() == before


def test_a_step_compiled_by_torch_equals_the_eager_one(seed: int) -> None:
    x, eager = (on_gpu(seed, heads=2) for _ in range(2))
    expected = selective_state_update(**eager)

    @torch.compile(fullgraph=True)
    def step(**tensors: Any) -> Tensor:
        return selective_state_update(**tensors) * 2

    assert torch.equal(step(**x), expected * 2) and torch.equal(x["state"], eager["state"])


@pytest.mark.parametrize("argument", ["state", "A", "B", "D"])
def test_an_argument_on_another_device_is_refused(argument: str, seed: int) -> None:
    x = on_gpu(seed)
    x[argument] = x[argument].cpu()
    with pytest.raises(ValueError, match=r"selective_state_update: \w+: expected "):
        selective_state_update(**x)


# ---- Simplified


def test_simplified_writes_states_of_any_stride(seed: int) -> None:
    x = moved(simplified_inputs(3, seed))
    expected = simplified(x)
    wide = torch.zeros(7, 6, dtype=torch.complex64, device="cuda")
    state = wide.T[::2].copy_(x["state"])
    close(simplified_state_update(**x | {"state": state}), expected[0], 3e-6)
    close(state, expected[1], 3e-6)
    assert not wide.T[1::2].any()


def test_simplified_under_a_graph(seed: int) -> None:
    x = moved(simplified_inputs(4, seed))
    eager = {name: y.clone() for name, y in x.items()}
    simplified_state_update(**x | {"state": x["state"].clone()})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = simplified_state_update(**x)
    for _ in range(2):
        graph.replay()
        expected = simplified_state_update(**eager)
    close(out, expected.double().cpu().numpy(), 1e-6)
    close(x["state"], eager["state"].to(torch.complex128).cpu().numpy(), 1e-6)
