"""recurrent_forward on the GPU against the recurrence in fp64: hostile gates and keys, any packing."""

from __future__ import annotations

import pytest
import torch
from gdn_inputs import take_sequence, to_double
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda import InferenceMode
from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.reference import recurrent

BOUND, STATE_BOUND = 5e-3, 1e-5
MODES = list(InferenceMode)


def oracle(inputs: dict[str, Tensor], **options: object) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state and states after every token, in fp64 on the GPU."""
    output, final_state, steps = recurrent(**to_double(inputs), keep_steps=True, **options)  # type: ignore[arg-type]
    assert steps is not None
    return output, final_state, steps


def poisoned(value: Tensor) -> Tensor:
    return torch.full(value.shape, float("nan"), dtype=value.dtype, device=value.device)


@pytest.mark.parametrize("key_mode", KEY_MODES)
@pytest.mark.parametrize("gates", [(-100.0, 0.0), (-0.2, 0.0), (0.0, 0.0)])
def test_hostile_inputs(key_mode: str, gates: tuple[float, float], seed: int) -> None:
    x = make_gdn_inputs(T=100, dk=128, dv=128, dtype=torch.bfloat16, device="cuda", seed=seed, gate_range=gates,
                        beta_max=2.0 if key_mode != "unnormalized" else 1.0, key_mode=key_mode)  # fmt: skip
    norm = key_mode == "unnormalized"
    expected, expected_state, _ = oracle(x, use_qk_l2norm=norm)
    out, state = gdn_cuda.recurrent_forward(**x, is_qk_norm=norm, out=poisoned(x["value"]))
    assert rel_rms(out, expected) < BOUND
    assert rel_rms(state, expected_state) < STATE_BOUND


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dk,dv", [(128, 128), (64, 64), (96, 192), (192, 64), (256, 256), (24, 40)])
@pytest.mark.parametrize("with_state", [True, False])
def test_modes_and_dimensions(mode: InferenceMode, dk: int, dv: int, with_state: bool, seed: int) -> None:
    x = make_gdn_inputs(T=7, Hk=2, Hv=6, dk=dk, dv=dv, dtype=torch.bfloat16, device="cuda", seed=seed, gate_range=(-2, 0))
    if not with_state:
        x["state"] = None  # type: ignore[assignment]
    given = {name: t for name, t in x.items() if t is not None}
    expected, final_state, steps = oracle(given)
    out, state = gdn_cuda.recurrent_forward(**x, inference_mode=mode, out=poisoned(x["value"]))
    assert rel_rms(out, expected) < BOUND
    assert rel_rms(state, steps if mode == InferenceMode.SPEC_VERIFY else final_state) < STATE_BOUND


def test_verify_continues_where_tokens_were_accepted(seed: int) -> None:
    x = make_gdn_inputs(B=4, T=5, dk=128, dv=128, dtype=torch.bfloat16, device="cuda", seed=seed, gate_range=(-1, 0))
    _, steps = gdn_cuda.recurrent_forward(**x, inference_mode=InferenceMode.SPEC_VERIFY)
    accepted = torch.tensor([0, 1, 3, 5], device="cuda")
    out, after = gdn_cuda.recurrent_forward(
        **{**x, "state": steps}, num_accepted_tokens=accepted, inference_mode=InferenceMode.SPEC_VERIFY
    )
    start = steps[torch.arange(4), accepted.clamp(min=1) - 1]
    alone, state = gdn_cuda.recurrent_forward(**{**x, "state": start.contiguous()})
    assert torch.equal(out, alone) and torch.equal(after[:, -1], state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_a_packed_batch_equals_each_sequence_alone(mode: InferenceMode, dtype: torch.dtype, seed: int) -> None:
    lengths = [3, 0, 70, 1, 0, 33]
    x = make_packed_gdn_inputs(lengths, dk=128, dv=128, dtype=torch.bfloat16, device="cuda", seed=seed)
    x["state"] = x["state"].to(dtype)
    out, states = gdn_cuda.recurrent_forward(**x, inference_mode=mode, out=poisoned(x["value"]))
    first = 0
    for n, length in enumerate(lengths):
        alone, state = gdn_cuda.recurrent_forward(**take_sequence(x, n), inference_mode=mode)
        assert torch.equal(out[first : first + length], alone[0])
        mine = states[first : first + length] if mode == InferenceMode.SPEC_VERIFY else states[n]
        assert torch.equal(mine, state[0])
        first += length


@pytest.mark.parametrize("B,T", [(0, 5), (2, 0), (1, 1)])
def test_batches_of_no_sequences_and_no_tokens(B: int, T: int) -> None:
    x = make_gdn_inputs(B=B, T=T, dk=64, dv=64, dtype=torch.bfloat16, device="cuda")
    out, state = gdn_cuda.recurrent_forward(**x)
    assert out.shape == (B, T, 4, 64)
    if T == 0:
        assert torch.equal(state, x["state"])


def test_fp16_and_bf16_gate(seed: int) -> None:
    x = make_gdn_inputs(T=40, dk=128, dv=128, dtype=torch.float16, device="cuda", seed=seed, gate_range=(-1, 0))
    x["gate"], x["beta"] = x["gate"].bfloat16(), x["beta"].half()
    expected, expected_state, _ = oracle(x)
    out, state = gdn_cuda.recurrent_forward(**x, out=poisoned(x["value"]))
    assert rel_rms(out, expected) < 1e-3 and rel_rms(state, expected_state) < STATE_BOUND


def test_more_sequences_than_a_grid_dimension_holds(seed: int) -> None:
    x = make_gdn_inputs(B=70000, T=1, Hk=1, Hv=1, dk=8, dv=8, dtype=torch.bfloat16, device="cuda", seed=seed)
    expected, expected_state, _ = oracle(x)
    out, state = gdn_cuda.recurrent_forward(**x, out=poisoned(x["value"]))
    assert rel_rms(out, expected) < BOUND and rel_rms(state, expected_state) < STATE_BOUND
