"""gdn_cuda.nn.HyenaCascade and ShortConv: definitions, calls in parts and token by token, other libraries' parameters."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import pytest
import torch
import torch.nn.functional as F
from computed import Computed
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.nn import HyenaCascade, ShortConv

FILTER_LENGTHS = [None, 3, 7, 32, 33, 64, 128, 150]
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"layout": "heads", "num_attention_heads": 2, "hyena_flip_x1x2": True, "short_filter_bias": True},
    {"layout": "thirds", "hyena_filter_groups": 4},
]


def layer_of(length: int | None, seed: int, **more: Any) -> HyenaCascade:
    torch.manual_seed(seed)
    layer = HyenaCascade(8, length, **more)
    for name in ("D", "short_filter_bias"):
        if getattr(layer, name) is not None:
            torch.nn.init.normal_(getattr(layer, name))
    return layer.requires_grad_(False)


def expected(layer: HyenaCascade, u: Tensor, mask: Tensor | None) -> Tensor:
    """The layer by the oracle's operators; the length selects the inner filter."""
    z = oracle.causal_sum(layer.short_filter_weight.double().numpy()[:, 0, ::-1], u.mT.double().numpy())
    if layer.short_filter_bias is not None:
        z = z + layer.short_filter_bias.double().numpy()[:, None]
    if mask is not None:
        z = z * mask.double().numpy()[:, None]
    x2, x1, v = (torch.from_numpy(x) for x in oracle.split(torch.from_numpy(z), layer.num_attention_heads, layer.layout))
    if layer.hyena_flip_x1x2:
        x1, x2 = x2, x1
    if layer.fir_inner_filter_length is None:
        y, _ = oracle.long(x1, x2, v, layer.residues, layer.log_poles, layer.D)
    elif layer.fir_inner_filter_length >= 128:
        y, _ = oracle.medium(x1, x2, v, layer.h, layer.D, mask)
    else:
        y, _ = oracle.short(x1, x2, v, layer.h, None, False, mask)
    return torch.from_numpy(y).mT


@pytest.mark.parametrize("more", LAYOUTS, ids=["evo2", "heads", "groups"])
@pytest.mark.parametrize("length", FILTER_LENGTHS)
def test_values_parts_and_steps(length: int | None, more: dict[str, Any], seed: int) -> None:
    layer = layer_of(length, seed, **more)
    u = torch.randn(2, 40, 24)
    mask = torch.rand(2, 40) < 0.7
    assert rel_rms(layer(u, padding_mask=mask), expected(layer, u, mask)) < 3e-6
    whole, last = layer(u, return_state=True)
    assert rel_rms(whole, expected(layer, u, None)) < 3e-6
    parts, state = [], None
    for start, end in ((0, 5), (5, 37)):
        y, state = layer(u[:, start:end], state, return_state=True)
        parts.append(y)
    for t in range(37, 40):
        y, state = layer.step(u[:, t], state)
        parts.append(y[:, None])
    assert rel_rms(torch.cat(parts, 1), whole) < 3e-6
    for mine, other in zip(state, last, strict=True):
        assert rel_rms(mine, other) < 3e-6


@pytest.mark.parametrize("length", FILTER_LENGTHS)
def test_masks_of_another_dtype(length: int | None, seed: int) -> None:
    layer, u, mask = layer_of(length, seed).bfloat16(), torch.randn(2, 40, 24).bfloat16(), torch.rand(2, 40) < 0.7
    assert torch.equal(layer(u, padding_mask=mask.float()), layer(u, padding_mask=mask))


@pytest.mark.parametrize("length", [None, 7, 128])
def test_default_states_are_the_beginning_of_a_sequence(length: int | None, seed: int) -> None:
    layer = layer_of(length, seed)
    u, state, parts = torch.randn(2, 6, 24), layer.default_state(2), []
    for t in range(6):
        y, state = layer.step(u[:, t], state)
        parts.append(y)
    assert rel_rms(torch.stack(parts, 1), layer(u)) < 3e-6


def gradients_agree(layer: torch.nn.Module, u: Tensor) -> bool:
    """Compares gradients for the input and all parameters with finite differences."""
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(u: Tensor, *values: Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (u,))

    return torch.autograd.gradcheck(call, (u.requires_grad_(), *parameters))


@pytest.mark.parametrize("length", [None, 7, 40, 128])
def test_gradients(length: int | None, seed: int) -> None:
    torch.manual_seed(seed)
    layer = HyenaCascade(4, length, hyena_filter_groups=2, short_filter_bias=True, dtype=torch.float64)
    assert gradients_agree(layer, torch.randn(2, 6, 12, dtype=torch.float64))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", ["interleaved", "thirds"])
@pytest.mark.parametrize("length", [None, 7, 40, 128])
def test_large_tensors_are_transposed_and_stacked_but_not_copied(length: int | None, layout: str, masked: bool) -> None:
    """As on a GPU: tokens become contiguous once, gradients of y in the layout of x1, and those of x1, x2 and v one tensor."""
    layer, u = HyenaCascade(64, length, layout=layout), torch.randn(2, 600, 192, requires_grad=True)
    weight, mask = torch.randn(2, 600, 64), torch.rand(2, 600) < 0.7
    with Computed(2 * 600 * 64) as forward:
        y = layer(u, padding_mask=mask if masked else None)
    with Computed(2 * 600 * 64) as backward:
        y.backward(weight)
    kind = "long" if length is None else "short" if length <= 32 else "medium"
    product = ["mul"] if masked else []
    assert forward.names == ["transposed", "causal_conv1d", *product, f"hyena_{kind}"]
    made = ["transposed", f"hyena_{kind}_backward", "stack", *product, "causal_conv1d_backward", "transposed"]
    assert backward.names == made
    assert u.grad is not None and u.grad.is_contiguous()


def test_initial_parameters_are_documented() -> None:
    torch.manual_seed(0)
    long, medium = HyenaCascade(512), HyenaCascade(512, 128, hyena_filter_groups=32)
    poles = long.log_poles.exp()
    assert 0.96 < poles.min() < 0.965 and 0.995 < poles.max() < 0.997
    assert abs(long.residues.std() / 0.025 - 1) < 0.05 and not long.D.any()
    assert abs(medium.h.std() * 128**0.5 - 1) < 0.05 and medium.h.shape == (32, 1, 128)
    assert HyenaCascade(8, 7).D is None and HyenaCascade(8, dtype=torch.bfloat16).log_poles.dtype == torch.float32


def test_vortex_parameters_load() -> None:
    vortex_names = {
        None: {"short_filter_weight": (24, 1, 3), "D": (8,), "log_poles": (8, 16, 1), "residues": (8, 16)},
        7: {"short_filter_weight": (24, 1, 3), "h": (8, 1, 7)},
        128: {"short_filter_weight": (24, 1, 3), "D": (8,), "h": (8, 1, 128)},
    }
    for length, shapes in vortex_names.items():
        assert {name: tuple(x.shape) for name, x in HyenaCascade(8, length).state_dict().items()} == shapes


def test_wrong_input() -> None:
    layer = HyenaCascade(8, 7)
    with pytest.raises(ValueError, match=r"^HyenaCascade: u: expected \(B, L, 24\), got \(2, 5, 8\)"):
        layer(torch.ones(2, 5, 8))
    with pytest.raises(ValueError, match=r"^HyenaCascade: u: expected \(B, 24\), got "):
        layer.step(torch.ones(2, 5, 24), layer.default_state(2))
    with pytest.raises(ValueError, match=r"^HyenaCascade: hyena_filter_groups: expected a divisor of 8, got 3"):
        HyenaCascade(8, 7, hyena_filter_groups=3)


# ---- ShortConv


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("K", [1, 3, 8])
def test_short_conv(K: int, bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layer = ShortConv(6, K, bias).requires_grad_(False)
    u = torch.randn(2, 12, 6)
    B, C, x = layer.in_proj(u).mT.chunk(3, 1)
    filtered = F.conv1d(B * x, layer.conv.weight, layer.conv.bias, padding=K - 1, groups=6)[..., :12]
    literal = layer.out_proj((C * filtered).mT)
    whole, last = layer(u, return_state=True)
    assert rel_rms(whole, literal) < 1e-6 and rel_rms(layer(u), whole) == 0
    y, state = layer(u[:, :5], return_state=True)
    parts = [y]
    for t in range(5, 12):
        y, state = layer.step(u[:, t], state)
        parts.append(y[:, None])
    assert rel_rms(torch.cat(parts, 1), whole) < 1e-6 and rel_rms(state, last) < 1e-6
    y, _ = layer.step(u[:, 0], layer.default_state(2))
    assert rel_rms(y, whole[:, 0]) < 1e-6


def test_lfm2_parameter_names() -> None:
    assert list(ShortConv(6, 3).state_dict()) == ["in_proj.weight", "conv.weight", "out_proj.weight"]


def test_wrong_input_of_short_conv() -> None:
    with pytest.raises(ValueError, match=r"^ShortConv: u: expected \(B, L, 6\), got "):
        ShortConv(6)(torch.ones(2, 6))
    with pytest.raises(ValueError, match=r"^ShortConv: u: expected \(B, 6\), got "):
        ShortConv(6).step(torch.ones(2, 3, 6), torch.zeros(2, 6, 2))


def test_gradients_of_short_conv(seed: int) -> None:
    torch.manual_seed(seed)
    assert gradients_agree(ShortConv(3, 4, True).double(), torch.randn(2, 6, 3, dtype=torch.float64))
