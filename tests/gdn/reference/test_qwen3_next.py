"""The reference against the plain-torch functions of Qwen3-Next in transformers (4.57.6, 5.23.0 and 5.24.0).

Its conventions: gate is called g, heads are already repeated, the state is (B,Hv,dk,dv), scale is dk^-0.5, arithmetic is fp32,
the output has the query's dtype, and l2norm runs in the dtype of the inputs.
"""

import sys

import pytest
import torch
from helpers import rel_rms

from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs
from gdn_cuda.reference import chunked, fused_gdn_gating, recurrent

with pytest.MonkeyPatch.context() as patch:
    for package in ("fla", "causal_conv1d"):  # transformers would use their functions, which need a GPU
        patch.setitem(sys.modules, package, None)
    theirs = pytest.importorskip(
        "transformers.models.qwen3_next.modeling_qwen3_next", reason="transformers with Qwen3-Next is not installed"
    )
FP32_TOLERANCE = 3e-5  # both sides compute in fp32, each with an error of up to 1e-5


def run_theirs(function, x, **options):
    ratio = x["value"].shape[2] // x["key"].shape[2]
    query, key = (x[n].repeat_interleave(ratio, dim=2) for n in ("query", "key"))
    state = x["state"].transpose(-1, -2)
    arguments = {"g": x["gate"], "beta": x["beta"], "initial_state": state, "output_final_state": True}
    output, final = function(query, key, x["value"], **arguments, **options)
    return output, final.transpose(-1, -2)


@pytest.mark.parametrize("T", [1, 63, 64, 150])
@pytest.mark.parametrize("heads", [(2, 2), (2, 4), (1, 3)])
@pytest.mark.parametrize("l2norm", [False, True])
@pytest.mark.parametrize("key_mode", KEY_MODES[:4])
def test_recurrent_and_chunked_forward_equal_qwen3_next(T, heads, l2norm, key_mode, seed):
    x = make_gdn_inputs(2, T, *heads, 32, 16, torch.float32, seed=seed, gate_range=(-20.0, 0.0), key_mode=key_mode)
    for function in (theirs.torch_recurrent_gated_delta_rule, theirs.torch_chunk_gated_delta_rule):
        expected, expected_final = run_theirs(function, x, use_qk_l2norm_in_kernel=l2norm)
        for form in (recurrent, chunked):
            output, final, _ = form(**x, use_qk_l2norm=l2norm)
            assert rel_rms(output, expected) < FP32_TOLERANCE
            assert rel_rms(final, expected_final) < FP32_TOLERANCE


def test_gating_and_decode_equal_qwen3_next(seed, rng):
    """From raw projections, as in the model's layer: g = −exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)."""
    x = make_gdn_inputs(2, 70, 2, 4, 32, 16, torch.float32, seed=seed)
    a, b = (torch.randn(2, 70, 4, generator=rng) for _ in range(2))
    A_log, dt_bias = torch.rand(4, generator=rng).mul(16).log(), torch.ones(4)
    x["gate"] = -A_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    x["beta"] = b.sigmoid()
    expected, expected_final = run_theirs(theirs.torch_recurrent_gated_delta_rule, x)
    beta, gate = fused_gdn_gating(A_log, dt_bias, a, b)
    output, final, _ = recurrent(**(x | {"beta": beta, "gate": gate}))
    assert rel_rms(output, expected) < FP32_TOLERANCE
    assert rel_rms(final, expected_final) < FP32_TOLERANCE
