"""The initial systems of S4, S4D and S5, against definitions in the time domain and general solvers, in fp64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch

from gdn_cuda.nn import hippo

SIZES = [2, 8, 64]


def real_kernel(modes: hippo.Modes, t: float) -> np.ndarray:
    """e^{tA} B of the system of pairs, as Re and Im of the stored half."""
    whole = [torch.cat([x, x.conj()]).numpy() for x in modes]
    A = np.diag(whole[0]) - np.outer(whole[2], whole[2].conj())
    return (scipy.linalg.expm(t * A) @ whole[1])[: len(modes.B)]


def legs_matrix(size: int) -> np.ndarray:
    """−√((2n+1)(2k+1)) for n > k, −(n+1) for n = k."""
    return np.array(
        [[-math.sqrt((2 * n + 1) * (2 * k + 1)) if n > k else -(n + 1.0) * (n == k) for k in range(size)] for n in range(size)]
    )


@pytest.mark.parametrize("size", SIZES)
def test_legs_is_normal_plus_low_rank(size: int) -> None:
    values, V = hippo.diagonalized_hippo(size)
    p = np.sqrt(np.arange(size) + 0.5)
    A = legs_matrix(size)
    assert np.allclose((V @ torch.diag(values) @ V.mH).numpy() - np.outer(p, p), A, rtol=0, atol=1e-12 * np.abs(A).max())
    modes = hippo.legs(size)
    # By a general solver: the eigenvalues of A + p pᵗ, and those of A, a triangle with −1 … −size on its diagonal.
    general = np.linalg.eigvals(A + np.outer(p, p))
    kept = modes.eigenvalues.numpy()
    assert np.allclose(np.sort(general[general.imag > 0].imag), np.sort(kept.imag), rtol=1e-11)
    assert np.allclose(kept.real, -0.5) and np.allclose(general.real, -0.5, atol=1e-11 * size**2)
    # B and P in any eigenbasis: |vᴴ b| does not depend on its phases.
    found, vectors = torch.linalg.eig(torch.from_numpy(A + np.outer(p, p)))
    order = found.imag.argsort()[size // 2 :]
    weights = (vectors[:, order].mH @ torch.from_numpy(np.sqrt(2 * np.arange(size) + 1)).to(vectors.dtype)).abs()
    assert torch.allclose(weights, modes.B.real, rtol=1e-9) and torch.allclose(modes.P * math.sqrt(2), modes.B)
    assert not modes.B.imag.any() and not modes.P.imag.any()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("t", [0.0, 0.1, 1.0])
def test_legs_has_legendre_polynomials_as_response(size: int, t: float) -> None:
    """The impulse response √(2n+1) e^{−t} P_n(2e^{−t} − 1), rotated into the basis of `legs`."""
    n = np.arange(size)
    response = np.sqrt(2 * n + 1) * math.exp(-t) * scipy.special.eval_legendre(n, 2 * math.exp(-t) - 1)
    _, vectors = hippo.diagonalized_hippo(size)
    V = vectors[:, size // 2 :].numpy()
    rotated = V.conj().T @ response
    start = V.conj().T @ np.sqrt(2 * n + 1)  # `legs` removes its phases
    expected = rotated * np.exp(-1j * np.angle(start))
    assert np.allclose(real_kernel(hippo.legs(size), t), expected, rtol=0, atol=1e-9 * np.linalg.norm(response))


def fout_matrix(size: int) -> tuple[np.ndarray, np.ndarray]:
    """As in the paper: A = D − 2 p pᵗ and B = 2 p in 1, (nothing,) √2 cos 2πks, √2 sin 2πks."""
    D, p = np.zeros((size, size)), np.zeros(size)
    p[0] = 1
    for k in range(1, size // 2):
        cosine, sine = 2 * k, 2 * k + 1
        D[cosine, sine], D[sine, cosine] = -2 * math.pi * k, 2 * math.pi * k  # derivatives of the basis
        p[cosine] = math.sqrt(2)
    return D - 2 * np.outer(p, p), 2 * p


@pytest.mark.parametrize("size", SIZES)
def test_fout_is_its_matrix(size: int) -> None:
    A, B = fout_matrix(size)
    modes = hippo.fout(size)
    V = np.zeros((size, size // 2), dtype=complex)  # pairs (x, y) as (x ± iy) / √2
    for k in range(size // 2):
        V[2 * k, k], V[2 * k + 1, k] = 1 / math.sqrt(2), -1j / math.sqrt(2)
    whole = np.concatenate([V, V.conj()], 1)
    assert np.allclose(whole @ whole.conj().T, np.eye(size))
    values, start, low_rank = (torch.cat([x, x.conj()]).numpy() for x in modes)
    found = whole @ (np.diag(values) - np.outer(low_rank, low_rank.conj())) @ whole.conj().T
    assert np.allclose(found, A, rtol=0, atol=1e-13 * size) and np.allclose(whole @ start, B, rtol=0, atol=1e-13)


def test_fout_states_are_fourier_coefficients_of_the_last_unit_of_time() -> None:
    """A wave of the basis' period: after a while the states are its coefficients over (t − 1, t)."""
    A, B = fout_matrix(64)
    period, dt, steps = 0.5, 1 / 2048, 4 * 2048
    advance = scipy.linalg.expm(A * dt)
    force = np.linalg.solve(A - 1e-12 * np.eye(64), (advance - np.eye(64)) @ B)  # the sine of k = 0 has no dynamics
    x = np.zeros(64)
    for t in range(steps):
        x = advance @ x + force * math.cos(2 * math.pi * (t + 0.5) * dt / period)
    end = steps * dt
    s = (np.arange(100000) + 0.5) / 100000
    window = np.cos(2 * math.pi * (end - s) / period)
    for state, basis in (
        (4, math.sqrt(2) * np.cos(4 * math.pi * s)),
        (5, math.sqrt(2) * np.sin(4 * math.pi * s)),
        (0, 1 + 0 * s),
    ):
        assert abs(x[state] - (window * basis).mean()) < 0.02


def test_diagonal_systems_are_their_formulas() -> None:
    size = 16
    n = np.arange(size // 2)
    lin, inv, real, legs = (hippo.diagonal(name, size) for name in ("lin", "inv", "real", "legs"))
    assert np.array_equal(lin.eigenvalues.numpy(), -0.5 + 1j * math.pi * n)
    assert np.allclose(inv.eigenvalues.numpy(), -0.5 + 1j * (size / math.pi) * (size / (2 * n + 1) - 1), rtol=1e-15)
    assert np.array_equal(real.eigenvalues.numpy(), -(np.arange(size) + 1.0) + 0j)
    assert torch.equal(legs.eigenvalues, hippo.legs(size).eigenvalues) and torch.equal(legs.B, hippo.legs(size).B / 2)
    assert all(bool((x.B == 1).all()) for x in (lin, inv, real))
    assert len(hippo.diagonal("real", 7).B) == 7


def test_inv_follows_the_spectrum_of_legs() -> None:
    """Both are N² / (π (2n + 1)) up to terms of order N."""
    legs = np.sort(hippo.legs(256).eigenvalues.imag.numpy())[::-1]
    inv = hippo.diagonal("inv", 256).eigenvalues.imag.numpy()
    assert np.all(np.abs(inv - legs)[:16] < 256 / math.pi) and inv[0] > 20000


def test_diagonal_legs_converges_to_legs() -> None:
    """The theorem behind S4D-LegS: without its low rank, and with half of B, the first states have its response to e^{2it}."""

    def error(size: int) -> float:
        _, vectors = hippo.diagonalized_hippo(size)
        V = vectors[:, size // 2 :].numpy()
        modes = hippo.diagonal("legs", size)
        values, B = modes.eigenvalues.numpy(), modes.B.numpy()
        V = V * np.exp(1j * np.angle(V.conj().T @ np.sqrt(2 * np.arange(size) + 1)))
        found = (V @ (B / (2j - values)) + V.conj() @ (B.conj() / (2j - values.conj())))[:4]
        expected = np.linalg.solve(2j * np.eye(4) - legs_matrix(4), np.sqrt(2 * np.arange(4) + 1))
        return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))

    assert error(1024) < 0.005 and error(1024) < error(64) / 8
