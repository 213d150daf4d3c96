"""Initial systems x' = A x + B u of S4, S4D and S5, in fp64: HiPPO-LegS, truncated Fourier, and diagonal systems."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Modes(NamedTuple):
    """A real system in the eigenbasis of the normal part of A = V (diag(eigenvalues) − P Pᴴ) Vᴴ: from each conjugate pair the
    one with Im ≥ 0, complex128. Eigenvectors are scaled so that B and P are real and not negative, which makes both unique."""

    eigenvalues: Tensor
    B: Tensor
    P: Tensor


def diagonalized_hippo(size: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the normal part of HiPPO-LegS, A + p pᵗ with p_n = √(n + ½); imaginary parts ascend.

    A[n, k] = −√(2n + 1) √(2k + 1) below the diagonal, −(n + 1) on it. The sum is −½ I plus a skew-symmetric matrix,
    so a Hermitian solver computes its eigenvalues accurately.
    """
    n = torch.arange(size, dtype=torch.float64, device="cpu")
    root = torch.sqrt(2 * n + 1)
    A = -torch.tril(root[:, None] * root) + torch.diag(n)
    normal = A + torch.sqrt(n + 0.5)[:, None] * torch.sqrt(n + 0.5)
    skew = normal + 0.5 * torch.eye(size, dtype=torch.float64, device="cpu")
    imaginary, vectors = torch.linalg.eigh(-1j * skew)
    return torch.complex(torch.full_like(imaginary, -0.5), imaginary), vectors


def legs(size: int) -> Modes:
    """HiPPO-LegS of an even size: e^{tA} B is √(2n + 1) e^{−t} P_n(2e^{−t} − 1), Legendre polynomials of the past."""
    eigenvalues, vectors = (x[..., size // 2 :] for x in diagonalized_hippo(size))
    root = torch.sqrt(2 * torch.arange(size, dtype=torch.float64, device="cpu") + 1)
    B = (vectors.mH @ root.to(vectors.dtype)).abs()
    return Modes(eigenvalues, B + 0j, B / math.sqrt(2) + 0j)


def fout(size: int) -> Modes:
    """S4-FouT of an even size: the coefficients of the last unit of time in 1, √2 cos 2πks and √2 sin 2πks, k < size / 2.

    With p the basis at s = 0, x' = D x + p u(t) − p u(t − 1), D the derivatives of the basis. The series has the mean of both
    ends there, so u(t − 1) = 2 pᵗx − u(t), A = D − 2 p pᵗ and B = 2 p. The sine of k = 0 is a state that stays 0.
    """
    k = torch.arange(size // 2, dtype=torch.float64, device="cpu")
    B = torch.full_like(k, 2.0)
    B[:1] = math.sqrt(2)
    return Modes(2j * math.pi * k, B + 0j, B / math.sqrt(2) + 0j)


def diagonal(name: str, size: int) -> Modes:
    """S4D-LegS, -Inv, -Lin for an even size, and -Real, which has the real λ of all states.

    LegS is the normal part alone, with half of B: its basis functions converge to those of HiPPO-LegS as the size grows.
    """
    n = torch.arange(size if name == "real" else size // 2, dtype=torch.float64, device="cpu")
    ones = torch.ones_like(n) + 0j
    if name == "legs":
        whole = legs(size)
        return Modes(whole.eigenvalues, whole.B / 2, 0 * ones)
    if name == "real":
        return Modes(-(n + 1) + 0j, ones, 0 * ones)
    imaginary = math.pi * n if name == "lin" else size / math.pi * (size / (2 * n + 1) - 1)
    return Modes(torch.complex(torch.full_like(n, -0.5), imaginary), ones, 0 * ones)
