"""gdn_cuda.compat.s4, .lrnnx and .hotdog: functions with the peers' names compute what the peers document."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.compat import hotdog, lrnnx, s4
from gdn_cuda.reference import structured_displacement, structured_toeplitz

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
    assert rel_rms(peer.cauchy_mult_keops(v, z, w), matrix(v, z, w)) < 1e-12
    assert rel_rms(peer.cauchy_naive(v, z, w, conj=False), matrix(v, z, w)) < 1e-12
    with pytest.raises(ValueError, match=r"^cauchy_mult_torch: v: expected an even number of poles .*, got \(3, 5\)$"):
        peer.cauchy_mult_torch(v[:, :5], z, w[:, :5])


@EVERY_PEER
def test_vandermonde(peer: ModuleType, rng: torch.Generator) -> None:
    v, x, u = draw(rng, B, N), 0.1 * draw(rng, N), draw(rng, B, L).real
    powers = (x[..., None] * torch.arange(L)).exp()
    expected = v @ powers
    for name in (
        "log_vandermonde",
        "log_vandermonde_naive",
        "log_vandermonde_cuda",
        "log_vandermonde_fast",
        "log_vandermonde_keops",
    ):
        assert rel_rms(getattr(peer, name)(v, x, L), 2 * expected.real) < 1e-12
    assert rel_rms(peer.get_vandermonde_kernel()(v, x, L), 2 * expected.real) < 1e-12
    for function in (peer.log_vandermonde, peer.log_vandermonde_naive):
        assert rel_rms(function(v, x, L, conj=False), expected) < 1e-12
    transposed = v * (u.to(v.dtype) @ powers.mT)
    for function in (peer.log_vandermonde_transpose, peer.log_vandermonde_transpose_naive, peer.log_vandermonde_transpose_keops,
                     peer.get_vandermonde_transpose_kernel()):  # fmt: skip
        assert rel_rms(function(u, v, x, L), transposed) < 1e-12


def test_the_calls_in_the_documentation_of_hotdog(rng: torch.Generator) -> None:
    """With its argument names; sums and products against their definitions."""
    v, omega, lambd = (draw(rng, size).real for size in (N, L, N))
    out = torch.full((L,), torch.nan, dtype=torch.float64)
    assert hotdog.cauchy_kernel_forward(out, v.requires_grad_(), omega, lambd) is None
    assert torch.equal(out, hotdog.cauchy_kernel(v=v, omega=omega, lambd=lambd))
    with pytest.raises(RuntimeError, match="cauchy_kernel_forward: no gradient is computed; for gradients use cauchy_kernel"):
        out.sum().backward()
    out = out.detach()
    assert rel_rms(out, matrix(v, omega, lambd)) < 1e-12

    c, r, b = draw(rng, N), draw(rng, N), draw(rng, N)
    T = structured_toeplitz.toeplitz(c, r)
    assert rel_rms(hotdog.toeplitz_matvec(c=c, r=r, x=b), T @ b) < 1e-12
    assert rel_rms(hotdog.toeplitz_matvec_transpose(c=c, r=r, x=b), T.mT @ b) < 1e-12
    solution = torch.linalg.solve(T, b)
    assert rel_rms(hotdog.toeplitz_solve(c=c, r=r, b=b), solution) < 1e-11
    assert rel_rms(T @ hotdog.toeplitz_inverse_apply(*hotdog.gs_compute_generators(c=c, r=r), x=b), b) < 1e-9
    assert rel_rms(structured_toeplitz.toeplitz(c, c) @ hotdog.toeplitz_solve_symmetric(c=c, b=b), b) < 1e-11
    transform = torch.fft.fft(torch.eye(N, dtype=T.dtype), norm="ortho")
    assert rel_rms(hotdog.toeplitz_to_cauchy(c=c, r=r), transform @ T @ transform.mH) < 1e-12
    G, H = draw(rng, N, 2), draw(rng, N, 2)
    A = structured_displacement.displacement_matrix(G, H, 0)
    assert rel_rms(hotdog.displacement_matvec(G=G, H=H, x=b, disp_type=0), A @ b) < 1e-12
    with pytest.raises(ValueError, match=r"^cauchy_pin_l2: omega: expected a CUDA tensor, got cpu$"):
        hotdog.cauchy_pin_l2(omega=omega, lambd=lambd)


@pytest.mark.parametrize("peer", [s4, lrnnx, hotdog])
def test_every_name_of_the_peers_exists(peer: ModuleType) -> None:
    assert all(hasattr(peer, name) for name in peer.__all__)
