"""Products with a matrix defined by its displacement, in fp64, with the dense matrix. Differentiable in G, H and x.

Z_φ is the shift down with φ in its corner: Z_φ e_k = e_{k+1}, Z_φ e_{n−1} = φ e_0; Z = Z_1 is cyclic. F is the unitary DFT:
F Z F⁻¹ = diag(e^{−2πi j/n}) and, with D = diag(e^{−πi k/n}), F D Z_{−1} (F D)⁻¹ = diag(e^{−πi (2j+1)/n}).
"""

from __future__ import annotations

import math
from enum import IntEnum

import torch
from torch import Tensor

from ..operators.schema import refuse
from .reference_common import check_last, roots_of_unity, same_dtype, widened


class DisplacementType(IntEnum):
    """The equation whose right-hand side is G Hᵀ; Z is the cyclic shift down, Z_φ the shift with φ in its corner.

    CYCLIC_TRANSPOSED: Z A − A Zᵀ = G Hᵀ. Hankel matrices have rank 2, those constant on cyclic antidiagonals 0.
    CYCLIC: Z A − A Z = G Hᵀ. Toeplitz matrices have rank 2, circulant ones 0.
    CYCLIC_ANTICYCLIC: Z_1 A − A Z_{−1} = G Hᵀ. Toeplitz matrices have rank 2; every G and H has exactly one A.
    """

    CYCLIC_TRANSPOSED = 0
    CYCLIC = 1
    CYCLIC_ANTICYCLIC = 2


def displacement_matvec(G: Tensor, H: Tensor, x: Tensor, disp_type: int = DisplacementType.CYCLIC_TRANSPOSED) -> Tensor:
    """y = A x with A from `displacement_matrix`; G and H (…,n,r), x (…,n)."""
    matrix = displacement_matrix(G, H, disp_type)
    check_last("displacement_matvec", "x", x, matrix.shape[-1], "G")
    matrix, x = same_dtype(matrix, *widened("displacement_matvec", x=x))
    return (matrix @ x[..., None]).squeeze(-1)


def displacement_matrix(G: Tensor, H: Tensor, disp_type: int = DisplacementType.CYCLIC_TRANSPOSED) -> Tensor:
    """A (…,n,n) with L A − A M = G Hᵀ, (L, M) the pair that `disp_type` names.

    In the bases in which L and M are diagonal its entries are (ĝ_i·ĥ_j) / (l_i − m_j). Where l_i = m_j (n entries for
    each of the first two types) they are 0: the least-norm least-squares solution of the equation. It is exact only if those
    ĝ_i·ĥ_j are 0.
    """
    function = "displacement_matvec"
    G, H = same_dtype(*widened(function, G=G, H=H))
    if G.dim() < 2 or H.dim() < 2 or G.shape[-2:] != H.shape[-2:]:
        refuse(function, "H", f"(…, n, r) as G has {tuple(G.shape)}", tuple(H.shape))
    n = G.shape[-2]
    places = torch.arange(n, device=G.device)
    # Nodes are e^{−πi l/n} and e^{−πi m/n}, so poles are found among integers.
    left, right = 2 * places, _right_nodes(disp_type, places)
    basis = 2 * places + 1 if disp_type == DisplacementType.CYCLIC_ANTICYCLIC else 2 * places
    to_left, to_right = (roots_of_unity(row[:, None] * places, 2 * n) / max(n, 1) ** 0.5 for row in (left, basis))
    numerators = (to_left @ G.to(torch.complex128)) @ (to_right.conj() @ H.to(torch.complex128)).mT
    pole = (left[:, None] - right).remainder(2 * n) == 0 if n else numerators.new_zeros(0, 0, dtype=torch.bool)
    transformed = torch.where(pole, 0.0, numerators / torch.where(pole, 1.0, _node_differences(left, right, n)))
    matrix = to_left.mH @ transformed @ to_right
    return matrix if G.is_complex() else matrix.real


def _right_nodes(disp_type: int, places: Tensor) -> Tensor:
    nodes = {
        DisplacementType.CYCLIC_TRANSPOSED: -2 * places,
        DisplacementType.CYCLIC: 2 * places,
        DisplacementType.CYCLIC_ANTICYCLIC: 2 * places + 1,
    }
    if disp_type not in nodes:
        refuse("displacement_matvec", "disp_type", "one of " + ", ".join(f"{d.value} ({d.name})" for d in nodes), disp_type)
    return nodes[DisplacementType(disp_type)]


def _node_differences(left: Tensor, right: Tensor, n: int) -> Tensor:
    """e^{−πi l/n} − e^{−πi m/n} as −2i sin(π (l−m)/2n) e^{−πi (l+m)/2n}: exact for adjacent nodes."""
    period = max(4 * n, 1)
    halves = (left[:, None] - right).remainder(period).to(torch.float64) * (2 * math.pi / period)
    return -2j * halves.sin() * roots_of_unity(left[:, None] + right, period)
