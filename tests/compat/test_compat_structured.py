"""gdn_cuda.compat.s4 and .lrnnx: the peers' names compute what the peers say they do."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.compat import lrnnx, s4

EVERY_PEER = pytest.mark.parametrize("peer", [s4, lrnnx])
B, N, L = 3, 6, 20


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.complex128)


def matrix(v: Tensor, z: Tensor, w: Tensor) -> Tensor:
    return (v[..., None, :] / (z[..., :, None] - w[..., None, :])).sum(-1)


@EVERY_PEER
def test_cauchy(peer: ModuleType, rng: torch.Generator) -> None:
    v, z, w = draw(rng, B, N), draw(rng, L), draw(rng, B, N)
    pairs_v, pairs_w = torch.cat([v, v.conj()], -1), torch.cat([w, w.conj()], -1)
    expected = matrix(pairs_v, z, pairs_w)
    for function in (peer.cauchy_naive, peer.cauchy_mult, peer.cauchy_keops, peer.get_cauchy_kernel()):
        assert rel_rms(function(v, z, w), expected) < 1e-12
    assert rel_rms(peer.cauchy_mult_torch(pairs_v, z, pairs_w), expected) < 1e-12
    assert rel_rms(peer.cauchy_mult_torch(v, z, w, symmetric=False), matrix(v, z, w)) < 1e-12
    assert rel_rms(peer.cauchy_naive(v, z, w, conj=False), matrix(v, z, w)) < 1e-12
    with pytest.raises(ValueError, match=r"^cauchy_mult_torch: v: expected an even number of poles .*, got \(3, 5\)$"):
        peer.cauchy_mult_torch(v[:, :5], z, w[:, :5])


@EVERY_PEER
def test_vandermonde(peer: ModuleType, rng: torch.Generator) -> None:
    v, x, u = draw(rng, B, N), 0.1 * draw(rng, N), draw(rng, B, L).real
    powers = (x[..., None] * torch.arange(L)).exp()
    expected = v @ powers
    for name in ("log_vandermonde_naive", "log_vandermonde_cuda", "log_vandermonde_fast", "log_vandermonde_keops"):
        assert rel_rms(getattr(peer, name)(v, x, L), 2 * expected.real) < 1e-12
    assert rel_rms(peer.get_vandermonde_kernel()(v, x, L), 2 * expected.real) < 1e-12
    assert rel_rms(peer.log_vandermonde_naive(v, x, L, conj=False), expected) < 1e-12
    transposed = v * (u.to(v.dtype) @ powers.mT)
    for function in (peer.log_vandermonde_transpose_naive, peer.log_vandermonde_transpose_keops,
                     peer.get_vandermonde_transpose_kernel()):  # fmt: skip
        assert rel_rms(function(u, v, x, L), transposed) < 1e-12


@EVERY_PEER
def test_every_name_is_there(peer: ModuleType) -> None:
    assert all(hasattr(peer, name) for name in peer.__all__)
