"""KimiDeltaAttention against its definition in fp64, and against transformers' layers with the same random weights."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor
from torch_functions import import_models

from gdn_cuda.nn import KimiDeltaAttention

HIDDEN, HEADS, DIM = 32, 3, 64
BOUND = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def definition(layer: KimiDeltaAttention, x: Tensor) -> Tensor:
    """The layer token by token in fp64, with the parameters by name."""
    p = {name: y.detach().double() for name, y in layer.named_parameters()}
    x, (Hk, Hv), dk, dv = x.double(), layer.heads, layer.head_k_dim, layer.head_v_dim
    B, L, rank = x.shape[0], x.shape[1], layer.gate_rank
    qkv, fgb = x @ p["in_proj_qkv.weight"].T, x @ p["in_proj_fgb.weight"].T
    weight = p["conv1d.weight"][:, 0]
    taps = weight.shape[1]
    padded = torch.cat([torch.zeros(B, taps - 1, qkv.shape[2], dtype=torch.float64), qkv], 1)
    y = sum(padded[:, k : k + L] * weight[:, k] for k in range(taps)) + p.get("conv1d.bias", torch.zeros(()))
    y = y / (1 + torch.exp(-y))
    q, k = (part.reshape(B, L, Hk, dk) for part in y[..., : 2 * Hk * dk].split(Hk * dk, -1))
    v = y[..., 2 * Hk * dk :].reshape(B, L, Hv, dv)
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    raw = (fgb[..., :rank] @ p["f_proj.weight"].T + p["dt_bias"]).reshape(B, L, Hv, dk)
    rate = p["A_log"].exp()[:, None]
    if layer.lower_bound is None:
        decays = torch.exp(-rate * torch.log1p(torch.exp(raw)))
    else:
        decays = torch.exp(layer.lower_bound / (1 + torch.exp(-rate * raw)))
    beta = 1 / (1 + torch.exp(-fgb[..., 2 * rank :])) * (2 if layer.allow_negative_eigenvalues else 1)
    gate = fgb[..., rank : 2 * rank] @ p["g_proj.weight"].T + p.get("g_proj.bias", torch.zeros(()))
    S, rows = torch.zeros(B, Hv, dv, dk, dtype=torch.float64), []
    for t in range(L):
        queries, keys = (part[:, t].repeat_interleave(Hv // Hk, 1) for part in (q, k))
        S = S * decays[:, t, :, None]
        error = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhvk,bhk->bhv", S, keys))
        S = S + error[..., None] * keys[:, :, None]
        o = torch.einsum("bhvk,bhk->bhv", S, queries) / math.sqrt(dk)
        o = o / (o.square().mean(-1, keepdim=True) + layer.norm_eps).sqrt() * p["norm.weight"]
        rows.append(o.flatten(1) / (1 + torch.exp(-gate[:, t])))
    return torch.stack(rows, 1) @ p["out_proj.weight"].T


FORMS: dict[str, dict[str, Any]] = {
    "Kimi Linear": {},
    "bounded": {"lower_bound": -5.0},
    "with biases": {"conv_bias": True, "gate_bias": True, "gate_rank": 5, "norm_eps": 1e-3},
    "three taps": {"conv_size": 3, "allow_negative_eigenvalues": True},
    "seven taps": {"conv_size": 7},
}


def made(form: str, heads: tuple[int, int], dk: int, dv: int, dtype: torch.dtype) -> KimiDeltaAttention:
    layer = KimiDeltaAttention(HIDDEN, heads, dk, dv, dtype=dtype, **FORMS[form]).requires_grad_(False)
    for parameter in layer.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    torch.nn.init.normal_(layer.norm.weight)
    return layer


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads, dk, dv", [((1, 1), 64, 64), ((2, 4), 64, 16), ((1, 3), 20, 12)])
def test_prompts_and_tokens(heads: tuple[int, int], dk: int, dv: int, form: str, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    layer, x = made(form, heads, dk, dv, dtype), torch.randn(2, 70, HIDDEN).to(dtype)
    expected = definition(layer, x)
    assert rel_rms(layer(x), expected) < BOUND[dtype]
    state, slots = layer.new_state(5), torch.tensor([4, 2])
    found = [layer(x[:, :66], state, state_indices=slots)]
    found += [layer.step(x[:, t : t + 1], state, state_indices=slots) for t in range(66, 70)]
    assert rel_rms(torch.cat(found, 1), expected) < BOUND[dtype]
    assert not state.recurrent[[0, 1, 3]].any() and not state.conv[[0, 1, 3]].any()


def theirs(model: str) -> torch.nn.Module:
    """A layer of transformers with random weights."""
    transformers = pytest.importorskip("transformers")
    import_models([model])
    modeling = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    sizes: dict[str, Any] = {"hidden_size": HIDDEN, "linear_num_heads": HEADS, "linear_head_dim": DIM, "num_hidden_layers": 4}
    sizes["layer_types"] = ["linear_attention"] * 4
    config, layer = {
        "kimi_linear": ("KimiLinearConfig", "KimiLinearDeltaAttention"),
        "glm5_next": ("Glm5NextTextConfig", "Glm5NextTextLinearAttention"),
    }[model]
    found: torch.nn.Module = getattr(modeling, layer)(getattr(transformers, config)(**sizes), 0).eval()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", ["kimi_linear", "glm5_next"])
def test_layers_of_transformers(model: str, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    layer = theirs(model)
    for name, parameter in layer.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if "A_log" in name else 0.3)
    x = torch.randn(2, 75, HIDDEN)
    with torch.no_grad():
        expected = layer(x)
    bound = getattr(layer.forget_gate, "safe_gate_lower_bound", None)
    assert (bound is None) == (model == "kimi_linear")
    mine = KimiDeltaAttention(
        HIDDEN, (HEADS, HEADS), DIM, DIM, lower_bound=bound, norm_eps=layer.layer_norm_epsilon, dtype=dtype
    )
    mine.load_state_dict(layer.state_dict())
    mine.requires_grad_(False)
    x = x.to(dtype)
    assert rel_rms(mine(x), expected.double()) < BOUND[dtype]
    state = mine.new_state(2)
    found = [mine(x[:, :70], state), *(mine.step(x[:, t : t + 1], state) for t in range(70, 75))]
    assert rel_rms(torch.cat(found, 1), expected.double()) < BOUND[dtype]


@pytest.mark.parametrize("names", ["FLA", "Moonshot"])
def test_parameters_of_other_checkpoints(names: str, seed: int) -> None:
    torch.manual_seed(seed)
    more: dict[str, Any] = {"gate_bias": names == "FLA", "conv_bias": names == "FLA"}
    layer = KimiDeltaAttention(HIDDEN, (2, 4), 64, 16, **more).requires_grad_(False)
    given = layer.state_dict()
    rows, keys, rank = 4 * 16, 2 * 64, layer.gate_rank
    f_a, f_b, g_a, g_b = ("f_proj.0", "f_proj.1", "g_proj.0", "g_proj.1")
    if names == "Moonshot":
        f_a, f_b, g_a, g_b = "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj"
        given["A_log"] = given["A_log"].view(1, 1, 4, 1)
    parts = dict(zip(("q_proj", "k_proj", "v_proj"), given.pop("in_proj_qkv.weight").split([keys, keys, rows]), strict=True))
    parts |= dict(zip((f_a, g_a, "b_proj"), given.pop("in_proj_fgb.weight").split([rank, rank, 4]), strict=True))
    convolutions = "q_conv1d", "k_conv1d", "v_conv1d"
    parts |= dict(zip(convolutions, given.pop("conv1d.weight").split([keys, keys, rows]), strict=True))
    parts |= {f_b: given.pop("f_proj.weight"), g_b: given.pop("g_proj.weight")}
    parts |= {"o_norm": given.pop("norm.weight"), "o_proj": given.pop("out_proj.weight")}
    given |= {f"{name}.weight": weight for name, weight in parts.items()}
    if names == "FLA":
        given[f"{g_b}.bias"] = given.pop("g_proj.bias")
        biases = given.pop("conv1d.bias").split([keys, keys, rows])
        given |= {f"{name}.bias": bias for name, bias in zip(convolutions, biases, strict=True)}
    other = KimiDeltaAttention(HIDDEN, (2, 4), 64, 16, **more).requires_grad_(False)
    other.load_state_dict(given)
    x = torch.randn(2, 5, HIDDEN)
    assert torch.equal(layer(x), other(x))
    del given["q_proj.weight"]
    with pytest.raises(RuntimeError, match=r"in_proj_qkv\.weight"):
        other.load_state_dict(given)


def test_packed_prompts_that_are_continued(seed: int) -> None:
    torch.manual_seed(seed)
    layer = made("bounded", (2, 4), 64, 16, torch.float32)
    x, state = torch.randn(1, 30, HIDDEN), layer.new_state(3)
    whole = layer(torch.cat([x[:, :10], x[:, 20:]], 1))
    slots = torch.tensor([2, 0])
    first = layer(x[:, :20], state, state_indices=slots, cu_seqlens=torch.tensor([0, 10, 20]))
    again = torch.tensor([True, False])
    offsets = torch.tensor([0, 10, 10])
    second = layer(x[:, 20:], state, state_indices=slots, cu_seqlens=offsets, has_initial_state=again)
    assert rel_rms(torch.cat([first[:, :10], second], 1), whole.double()) < 1e-5
    assert torch.equal(layer(x[:, :20], cu_seqlens=torch.tensor([0, 10, 20])), first)


def test_a_null_slot_is_padding(seed: int) -> None:
    torch.manual_seed(seed)
    layer = made("Kimi Linear", (1, 2), 64, 16, torch.bfloat16)
    state, x = layer.new_state(3), torch.randn(2, 1, HIDDEN).bfloat16()
    out = layer.step(x, state, state_indices=torch.tensor([0, 2]), null_slot=0)
    assert not out[0].any() and out[1].any() and not state.recurrent[:2].any() and state.recurrent[2].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_recurrences_and_their_states_are_fp32_at_least(dtype: torch.dtype) -> None:
    layer = KimiDeltaAttention(HIDDEN, (1, 2), 64, 16, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert layer.A_log.dtype == layer.dt_bias.dtype == layer.new_state(2).recurrent.dtype == wide
    assert layer.norm.weight.dtype == layer.new_state(2).conv.dtype == dtype
    assert layer.new_state(2, dtype=torch.bfloat16).recurrent.dtype == torch.bfloat16


def test_initial_values() -> None:
    layer = KimiDeltaAttention(HIDDEN, (64, 64), 16, 16)
    rates, dt = layer.A_log.exp(), torch.nn.functional.softplus(layer.dt_bias)
    assert rates.min() >= 1 and rates.max() <= 16 and rates.std() > 3
    assert dt.min() > 0.0009 and dt.max() < 0.11 and 0.3 < dt.log().std() / math.log(100) * 12**0.5 < 1.7
    assert not KimiDeltaAttention(HIDDEN, (1, 2), 64, 16, lower_bound=-5.0).A_log.any()
    assert layer.A_log._no_weight_decay and layer.dt_bias._no_weight_decay


def test_gradients(seed: int) -> None:
    """Those of the definition, or the refusal of the operator that has none."""
    torch.manual_seed(seed)
    layer = made("bounded", (1, 2), 64, 16, torch.float64).requires_grad_()
    x = torch.randn(1, 20, HIDDEN, dtype=torch.float64, requires_grad=True)
    try:
        layer(x).square().sum().backward()
    except ValueError as error:
        assert "where an input requires a gradient" in str(error), error
        with torch.no_grad():
            assert rel_rms(layer(x), definition(layer, x)) < 1e-12
        return
    direction = {name: torch.randn_like(p) for name, p in layer.named_parameters()}
    by_backward = sum((p.grad * direction[name]).sum() for name, p in layer.named_parameters())
    step, values = 1e-6, []
    with torch.no_grad():
        for sign in (1, -2):
            for name, p in layer.named_parameters():
                p += sign * step * direction[name]
            values.append(definition(layer, x).square().sum())
    by_difference = (values[0] - values[1]) / (2 * step)
    assert abs(by_backward - by_difference) < 1e-6 * abs(by_difference)


def test_wrong_input() -> None:
    layer = KimiDeltaAttention(HIDDEN, (1, 2), 64, 16).requires_grad_(False)
    with pytest.raises(ValueError, match="KimiDeltaAttention: x: expected"):
        layer(torch.zeros(1, 3, HIDDEN + 1))
    with pytest.raises(ValueError, match="KimiDeltaAttention: x: expected"):
        layer.step(torch.zeros(1, 2, HIDDEN), layer.new_state(2))
    with pytest.raises(ValueError, match="KimiDeltaAttention: state_indices: expected None"):
        layer(torch.zeros(1, 3, HIDDEN), state_indices=torch.tensor([0]))
    with pytest.raises(ValueError, match="KimiDeltaAttention: lower_bound: expected"):
        KimiDeltaAttention(HIDDEN, (1, 2), 64, 16, lower_bound=0.0)
    with pytest.raises(ValueError, match="KimiDeltaAttention: heads: expected"):
        KimiDeltaAttention(HIDDEN, (2, 3), 64, 16)
