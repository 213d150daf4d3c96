"""The steps of Hyena's filters on the GPU against their definitions in fp64, and in the use that engines make of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hyena_step_cases import check, fir_inputs, modal_inputs

from gdn_cuda import hyena_fir_step, hyena_modal_step

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]


def step(**x: Any) -> Any:
    return (hyena_fir_step if "u" in x else hyena_modal_step)(**x)


@pytest.mark.parametrize("K", [1, 2, 3, 5, 6, 7, 9, 10, 33, 34, 127, 128, 129, 130, 257, 258, 1000, 1024])
def test_filter_lengths(K: int, seed: int) -> None:
    for T, flip in product((None, 1, 9), (False, True)):
        check(fir_inputs(seed, B=5, D=96, K=K, T=T, flip_filter=flip, gated_bias=flip, device="cuda"), step)
    check(fir_inputs(seed, B=3, D=96, K=K, groups=6, device="cuda") | {"bias": None}, step)


@pytest.mark.parametrize("S", [1, 3, 4, 5, 8, 15, 16, 17, 20, 37, 63, 64])
def test_state_counts(S: int, seed: int) -> None:
    for T, groups in product((None, 1, 9), (96, 6)):
        check(modal_inputs(seed, B=5, D=96, S=S, T=T, groups=groups, device="cuda"), step)


@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("state", DTYPES)
def test_dtypes(io: torch.dtype, state: torch.dtype, seed: int) -> None:
    for weight, K in product(DTYPES, (3, 128)):
        check(fir_inputs(seed, D=64, K=K, T=2, io=io, state=state, weight=weight, device="cuda"), step)
    check(modal_inputs(seed, D=64, T=2, io=io, state=state, device="cuda"), step)


@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("S", [16, 40])
def test_dtypes_of_tokens(io: torch.dtype, S: int, seed: int) -> None:
    """States in vectors of fp32; x1 in another dtype than the others."""
    for T in (None, 1, 5):
        x = modal_inputs(seed, B=9, D=77, S=S, T=T, io=io, slots=12, device="cuda")
        check(x | {"state_indices": torch.tensor([11, 3, -1, 0, 40, 5, 6, 2, 9], device="cuda")}, step)
        x = modal_inputs(seed, B=9, D=77, S=S, T=T, io=io, device="cuda")
        check(x | {"x1": x["x1"].to(torch.float16 if io == torch.float32 else torch.float32)}, step)


@pytest.mark.parametrize("K", [7, 30, 128])
def test_blocks_process_several_sequences(K: int, seed: int) -> None:
    B = 333
    slots = torch.randperm(B + 3, generator=torch.Generator().manual_seed(seed))[:B].cuda()
    slots[::7] = -1
    for T in (None, 3):
        for x in (
            fir_inputs(seed, B=B, D=520, K=K, T=T, slots=B + 3, device="cuda"),
            modal_inputs(seed, B=B, D=520, S=min(K, 64), T=T, slots=B + 3, device="cuda"),
        ):
            check(x | {"state_indices": slots}, step)


def test_hostile_slots(seed: int) -> None:
    for make in (fir_inputs, modal_inputs):
        x = make(seed, B=5, D=64, T=2, slots=6, device="cuda")
        check(x | {"state_indices": torch.tensor(HOSTILE, device="cuda"), "null_slot": 3}, step)


def test_states_with_the_channels_last(seed: int) -> None:
    for x in (fir_inputs(seed, D=64, K=7, T=4, device="cuda"), modal_inputs(seed, D=64, T=4, device="cuda")):
        for name in ("u", "x1", "x2", "v", "fir_state", "state"):
            if name in x:
                x[name] = x[name].mT.contiguous().mT
        check(x, step)


@pytest.mark.parametrize("D", [4, 33, 300])
@pytest.mark.parametrize("K", [2, 4, 5, 8, 9, 30, 65, 97, 128, 129, 130])
def test_warps_and_blocks_that_are_not_full(K: int, D: int, seed: int) -> None:
    """Staged if the states of all channels are whole 16-byte units; 11 tokens move the run past its free place."""
    for T, io in product((None, 4, 11), DTYPES):
        x = fir_inputs(seed, B=9, D=D, K=K, T=T, io=io, slots=12, device="cuda")
        check(x | {"state_indices": torch.tensor([11, 3, -1, 0, 40, 5, 6, 2, 9], device="cuda")}, step)


@pytest.mark.parametrize("D", [63, 64])
@pytest.mark.parametrize("K", [3, 7, 65, 128, 1000])
def test_several_tokens_equal_single_ones(K: int, D: int, seed: int) -> None:
    """A state of 63 channels is not in whole 16-byte units."""
    for make, rows, pool in (
        (lambda T: fir_inputs(seed, D=D, K=K, T=T, device="cuda"), ("u",), "fir_state"),
        (lambda T: modal_inputs(seed, D=D, S=min(K, 64), T=T, device="cuda"), ("x2", "x1", "v"), "state"),
    ):
        together, alone = make(6), make(6)
        out, _ = step(**together)
        for t in range(6):
            one, _ = step(**alone | {name: alone[name][..., t] for name in rows})
            assert torch.equal(one, out[..., t])
        assert torch.equal(together[pool], alone[pool])


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -0.2499, -0.25, -1.0, -50.0, -87.0, -1000.0, -torch.inf])
def test_poles_at_the_limits_of_their_range(log_pole: float, seed: int) -> None:
    x = modal_inputs(seed, D=64, S=1, T=7, device="cuda")
    x["log_poles"].fill_(log_pole)
    check(x, step)


def test_a_pool_of_more_than_2_31_values(seed: int) -> None:
    """Slots with a very large stride."""
    gap = 2**31 // 2 + 64
    for make in (fir_inputs, modal_inputs):
        x = make(seed, B=3, D=8, io=torch.bfloat16, state=torch.bfloat16, device="cuda")
        pool = "fir_state" if "u" in x else "state"
        memory = torch.empty(2 * gap + x[pool][0].numel(), dtype=torch.bfloat16, device="cuda")
        far = memory.as_strided(x[pool].shape, (gap, *x[pool].stride()[1:]))
        far.copy_(x[pool])
        check(x | {pool: far}, step)


def test_a_captured_graph_steps(seed: int) -> None:
    for make in (fir_inputs, modal_inputs):
        x, eager = (make(seed, D=64, device="cuda") for _ in range(2))
        pool = "fir_state" if "u" in x else "state"
        out = torch.empty_like(x["u" if "u" in x else "x2"])
        step(**x, out=out)
        x[pool].copy_(eager[pool])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(**x, out=out)
        for _ in range(3):
            graph.replay()
            expected, _ = step(**eager)
            assert torch.equal(out, expected) and torch.equal(x[pool], eager[pool])
