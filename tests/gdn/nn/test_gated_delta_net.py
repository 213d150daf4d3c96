"""GatedDeltaNet against transformers' layers with the same random weights, in fp32 and bf16."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch_functions import import_models

from gdn_cuda.nn import GatedDeltaNet

HIDDEN, HK, HV, DK, DV = 32, 2, 4, 64, 16
SIZES = {"linear_num_key_heads": HK, "linear_num_value_heads": HV, "linear_key_head_dim": DK, "linear_value_head_dim": DV}


def theirs(model: str) -> torch.nn.Module:
    """A layer of transformers with random weights, at an index where the model has a Gated Delta Net."""
    transformers = pytest.importorskip("transformers")
    import_models([model])
    config, layer, more = {
        "qwen3_next": ("Qwen3NextConfig", "Qwen3NextGatedDeltaNet", {}),
        "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5GatedDeltaNet", {}),
        "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridGatedDeltaNet", {"linear_allow_neg_eigval": True}),
    }[model]
    shared: dict[str, Any] = SIZES | {"hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 2}
    modeling = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    made: torch.nn.Module = getattr(modeling, layer)(getattr(transformers, config)(**shared, **more), 0)
    return made


def ours(model: str, layer: torch.nn.Module, dtype: torch.dtype) -> GatedDeltaNet:
    more: dict[str, Any] = {"norm_eps": 1e-5, "allow_negative_eigenvalues": True} if model == "olmo_hybrid" else {}
    layout = "qwen3_next" if model == "qwen3_next" else "qwen3_5"
    made = GatedDeltaNet(HIDDEN, (HK, HV), DK, DV, layout=layout, dtype=dtype, **more)
    made.load_state_dict(layer.state_dict())
    return made


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("model", ["qwen3_next", "qwen3_5", "olmo_hybrid"])
def test_prompts_and_tokens(model: str, dtype: torch.dtype, bound: float, seed: int) -> None:
    torch.manual_seed(seed)
    layer = theirs(model).eval()
    for p in layer.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.3)
    x = torch.randn(2, 75, HIDDEN)
    with torch.no_grad():
        expected = layer(x)
    mine = ours(model, layer, dtype)
    assert rel_rms(mine(x.to(dtype)), expected.double()) < bound
    state, slots = mine.new_state(5, columns=5), torch.tensor([4, 2])
    found = [mine(x[:, :66].to(dtype), state, state_indices=slots)]
    found += [mine.step(x[:, t : t + 1].to(dtype), state, state_indices=slots) for t in range(66, 72)]
    found.append(mine.step(x[:, 72:].to(dtype), state, state_indices=slots))
    assert rel_rms(torch.cat(found, 1), expected.double()) < bound
    assert not state.recurrent[[0, 1, 3]].any() and not state.conv[[0, 1, 3]].any()


def test_packed_prompts_that_are_continued(seed: int) -> None:
    torch.manual_seed(seed)
    layer = GatedDeltaNet(HIDDEN, (HK, HV), DK, DV)
    x, state = torch.randn(1, 30, HIDDEN), layer.new_state(3)
    whole = layer(torch.cat([x[:, :10], x[:, 20:]], 1))
    slots = torch.tensor([2, 0])
    first = layer(x[:, :20], state, state_indices=slots, cu_seqlens=torch.tensor([0, 10, 20]))
    again = torch.tensor([True, False])
    offsets = torch.tensor([0, 10, 10])
    second = layer(x[:, 20:], state, state_indices=slots, cu_seqlens=offsets, has_initial_state=again)
    assert rel_rms(torch.cat([first[:, :10], second], 1), whole.double()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_verify(dtype: torch.dtype, seed: int) -> None:
    """Two of three drafted tokens are accepted, and the next verify continues after them."""
    torch.manual_seed(seed)
    layer = GatedDeltaNet(HIDDEN, (HK, HV), DK, DV, dtype=dtype)
    x = torch.randn(1, 9, HIDDEN).to(dtype)
    expected = layer(x)
    state, slots = layer.new_state(4, columns=5), torch.tensor([[1, 2, 3]])
    prompt = state._replace(conv=state.conv[..., :3])
    found = [layer(x[:, :3], prompt, state_indices=slots[:, 0])]
    drafted = torch.cat([x[:, 3:5], torch.randn(1, 1, HIDDEN).to(dtype)], 1)
    for accepted, tokens in ((1, drafted), (2, x[:, 5:8])):
        found.append(layer.step(tokens, state, state_indices=slots, num_accepted_tokens=torch.tensor([accepted])))
    found[1] = found[1][:, :2]
    assert rel_rms(torch.cat(found, 1), expected[:, :8].double()) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("bias", [False, True])
def test_parameters_of_fla(bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layer = GatedDeltaNet(HIDDEN, (HK, HV), DK, DV, layout="qwen3_5", norm_eps=1e-5, conv_bias=bias)
    given = layer.state_dict()
    q, k, v, z = given.pop("in_proj_qkvz.weight").split([HK * DK, HK * DK, HV * DV, HV * DV])
    b, a = given.pop("in_proj_ba.weight").split([HV, HV])
    convolutions = given.pop("conv1d.weight").split([HK * DK, HK * DK, HV * DV])
    names = {"q_proj": q, "k_proj": k, "v_proj": v, "g_proj": z, "b_proj": b, "a_proj": a}
    names |= dict(zip(("q_conv1d", "k_conv1d", "v_conv1d"), convolutions, strict=True))
    names |= {"o_norm": given.pop("norm.weight"), "o_proj": given.pop("out_proj.weight")}
    other = GatedDeltaNet(HIDDEN, (HK, HV), DK, DV, layout="qwen3_5", norm_eps=1e-5, conv_bias=bias)
    given |= {f"{name}.weight": weight for name, weight in names.items()}
    if bias:
        biases = given.pop("conv1d.bias").split([HK * DK, HK * DK, HV * DV])
        given |= {f"{name}_conv1d.bias": each for name, each in zip("qkv", biases, strict=True)}
    other.load_state_dict(given)
    x = torch.randn(2, 5, HIDDEN)
    assert torch.equal(layer(x), other(x))


@pytest.mark.parametrize("dk,dv,state", [(20, 12, torch.float32), (64, 20, torch.float32), (64, 16, torch.float16)])
def test_sizes_and_states_that_the_fused_step_does_not_support(dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    layer, x = GatedDeltaNet(HIDDEN, (HK, HV), dk, dv, dtype=torch.bfloat16), torch.randn(2, 9, HIDDEN).bfloat16()
    pools = layer.new_state(2, dtype=state)
    found = [layer(x[:, :7], pools), layer.step(x[:, 7:8], pools), layer.step(x[:, 8:], pools)]
    assert rel_rms(torch.cat(found, 1), layer(x).double()) < 2e-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_recurrences_and_their_states_are_fp32_at_least(dtype: torch.dtype) -> None:
    layer = GatedDeltaNet(HIDDEN, (HK, HV), DK, DV, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert layer.A_log.dtype == layer.dt_bias.dtype == layer.new_state(2).recurrent.dtype == wide
    assert layer.norm.weight.dtype == layer.new_state(2).conv.dtype == dtype
    assert layer.new_state(2, dtype=torch.bfloat16).recurrent.dtype == torch.bfloat16


def test_wrong_input() -> None:
    layer = GatedDeltaNet(HIDDEN, (HK, HV), DK, DV)
    with pytest.raises(ValueError, match="GatedDeltaNet: x: expected"):
        layer(torch.zeros(1, 3, HIDDEN + 1))
    with pytest.raises(ValueError, match="GatedDeltaNet: state_indices: expected None"):
        layer(torch.zeros(1, 3, HIDDEN), state_indices=torch.tensor([0]))
    with pytest.raises(ValueError, match="GatedDeltaNet: layout: expected"):
        GatedDeltaNet(HIDDEN, (HK, HV), DK, DV, layout="split")
    with pytest.raises(ValueError, match="GatedDeltaNet: heads: expected"):
        GatedDeltaNet(HIDDEN, (2, 3), DK, DV)
    parts = {f"in_proj_{name}.weight": torch.zeros(1) for name in ("qkv", "z", "b", "a")}
    with pytest.raises(ValueError, match="GatedDeltaNet: layout: expected 'qwen3_5'"):
        layer.load_state_dict(parts)
