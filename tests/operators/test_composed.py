"""Functions and layers that call several operators, of which some write: a refused call has written nothing, and overlapping
buffers are refused, as by a single operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from operator_cases import copied
from torch import Tensor

import gdn_cuda
from gdn_cuda.layers.decode_layer import by_operators, layer_arguments
from gdn_cuda.layers.kda_decode_layer import by_operators as kda_by_operators
from gdn_cuda.layers.kda_decode_layer import layer_arguments as kda_arguments
from gdn_cuda.layers.mamba2_decode_layer import layer_arguments as mamba2_arguments
from gdn_cuda.nn import GatedDeltaNet, HyenaCascade, Mamba, Mamba2
from gdn_cuda.nn.gated_delta_net import GatedDeltaNetState
from gdn_cuda.nn.hyena import HyenaState
from gdn_cuda.nn.mamba import MambaState
from gdn_cuda.nn.mamba2 import Mamba2State

Arguments = dict[str, Any]
MESSAGE = re.compile(r"[\w.]+: [\w.]+: expected .+, got .+", re.DOTALL)
POOLS = ("conv_pool", "state_pool")


@dataclass(frozen=True)
class Composed:
    function: Callable[..., Any]
    make: Callable[[], Arguments]
    written: tuple[str, ...]  # in the order in which the call writes them
    own_errors: bool = True  # whether every error has our form
    optional: tuple[str, ...] = ()  # of the tensors that `make` gives


def prompts(layout: str, packed: bool) -> Arguments:
    x = layer_arguments(1 if packed else 2, 5, 0, layout, slots=4)
    x |= {"state_indices": torch.tensor([3, 1]), "has_initial_state": torch.tensor([True, False])}
    return x | ({"cu_seqlens": torch.tensor([0, 2, 5])} if packed else {})


def tokens(layout: str, io: torch.dtype, verify: bool) -> Arguments:
    x = layer_arguments(2, 3 if verify else 1, 0, layout, slots=8, columns=5 if verify else 3, io=io)
    if not verify:
        return x | {"state_indices": torch.tensor([3, 1])}
    return x | {"state_indices": torch.arange(6).view(2, 3), "num_accepted_tokens": torch.tensor([1, 3])}


def hyena(taps: int | None) -> Composed:
    torch.manual_seed(0)
    layer = HyenaCascade(8, taps, hyena_filter_groups=2).requires_grad_(False)

    def make() -> Arguments:
        state = layer.default_state(2)
        return {"u": torch.randn(2, 24), "fir": torch.randn_like(state.fir), "inner": torch.randn_like(state.inner)}

    return Composed(lambda u, fir, inner: layer.step(u, HyenaState(fir, inner)), make, ("fir", "inner"), own_errors=False)


def mamba() -> Composed:
    torch.manual_seed(0)
    block = Mamba(16).requires_grad_(False)

    def make() -> Arguments:
        state = block.default_state(2)
        return {"u": torch.randn(2, 16), "conv": torch.randn_like(state.conv), "ssm": torch.randn_like(state.ssm)}

    return Composed(lambda u, conv, ssm: block.step(u, MambaState(conv, ssm)), make, ("conv", "ssm"), own_errors=False)


def mamba2(states: int = 8, batch: int = 2) -> Composed:
    """With 64 states and 4 sequences its step is one launch."""
    torch.manual_seed(0)
    layer = Mamba2(16, states, headdim=8, ngroups=2, d_ssm=16).requires_grad_(False)

    def make() -> Arguments:
        state = layer.default_state(batch)
        return {"u": torch.randn(batch, 16), "conv": torch.randn_like(state.conv), "ssm": torch.randn_like(state.ssm)}

    return Composed(lambda u, conv, ssm: layer.step(u, Mamba2State(conv, ssm)), make, ("conv", "ssm"), own_errors=False)


def mamba2_layer() -> Composed:
    """With a norm, which is another operator."""

    def make() -> Arguments:
        x = mamba2_arguments(2, 0, slots=4)
        return x | {"state_indices": torch.tensor([3, 1]), "norm_weight": torch.ones(8)}

    return Composed(gdn_cuda.mamba2_decode_layer, make, POOLS, own_errors=False, optional=("D", "dt_bias", "z", "norm_weight"))


def kda_layer(separate: bool) -> Composed:
    """By three operators, or five with pools for each of query, key and value."""

    def make() -> Arguments:
        x = kda_arguments(2, 0, slots=4, separate=separate)
        return x | {"state_indices": torch.tensor([3, 1]), "lower_bound": -5.0}

    pools = ("conv_pool", "key_conv_pool", "value_conv_pool", "state_pool") if separate else POOLS
    optional = ("conv_bias", "A_log", "dt_bias")
    return Composed(kda_by_operators, make, pools, own_errors=False, optional=optional)


def kda_prompts(packed: bool) -> Composed:
    def make() -> Arguments:
        x = kda_arguments(1 if packed else 2, 0, slots=4) | {"state_indices": torch.tensor([3, 1]), "lower_bound": -5.0}
        for name in ("qkv", "a", "b", "z"):
            x[name] = torch.stack([x[name]] * 5, 1)
        x |= {"has_initial_state": torch.tensor([True, False]), "key_heads": 1}
        return x | ({"cu_seqlens": torch.tensor([0, 2, 5])} if packed else {})

    return Composed(gdn_cuda.kda_prefill_layer, make, POOLS, optional=("conv_bias", "A_log", "dt_bias"))


def delta_net(step: bool, dtype: torch.dtype) -> Composed:
    torch.manual_seed(0)
    layer = GatedDeltaNet(32, (1, 2), 64, 8, dtype=dtype).requires_grad_(False)

    def make() -> Arguments:
        state = layer.new_state(4)
        x = {"x": torch.randn(2, 1 if step else 7, 32, dtype=dtype), "state_indices": torch.tensor([3, 1])}
        return x | {"conv": torch.randn_like(state.conv), "recurrent": torch.randn_like(state.recurrent)}

    def call(x: Tensor, conv: Tensor, recurrent: Tensor, **more: Any) -> Tensor:
        return (layer.step if step else layer)(x, GatedDeltaNetState(conv, recurrent), **more)

    return Composed(call, make, ("conv", "recurrent"), own_errors=False)


LAYERS = {
    f"prefill-{layout}{'-packed' * packed}": Composed(
        gdn_cuda.gdn_prefill_layer, lambda layout=layout, packed=packed: prompts(layout, packed), POOLS
    )
    for layout in ("qwen3_next", "qwen3_5", "split")
    for packed in (False, True)
}
LAYERS |= {
    f"operators-{layout}{'-verify' * verify}": Composed(
        by_operators, lambda layout=layout, verify=verify: tokens(layout, torch.float32, verify), POOLS, optional=("dt_bias",)
    )
    for layout in ("qwen3_next", "qwen3_5", "split")
    for verify in (False, True)
}
LAYERS |= {f"kda-prefill{'-packed' * packed}": kda_prompts(packed) for packed in (False, True)}
ONE = {"decode": Composed(gdn_cuda.gdn_decode_layer, lambda: tokens("split", torch.bfloat16, True), POOLS)}
STEPS = {f"hyena-{taps}": hyena(taps) for taps in (None, 7, 128)} | {"mamba": mamba(), "mamba2": mamba2()}
STEPS |= {"mamba2-one-launch": mamba2(64, 4), "mamba2-layer": mamba2_layer()}
STEPS |= {"kda": kda_layer(False), "kda-separate": kda_layer(True)}
STEPS |= {
    "delta-net": delta_net(False, torch.float32),
    "delta-net-step": delta_net(True, torch.bfloat16),
    "delta-net-step-fp32": delta_net(True, torch.float32),
}
EVERY = LAYERS | ONE | STEPS


def tensors(x: Arguments) -> list[str]:
    return [name for name, y in x.items() if isinstance(y, Tensor)]


def defects(x: Arguments, name: str, written: bool) -> Iterator[tuple[str, Any, bool]]:
    """(description, the argument with the defect, whether every call refuses it)"""
    y = x[name]
    yield "None", None, name not in ("state_indices", "has_initial_state", "num_accepted_tokens", "conv_bias", "cu_seqlens")
    yield "not a tensor", "x", True
    yield "no dimensions", y.new_zeros(()), True
    yield "another dimension", copied(y).unsqueeze(0), True
    yield "complex", y.to(torch.complex64), True
    yield "another device", y.to("meta"), True
    for d in range(y.dim()):
        yield f"dimension {d} smaller", copied(y.narrow(d, 0, y.shape[d] - 1)), False
        yield f"dimension {d} larger", torch.cat([y, y.narrow(d, 0, 1)], d), False
    if y.is_floating_point():
        yield "fp64", y.double(), False
        yield "NaN", torch.full_like(y, torch.nan), False
    else:
        yield "past the end", torch.full_like(y, 100), False
        yield "another integer type", y.to(torch.int16), False
    if written:
        yield "a negative view", torch._neg_view(copied(y)), True
        yield "a leaf that requires a gradient", copied(y).requires_grad_(), True
        yield "a view of a leaf", torch.stack([y, y]).requires_grad_()[0], True
        yield "on itself", y[:1].expand(y.shape), True
        yield "a view on itself", y.new_zeros(y.shape[-1:]).expand(y.shape), True


@pytest.mark.parametrize("case", EVERY.values(), ids=EVERY)
def test_a_refused_call_has_written_nothing(case: Composed) -> None:
    wrong, refused = [], 0
    for name in tensors(case.make()):
        torch.manual_seed(1)
        for what, broken, must in defects(case.make(), name, name in case.written):
            x = case.make() | {name: broken}
            kept = {each: x[each] for each in case.written if isinstance(x[each], Tensor) and x[each].device.type == "cpu"}
            before = {each: y.detach().clone() for each, y in kept.items()}
            try:
                case.function(**x)
            except Exception as error:
                refused += 1
                changed = [
                    each for each, y in kept.items() if not torch.equal(y.detach().nan_to_num(7), before[each].nan_to_num(7))
                ]
                if changed:
                    wrong.append(f"{name}, {what}: {', '.join(changed)} written before: {error}")
                if case.own_errors and not (isinstance(error, (ValueError, IndexError)) and MESSAGE.fullmatch(str(error))):
                    wrong.append(f"{name}, {what}: {type(error).__name__}: {error}")
            else:
                if must and not (broken is None and name in case.optional):
                    wrong.append(f"{name}, {what}: accepted")
    assert not wrong, "\n".join(wrong)
    assert refused >= 10


@pytest.mark.parametrize("case", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("memory", ["inference tensor", "one of several views", "view made in no_grad"])
def test_memory_that_autograd_cannot_track_is_refused_before_anything_is_written(case: Composed, memory: str) -> None:
    for name in case.written:
        x = case.make()
        first = next(iter(x))
        x[first] = x[first].requires_grad_()
        given = x[name]
        if memory == "one of several views":
            x[name] = torch.stack([given, given]).unbind(0)[0]
        else:
            with torch.inference_mode() if memory == "inference tensor" else torch.no_grad():
                x[name] = torch.stack([given, given])[0]
        before = {each: x[each].detach().clone() for each in case.written}
        with pytest.raises(ValueError, match=f"{name}: expected memory that autograd can track, as {first}"):
            case.function(**x)
        assert all(torch.equal(x[each].detach(), y) for each, y in before.items())


# ---- Overlaps


def inside(outer: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors with their strides in one memory, which both start at; the second one's values are written last."""
    bytes_of = [
        (sum((n - 1) * s for n, s in zip(y.shape, y.stride(), strict=True)) + 1) * y.element_size() for y in (outer, inner)
    ]
    memory = torch.zeros(-(-max(bytes_of) // 16) * 16, dtype=torch.uint8)
    both = [memory.view(y.dtype).as_strided(y.shape, y.stride()) for y in (outer, inner)]
    both[0].copy_(outer)
    both[1].copy_(inner)
    return both[0], both[1]


@pytest.mark.parametrize("case", (LAYERS | ONE).values(), ids=LAYERS | ONE)
def test_buffers_inside_pools_are_refused(case: Composed) -> None:
    for pool in case.written:
        for other in tensors(case.make()):
            if other == pool:
                continue
            x = case.make()
            if x[other].dtype == torch.bool:
                x[other] = x[other].clone()
            x[pool], x[other] = inside(x[pool], x[other])
            before = {each: x[each].clone() for each in case.written}
            with pytest.raises(
                ValueError, match=r"(gdn|kda)_\w+: \w+: expected memory that does not overlap that of \w+, got memory that"
            ) as caught:
                case.function(**x)
            assert pool in str(caught.value) and other in str(caught.value)
            for each, y in before.items():
                assert torch.equal(x[each].nan_to_num(7), y.nan_to_num(7))


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_states_that_overlap_are_refused(case: Composed) -> None:
    first, second, *_ = case.written
    others = [name for name in ("u", "x") if name in case.make()]
    for one, other in ((first, second), *((pool, name) for pool in case.written for name in others)):
        x = case.make()
        x[one], x[other] = inside(x[one], x[other])
        before = {each: x[each].clone() for each in case.written}
        if other in others and "x" in others:  # projected before anything is written
            continue
        with pytest.raises(ValueError, match="expected memory that does not overlap that of"):
            case.function(**x)
        assert all(torch.equal(x[each].nan_to_num(7), y.nan_to_num(7)) for each, y in before.items())


@pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS)
def test_pools_interleaved_in_pages_are_fine(case: Composed) -> None:
    """The layout of engines: one page per slot, with the convolution's state and the recurrent state."""
    x, pages = case.make(), case.make()
    conv, state = x["conv_pool"], x["state_pool"]
    slots, (_, C, columns), state_bytes = len(conv), conv.shape, state[0].numel() * state.element_size()
    page = state_bytes + -(-C * columns * conv.element_size() // 16) * 16
    memory = torch.zeros(slots, page, dtype=torch.uint8)
    pages["state_pool"] = memory[:, :state_bytes].view(state.dtype).unflatten(1, state.shape[1:]).copy_(state)
    part = memory[:, state_bytes : state_bytes + C * columns * conv.element_size()]
    pages["conv_pool"] = part.view(conv.dtype).unflatten(1, (columns, C)).mT.copy_(conv)
    assert torch.equal(case.function(**x), case.function(**pages))
    assert all(torch.equal(x[name], pages[name]) for name in POOLS)
