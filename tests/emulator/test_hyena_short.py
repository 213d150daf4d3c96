"""The kernels of hyena_short in the emulator, against its definition in fp64."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import pytest
import torch
from emulated import emulated
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs, mask
from hyena_fir_checks import LAYOUTS, laid_out
from hyena_short_checks import BOUND, check_short, check_short_gradients, literal_short, reach_of_a_nan

from gdn_cuda import hyena_short


def check(*args: Any, **options: Any) -> None:
    """The backward recomputes y and the state."""
    with emulated():
        check_short(*args, **options)
        check_short_gradients(*args, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", [1, 2, 7, 8, 9, 32])
def test_layouts_and_taps(dtype: torch.dtype, layout: str, K: int, seed: int) -> None:
    check(2, 6, 80, K, seed, dtype, layout, groups=3)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("L", [0, 1, 2, 5, 8, 127, 128, 129, 255, 256, 257, 1032])
def test_lengths(layout: str, L: int, seed: int) -> None:
    for K in (7, 32):
        check(1, 3, L, K, seed, layout=layout)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_whole_vectors_of_many_channels(layout: str, seed: int) -> None:
    for K in (7, 32):
        check(1, 136, 264, K, seed, layout=layout)
        check(1, 130, 21, K, seed, layout=layout)


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_empty_tensors(B: int, D: int, layout: str, seed: int) -> None:
    check(B, D, 5, 7, seed, layout=layout, groups=1)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("K", [3, 12])
@pytest.mark.parametrize("gated_bias", [False, True])
def test_every_option(layout: str, K: int, gated_bias: bool, seed: int) -> None:
    B, D, L = 2, 4, 300
    state = torch.randn(B, D, K - 1, generator=torch.Generator().manual_seed(seed))
    for kind in (torch.bool, torch.int32, torch.int64, torch.float32, torch.bfloat16):
        options = {"padding_mask": mask(B, L, seed).to(kind), "initial_state": state, "gated_bias": gated_bias}
        check(B, D, L, K, seed, layout=layout, weights=torch.bfloat16, **options)
    check(B, D, L, K, seed, layout=layout, bias=None, initial_state=state.bfloat16())


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_a_state_longer_than_the_sequence(layout: str, seed: int) -> None:
    for L in (0, 1, 5):
        check(1, 3, L, 12, seed, layout=layout, initial_state=torch.arange(33.0).view(1, 3, 11))
        check(1, 3, L, 12, seed, layout=layout)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_in_parts_as_in_one(layout: str, seed: int) -> None:
    """The same bits, with segments of other lengths."""
    D, L, K = 3, 1000, 7
    x1, x2, v = (laid_out(x.bfloat16(), layout) for x in gated_inputs(1, D, L, seed))
    weight, bias = (x.float() for x in fir_parameters(D, D, K, seed))
    with emulated(multiprocessors=1):
        whole, last = hyena_short(x1, x2, v, weight, bias, return_state=True)
    parts, state = [], None
    with emulated():
        for first, end in ((0, 300), (300, 302), (302, 1000)):
            now = [x[..., first:end] for x in (x1, x2, v)]
            y, state = hyena_short(*now, weight, bias, initial_state=state, return_state=True)
            parts.append(y)
    assert torch.equal(torch.cat(parts, -1), whole)
    assert state is not None and torch.equal(state, last)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("K", [5, 20])
def test_infinities_end_with_the_filter(layout: str, K: int, seed: int) -> None:
    x1, x2, v = (laid_out(x.bfloat16(), layout) for x in gated_inputs(1, 3, 600, seed))
    for token in (0, 3, 250, 255, 256, 511):
        x1[:, :, token] = torch.inf
    weight, _ = (x.float() for x in fir_parameters(3, 3, K, seed))
    with emulated():
        y = hyena_short(x1, x2, v, weight)
    hit = torch.zeros(600, dtype=torch.bool)
    for token in (0, 3, 250, 255, 256, 511):
        hit[token : token + K] = True
    assert y[:, :, ~hit].isfinite().all() and not y[:, :, hit].isfinite().any()


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("K", [5, 20])
def test_how_far_a_nan_reaches_in_gradients(layout: str, K: int, seed: int) -> None:
    """At the ends of tiles, steps, segments and the sequence."""
    with emulated():
        for at in (0, 7, 223, 247, 248, 255, 256, 511, 598, 599):
            reach_of_a_nan(layout, K, at, 600, seed)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("K", [7, 32])
def test_gradients_do_not_depend_on_the_split(layout: str, K: int, seed: int) -> None:
    """Gradients of x1, x2, v and the initial state have the same bits; the other ones are summed in another order."""
    B, D, L = 1, 5, 1600
    x = [laid_out(y.bfloat16(), layout) for y in gated_inputs(B, D, L, seed)]
    given = [*x, *(y.float() for y in fir_parameters(D, D, K, seed)), torch.ones(B, D, K - 1)]
    leaves = [y.requires_grad_() for y in given]

    def gradients(multiprocessors: int) -> tuple[torch.Tensor, ...]:
        with emulated(multiprocessors):
            y, state = hyena_short(*leaves[:5], gated_bias=True, initial_state=leaves[5], return_state=True)
            return torch.autograd.grad((y, state), leaves, (torch.ones_like(y), torch.ones_like(state)))

    few, many = gradients(1), gradients(132)
    for i, (mine, other) in enumerate(zip(few, many, strict=True)):
        assert torch.equal(mine, other) if i not in (3, 4) else rel_rms(mine, other) < 1e-5, i


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_gradients_of_other_strides(layout: str, seed: int) -> None:
    """An expanded scalar, the other layout, rows that do not begin on 16 bytes, inputs in both layouts."""
    x1, x2, v = (y.bfloat16() for y in gated_inputs(2, 6, 80, seed))
    other = "channels" if layout == "tokens" else "tokens"
    x = {"x1": laid_out(x1, layout), "x2": laid_out(x2, other), "v": laid_out(v, "neither")}
    weight, _ = (y.float() for y in fir_parameters(2, 6, 7, seed))
    wide = torch.randn(2, 6, 81, generator=torch.Generator().manual_seed(seed)).bfloat16()
    leaves = {name: y.requires_grad_() for name, y in x.items()} | {"weight": weight.requires_grad_()}
    exact = {name: y.detach().double().requires_grad_() for name, y in leaves.items()}
    for grad in (torch.ones(()).bfloat16().expand(2, 6, 80), laid_out(wide[..., 1:], other), wide[..., 1:]):
        with emulated():
            found = torch.autograd.grad(hyena_short(**leaves), list(leaves.values()), grad)
        wanted = torch.autograd.grad(literal_short(exact)[0], list(exact.values()), grad.double())
        assert all(rel_rms(mine, theirs) < BOUND[torch.bfloat16] for mine, theirs in zip(found, wanted, strict=True))


def test_interleaved_channels(seed: int) -> None:
    """Views with steps of three channels, as Evo 2 splits its projections."""
    z = torch.randn(2, 9, 264, generator=torch.Generator().manual_seed(seed)).bfloat16()
    x2, x1, v = z[:, 0::3], z[:, 1::3], z[:, 2::3]
    weight = torch.randn(1, 1, 7, generator=torch.Generator().manual_seed(seed))
    for layout in ("tokens", "channels"):
        given = z if layout == "tokens" else laid_out(z, layout)
        parts = (given[:, 1::3], given[:, 0::3], given[:, 2::3])
        with emulated():
            y = hyena_short(*parts, weight)
        expected, _ = oracle.short(x1, x2, v, weight)
        assert rel_rms(y, torch.from_numpy(expected)) < BOUND[torch.bfloat16]
