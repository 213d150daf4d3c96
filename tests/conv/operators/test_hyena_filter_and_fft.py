"""hyena_filter, fft_causal_conv and split_projections on CPU tensors: values, gradients, wrong input."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import pytest
import torch
from computed import Computed
from helpers import rel_rms
from hyena_cases import draws, modal_parameters
from torch import Tensor

from gdn_cuda import fft_causal_conv, hyena_filter, split_projections

LAYOUTS = [("interleaved", 1), ("heads", 1), ("heads", 4), ("thirds", 1)]


def literal_filter(residues: Tensor, log_poles: Tensor, L: int) -> Tensor:
    """The oracle's sum in torch, for autograd."""
    taps = [(residues * torch.exp(log_poles * t)).sum(-1) for t in range(L)]
    return torch.stack(taps, -1) if L else residues[:, :0] + log_poles[:, :0]


# ---- hyena_filter


@pytest.mark.parametrize("L", [0, 1, 2, 127, 128, 1000])
@pytest.mark.parametrize("S", [1, 16, 64])
def test_filters_and_their_gradients(S: int, L: int, seed: int) -> None:
    residues, log_poles, _ = modal_parameters(3, 3, S, seed)
    leaves = [x.requires_grad_() for x in (residues, log_poles)]
    h = hyena_filter(*leaves, L)
    assert h.shape == (3, L) and rel_rms(h, torch.from_numpy(oracle.filter_of(*leaves, L))) < 1e-13
    grad = torch.randn(3, L, dtype=torch.float64)
    ours = torch.autograd.grad(h, leaves, grad)
    theirs = torch.autograd.grad(literal_filter(*leaves, L), leaves, grad, allow_unused=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert rel_rms(mine, torch.zeros_like(mine) if other is None else other) < 1e-12


def test_filters_in_fp32_and_with_a_last_dimension_of_one(seed: int) -> None:
    residues, log_poles, _ = modal_parameters(3, 3, 16, seed, torch.float32)
    h = hyena_filter(residues, log_poles[..., None], 500)
    assert h.dtype == torch.float32 and rel_rms(h, torch.from_numpy(oracle.filter_of(residues, log_poles, 500))) < 1e-7
    assert torch.equal(hyena_filter(residues.T.contiguous().T, log_poles, 500), h)


def test_vmap_of_filters(seed: int) -> None:
    residues, log_poles, _ = modal_parameters(4, 4, 3, seed)
    several = torch.vmap(lambda R, p: hyena_filter(R, p, 9), (0, 0))(residues.view(2, 2, 3), log_poles.view(2, 2, 3))
    assert torch.equal(several.view(4, 9), hyena_filter(residues, log_poles, 9))


def test_gradients_of_gradients_are_refused(seed: int) -> None:
    residues, log_poles, _ = modal_parameters(2, 2, 3, seed)
    leaves = [x.requires_grad_() for x in (residues, log_poles)]
    first = torch.autograd.grad(hyena_filter(*leaves, 5).square().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="hyena_filter: gradients of gradients"):
        torch.autograd.grad(first[0].sum(), leaves)


WRONG_FILTERS: dict[str, tuple[str, tuple[Any, Any, Any]]] = {
    "a list": ("residues", ([1.0], torch.ones(1, 1), 3)),
    "one dimension": ("residues", (torch.ones(3), torch.ones(3), 3)),
    "65 states": ("residues", (torch.ones(2, 65), torch.ones(2, 65), 3)),
    "no states": ("residues", (torch.ones(2, 0), torch.ones(2, 0), 3)),
    "integers": ("residues", (torch.ones(2, 2).long(), torch.ones(2, 2), 3)),
    "two dtypes": ("log_poles", (torch.ones(2, 2), torch.ones(2, 2).double(), 3)),
    "poles of another shape": ("log_poles", (torch.ones(2, 2), torch.ones(2, 3), 3)),
    "a negative length": ("L", (torch.ones(2, 2), torch.ones(2, 2), -1)),
    "a length past 2^31": ("L", (torch.ones(2, 2), torch.ones(2, 2), 2**31)),
}


@pytest.mark.parametrize("name", WRONG_FILTERS)
def test_wrong_filters(name: str) -> None:
    argument, given = WRONG_FILTERS[name]
    with pytest.raises(ValueError, match=rf"^hyena_filter: {argument}: expected .+, got "):
        hyena_filter(*given)


# ---- fft_causal_conv


@pytest.mark.parametrize("L", [1, 2, 127, 128, 129, 1500])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_convolutions(L: int, groups: int, seed: int) -> None:
    draw = draws(seed)
    for K in {1, min(L, 3), L // 2, L}:
        u, k, D = draw(2, 6, L), draw(groups, K), draw(6)
        assert rel_rms(fft_causal_conv(u, k, D), torch.from_numpy(oracle.causal_conv(u, k, D))) < 1e-12
        assert rel_rms(fft_causal_conv(u, k), torch.from_numpy(oracle.causal_conv(u, k))) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_convolutions_in_reduced_precision(dtype: torch.dtype, seed: int) -> None:
    draw = draws(seed, dtype)
    u, k, D = draw(2, 3, 300), draw(3, 200).float(), draw(3)
    y = fft_causal_conv(u, k, D)
    bound = {torch.float32: 1e-6, torch.bfloat16: 3e-3, torch.float16: 5e-4}[dtype]
    assert y.dtype == dtype and rel_rms(y, torch.from_numpy(oracle.causal_conv(u, k, D))) < bound


@pytest.mark.parametrize("shape, K", [((0, 4, 9), 3), ((2, 0, 9), 3), ((2, 4, 0), 0), ((2, 4, 9), 0)])
def test_empty_convolutions(shape: tuple[int, int, int], K: int) -> None:
    y = fft_causal_conv(torch.ones(shape), torch.ones(shape[1], K), torch.full((shape[1],), 2.0))
    assert y.shape == shape and (K > 0 or bool((y == 2).all()))


def test_gradients_of_convolutions(seed: int) -> None:
    draw = draws(seed)
    inputs = [draw(2, 4, 9).requires_grad_(), draw(2, 5).requires_grad_(), draw(4).requires_grad_()]
    assert torch.autograd.gradcheck(fft_causal_conv, inputs)
    assert torch.autograd.gradgradcheck(fft_causal_conv, inputs)


WRONG_CONVOLUTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "a list": ("u", ([1.0], torch.ones(1, 1))),
    "two dimensions": ("u", (torch.ones(3, 4), torch.ones(3, 4))),
    "integers": ("k", (torch.ones(1, 3, 4), torch.ones(3, 4).int())),
    "a longer filter": ("k", (torch.ones(1, 3, 4), torch.ones(3, 5))),
    "groups that do not divide": ("k", (torch.ones(1, 3, 4), torch.ones(2, 4))),
    "D of another size": ("D", (torch.ones(1, 3, 4), torch.ones(3, 4), torch.ones(2))),
    "another device": ("k", (torch.ones(1, 3, 4), torch.ones(3, 4, device="meta"))),
}


@pytest.mark.parametrize("name", WRONG_CONVOLUTIONS)
def test_wrong_convolutions(name: str) -> None:
    argument, given = WRONG_CONVOLUTIONS[name]
    with pytest.raises(ValueError, match=rf"^fft_causal_conv: {argument}: expected .+, got "):
        fft_causal_conv(*given)


# ---- split_projections


@pytest.mark.parametrize("layout, heads", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 24, 5), (2, 24), (0, 24, 5), (2, 24, 0)])
def test_splits(layout: str, heads: int, shape: tuple[int, ...], seed: int) -> None:
    z = draws(seed)(*shape)
    parts = split_projections(z, heads, layout)
    for mine, other in zip(parts, oracle.split(z, heads, layout), strict=True):
        assert torch.equal(mine, torch.from_numpy(other))
    assert split_projections(z, heads, layout, flip=True).x1 is not parts.x2
    assert torch.equal(split_projections(z, heads, layout, flip=True).x1, parts.x2)
    assert torch.equal(split_projections(z, heads, layout, flip=True).x2, parts.x1)


def test_splits_are_views(seed: int) -> None:
    for z in (draws(seed)(2, 24, 5), draws(seed)(2, 5, 24).mT):
        for layout in ("interleaved", "thirds"):
            for part in split_projections(z, 1, layout):
                assert part.untyped_storage().data_ptr() == z.untyped_storage().data_ptr()


def test_interleaved_views_are_slices(seed: int) -> None:
    more = draws(seed)(3, 30, 14)
    views = (more, more[::2, 3:-3, 2:], more.mT.contiguous().mT, more[:, ::2, ::3], more[:1].expand(2, 30, 14), more[..., 3])
    for z in (*views, more[:, :1].expand(3, 6, 14), more[..., :1], more[:2, 5:8], more[:, :, 0].mT.contiguous().mT):
        for mine, first in zip(split_projections(z), range(3), strict=True):
            theirs = z[:, first::3]
            assert torch.equal(mine, theirs) and mine.data_ptr() == theirs.data_ptr() and mine.stride() == theirs.stride()
    for z in (more[:, :0], more[:0], more[..., :0], more[:, :0, 0]):
        assert all(x.shape == z[:, ::3].shape and x._is_view() for x in split_projections(z))


@pytest.mark.parametrize("layout, heads", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 24, 5), (2, 24), (1, 12, 1), (0, 24, 5), (2, 24, 0)])
def test_gradients_of_splits_are_stacked(layout: str, heads: int, shape: tuple[int, ...], seed: int) -> None:
    """They are written once, and neither added up nor copied, but by "heads", whose parts are copies."""
    z, make = draws(seed)(*shape).requires_grad_(), draws(seed + 1)
    places = oracle.split(torch.arange(z.numel()).view(shape), heads, layout)
    grads = [make(*part.shape) for part in places]
    expected = torch.zeros(z.numel(), dtype=z.dtype)
    for part, grad in zip(places, grads, strict=True):
        expected[torch.from_numpy(part).long().flatten()] = grad.flatten()
    parts = split_projections(z, heads, layout)
    with Computed() as computed:
        (dz,) = torch.autograd.grad(parts, z, grads)
    assert torch.equal(dz, expected.view(shape)) and dz.is_contiguous()
    assert computed.names == ["stack"] if heads == 1 else computed.names[-1] == "stack"


@pytest.mark.parametrize("layout, heads", LAYOUTS)
def test_gradients_of_one_split(layout: str, heads: int, seed: int) -> None:
    z = draws(seed)(2, 24, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: split_projections(z, heads, layout).x1, z, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda z: split_projections(z, heads, layout).v ** 2, z)


@pytest.mark.parametrize(
    "argument, given",
    [
        ("z", (torch.ones(2, 25, 3),)),
        ("z", (torch.ones(24),)),
        ("z", ([1.0],)),
        ("layout", (torch.ones(2, 24), 1, "halves")),
        ("n_heads", (torch.ones(2, 24), 3, "heads")),
        ("n_heads", (torch.ones(2, 24), 0)),
    ],
)
def test_wrong_splits(argument: str, given: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=rf"^split_projections: {argument}: expected .+, got "):
        split_projections(*given)
