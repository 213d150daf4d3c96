"""causal_conv1d's kernels on a GPU: causal_conv1d_on_device.py, long sequences, huge strides, graphs."""

from __future__ import annotations

import itertools

import pytest
import torch
from causal_cases import CASES, inputs, laid_out, leaves
from causal_conv1d_on_device import *  # noqa: F403
from causal_conv1d_on_device import BOTH_LAYOUTS, EVERY_LAYOUT, GRAD, check
from devices import Device
from torch import Tensor

from gdn_cuda import causal_conv1d


@EVERY_LAYOUT
def test_several_tiles(layout: str, device: Device, seed: int) -> None:
    check(device, inputs(2, 264, 1032, 4, seed, device="cuda", layout=layout, states=True, bias=True, activation="silu"))


@BOTH_LAYOUTS
def test_indices_of_many_segments(layout: str, seed: int) -> None:
    """Segments of several steps, and of 256 tokens: the gradients of the same sequences packed."""
    lengths = [1, 6, 1000, 255, 2, 8192, 1, 4000, 30000, 7]
    L, D = sum(lengths), 4104
    offsets = [0, *itertools.accumulate(lengths)]
    x = inputs(
        1, D, L, 4, seed, device="cuda", dtype=torch.bfloat16, layout=layout, bias=True, activation="silu", packed=offsets
    )
    given = {name: y.requires_grad_() for name, y in leaves(x).items()}
    packed = causal_conv1d(**x | given)
    counts = torch.tensor(lengths, device="cuda")
    ids = torch.arange(len(lengths), device="cuda").repeat_interleave(counts)[None]
    by_index = causal_conv1d(**{name: y for name, y in x.items() if name != "cu_seqlens"} | given, seq_idx=ids)
    assert torch.equal(by_index, packed)
    grad = torch.randn_like(packed)
    index_gradients, packed_gradients = (torch.autograd.grad(out, list(given.values()), grad) for out in (by_index, packed))
    for mine, wanted in zip(index_gradients, packed_gradients, strict=True):
        assert ((mine.float() - wanted.float()).norm() / wanted.float().norm()).item() < GRAD[torch.bfloat16]


@BOTH_LAYOUTS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fp32_weights_beside_16_bit_activations(dtype: torch.dtype, layout: str, device: Device, seed: int) -> None:
    check(
        device, inputs(2, 136, 300, 4, seed, device="cuda", dtype=dtype, weight_dtype=torch.float32, bias=True, layout=layout)
    )


@BOTH_LAYOUTS
def test_silu_over_its_range(layout: str) -> None:
    """Sums from −1e38 to 1e38, compared with silu in fp64."""
    powers = torch.logspace(-30, 38, 504, dtype=torch.float64)
    x = laid_out(torch.cat([-powers.flip(0), powers]).float().cuda()[None, None].expand(1, 8, -1), layout)
    weight = torch.zeros(8, 4, device="cuda")
    weight[:, 3] = 1
    out = causal_conv1d(x, weight, activation="silu").double()
    expected = torch.nn.functional.silu(x.double())
    assert bool(((out - expected).abs() <= 1e-5 * expected.abs() + 2e-36).all())


@BOTH_LAYOUTS
@pytest.mark.parametrize("case", ["biased, silu", "packed, states", "seq_idx"])
def test_two_runs_give_the_same_bits(case: str, layout: str, seed: int) -> None:
    x = inputs(1, 264, 5000, 4, seed, device="cuda", dtype=torch.bfloat16, layout=layout, **CASES[case])
    given = {name: y.requires_grad_() for name, y in leaves(x).items()}
    runs = []
    for _ in range(2):
        out = causal_conv1d(**x | given)
        runs.append((out, *torch.autograd.grad(out, list(given.values()), torch.ones_like(out))))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@BOTH_LAYOUTS
def test_two_parts_equal_the_whole(layout: str, seed: int) -> None:
    x = inputs(2, 136, 3000, 4, seed, device="cuda", dtype=torch.bfloat16, bias=True, activation="silu", layout=layout)
    whole, last = causal_conv1d(**x, return_final_states=True)
    first, state = causal_conv1d(**x | {"x": x["x"][..., :1601]}, return_final_states=True)
    rest = x | {"x": x["x"][..., 1601:], "initial_states": state}
    second, end = causal_conv1d(**rest, return_final_states=True)
    assert torch.equal(torch.cat([first, second], -1), whole) and torch.equal(end, last)


@pytest.mark.parametrize("along", ["batch", "channel", "token"])
def test_strides_beyond_2_to_the_31(along: str, seed: int) -> None:
    """A view whose last element is more than 2³¹ elements after its first."""
    shape, step = (2, 4, 40), 2**31 + 64
    strides = {"batch": (step, 40, 1), "channel": (40, 2**30, 1), "token": (4, 1, 2**26 + 64)}[along]
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    memory = torch.empty(reach, dtype=torch.bfloat16, device="cuda")
    x = inputs(*shape, 4, seed, device="cuda", dtype=torch.bfloat16, bias=True, activation="silu")
    view = memory.as_strided(shape, strides).copy_(x["x"])
    expected = causal_conv1d(**x)
    leaf = view.detach().requires_grad_()
    found = causal_conv1d(**x | {"x": leaf})
    assert torch.equal(found, expected)
    (gradient,) = torch.autograd.grad(found, leaf, torch.ones_like(found))
    plain = x["x"].requires_grad_()
    (wanted,) = torch.autograd.grad(causal_conv1d(**x), plain, torch.ones_like(found))
    assert torch.equal(gradient, wanted)


@BOTH_LAYOUTS
def test_rows_beyond_2_to_the_31_elements(layout: str) -> None:
    """All tokens but the first and the last ones are equal."""
    D, L = 1032, 2**21 + 8
    shape = (1, D, L) if layout == "tokens" else (1, L, D)
    x = torch.ones(shape, device="cuda", dtype=torch.bfloat16)
    x = x if layout == "tokens" else x.mT
    x[..., -1] = 3
    weight = torch.tensor([1.0, 2.0, 4.0, 8.0], device="cuda").expand(D, 4)
    out = causal_conv1d(x, weight)
    assert bool((out[0, -1, :4].cpu() == torch.tensor([8.0, 12.0, 14.0, 15.0])).all())
    assert bool((out[..., 3:-1] == 15).all()) and bool((out[..., -1] == 31).all())


@BOTH_LAYOUTS
def test_graphs_and_compiled_code(layout: str, seed: int) -> None:
    x = inputs(2, 64, 304, 4, seed, device="cuda", dtype=torch.bfloat16, bias=True, activation="silu", layout=layout)
    expected = causal_conv1d(**x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = causal_conv1d(**x)
    graph.replay()
    assert torch.equal(out, expected)
    given = [x[name].requires_grad_() for name in ("x", "weight", "bias")]

    def layer(*leaves: Tensor) -> Tensor:
        y: Tensor = causal_conv1d(*leaves, activation="silu")
        return y

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = compiled(*given)
    assert torch.equal(found, expected)
    grads = (torch.autograd.grad(y, given, torch.ones_like(expected)) for y in (found, layer(*given)))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
