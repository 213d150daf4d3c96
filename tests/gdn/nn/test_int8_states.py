"""Layers with recurrent states of int8: of modules, and between their projections; codes are refused where there are no
scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda.compat import fla
from gdn_cuda.layers.decode_layer import layer_arguments
from gdn_cuda.layers.kda_decode_layer import layer_arguments as kda_arguments
from gdn_cuda.nn import GatedDeltaNet, KimiDeltaAttention

HIDDEN = 32
MODULES = {"GatedDeltaNet": GatedDeltaNet, "KimiDeltaAttention": KimiDeltaAttention}


def made(name: str, dtype: torch.dtype) -> Any:
    layer = MODULES[name](HIDDEN, (1, 2), 64, 16, dtype=dtype)
    return layer.requires_grad_(False)


@pytest.mark.parametrize("name", MODULES)
def test_scales_belong_to_codes(name: str) -> None:
    layer, x = made(name, torch.bfloat16), torch.randn(2, 1, HIDDEN).bfloat16()
    state, wide = layer.new_state(2, dtype=torch.int8), layer.new_state(2)
    assert wide.scales is None and state.scales.shape == (2, 2, 16, 2)
    for call in (layer, layer.step):
        with pytest.raises(ValueError, match=rf"^{name}: state.scales: expected a tensor, as states are int8, got None"):
            call(x, state._replace(scales=None))
        with pytest.raises(ValueError, match=rf"^{name}: state.scales: expected None, as states are float32, got a tensor"):
            call(x, wide._replace(scales=state.scales))
    assert not state.conv.any() and not wide.conv.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_prompts_and_tokens(name: str, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    layer, x = made(name, dtype), torch.randn(2, 40, HIDDEN).to(dtype)
    state, slots = layer.new_state(5, dtype=torch.int8), torch.tensor([4, 2])
    found = [layer(x[:, :36], state, state_indices=slots)]
    found += [layer.step(x[:, t : t + 1], state, state_indices=slots) for t in range(36, 40)]
    assert rel_rms(torch.cat(found, 1), layer(x).double()) < 3e-2
    others = [0, 1, 3]
    assert not state.recurrent[others].any() and not state.scales[others].any() and bool((state.scales[slots] > 0).any())


def prompts(kda: bool) -> tuple[Any, dict[str, Any]]:
    if not kda:
        return gdn_cuda.gdn_prefill_layer, layer_arguments(2, 5, 0, "split") | {"state_indices": torch.tensor([1, 2])}
    x = kda_arguments(2, 0) | {"state_indices": torch.tensor([1, 2]), "lower_bound": -5.0, "key_heads": 1}
    return gdn_cuda.kda_prefill_layer, x | {name: torch.stack([x[name]] * 3, 1) for name in ("qkv", "a", "b", "z")}


@pytest.mark.parametrize("kda", [False, True])
def test_prompts_between_projections(kda: bool) -> None:
    function, x = prompts(kda)
    codes, scales = gdn_cuda.convert_states(x["state_pool"], torch.int8)
    assert scales is not None
    wide = x | {"conv_pool": x["conv_pool"].clone(), "state_pool": gdn_cuda.convert_states(codes, torch.float32, scales)[0]}
    coded = x | {"state_pool": codes, "state_scales": scales}
    name, before = function.__name__, (codes.clone(), x["conv_pool"].clone())
    for wrong, argument, expected in (
        ({"state_scales": None}, "state_scales", "a tensor, as state_pool is int8"),
        ({"state_pool": wide["state_pool"]}, "state_scales", "None, as state_pool is float32"),
        ({"state_scales": scales[..., :1]}, "state_scales", "the shape of state_pool"),
        ({"state_scales": codes.view(torch.float32)[..., :2]}, "state_pool|state_scales", ""),
        ({"conv_pool": None, "state_pool": None, "state_indices": None}, "state_scales", "None without pools"),
        ({"state_scales": 1.0}, "state_scales", "a tensor"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: ({argument}): expected .*{expected}.*, got .+"):
            function(**coded | wrong)
    assert torch.equal(codes, before[0]) and torch.equal(x["conv_pool"], before[1])
    assert torch.equal(function(**coded), function(**wide))
    again, new = gdn_cuda.convert_states(wide["state_pool"][1:3].contiguous(), torch.int8)
    assert torch.equal(codes[1:3], again) and torch.equal(scales[1:3], new)
    assert torch.equal(codes[[0, 3]], before[0][[0, 3]]) and torch.equal(x["conv_pool"], wide["conv_pool"])


@pytest.mark.parametrize("function", [
    fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule, fla.chunk_kda, fla.fused_recurrent_kda,
])  # fmt: skip
def test_functions_of_fla_take_no_codes(function: Any) -> None:
    """A state without scales would be its codes."""
    q, k, v, beta = (torch.rand(1, 3, 2, *d) for d in ((32,), (32,), (16,), ()))
    g = -torch.rand(1, 3, 2, *((32,) if "kda" in function.__name__ else ()))
    state: Tensor = torch.ones(1, 2, 32, 16, dtype=torch.int8)
    with pytest.raises(ValueError, match=rf"^{function.__name__}: initial_state: expected .+, got int8"):
        function(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True)
