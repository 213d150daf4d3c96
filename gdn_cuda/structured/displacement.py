"""Products with a matrix defined by its displacement, by Fourier transforms: no matrix is formed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..operators.gradients import require_no_transforms
from .call import broadcast_leading, call, check_out, computed, finished
from .reference_common import zeros_of
from .reference_displacement import DisplacementType as DisplacementType

_TYPES = tuple(int(each) for each in DisplacementType)


def _symbol(disp_type: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The transform of 1 / (1 − m_j / l_i) as a function of j − i (type 0: of −j − i), 0 where l_i = m_j.

    With z = m_j / l_i, zⁿ = 1 for the first two types: 1 / (1 − z) = −Σ_p p z^p / n, and (n − 1) / 2 more at z = 1, so the
    transform is a ramp. For the third zⁿ = −1: 1 / (1 − z) = Σ_p z^p / 2.
    """
    places = torch.arange(n, dtype=torch.float64, device=device)
    back = torch.cat([places[:1], places[1:].flip(-1)])  # −q mod n
    if disp_type != DisplacementType.CYCLIC_ANTICYCLIC:
        return ((n - 1) / 2 - back).to(dtype)
    angles = back * (-math.pi / n)
    return (torch.complex(angles.cos(), angles.sin()) * (n / 2)).to(dtype)


def displacement_matvec(
    G: Tensor,
    H: Tensor,
    x: Tensor,
    disp_type: int = DisplacementType.CYCLIC_TRANSPOSED,
    *,
    stream: torch.cuda.Stream | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The product with a matrix defined by its displacement, without forming the matrix.

    Formula:
        y = A x,  where L A − A M = G Hᵀ; `DisplacementType` names (L, M)
        In the bases that make L and M diagonal, A has the entries (ĝ_i·ĥ_j) / (l_i − m_j).

    Shapes:
        G, H: (…, n, r)
        x, y: (…, n), real if G, H and x are

    Parameters:
        disp_type: a `DisplacementType`
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one
        out: where the result is written, contiguous; None allocates it

    Takes 4 r + 2 Fourier transforms of length n and O(B r n) memory.

    Edge cases:
        Where l_i = m_j (n entries for each of the first two types), the entries are 0: the least-norm least-squares solution.
        r = 0 gives zeros.

    Example:
        >>> first, last = torch.eye(3)[:, :1], torch.eye(3)[:, 2:]
        >>> kind = gdn_cuda.DisplacementType.CYCLIC_ANTICYCLIC  # the identity has Z_1 − Z_{−1} = 2 e_0 e_{n−1}ᵀ
        >>> gdn_cuda.displacement_matvec(2 * first, last, torch.tensor([1.0, 2, 3]), kind).round(decimals=4)
        tensor([1., 2., 3.])
    """
    function, tensors = "displacement_matvec", {"G": G, "H": H, "x": x}

    def run(out: Tensor | None) -> Tensor:
        dtype, (left, right, vector) = computed(function, tensors)
        _check(function, left, right, vector, disp_type)
        n, rank = left.shape[-2:]
        shape = (*broadcast_leading(function, {"G": (G, 2), "H": (H, 2), "x": (x, 1)}), n)
        check_out(function, out, shape, dtype)
        if out is not None:
            require_no_transforms(function)
        if rank == 0 or 0 in shape:
            return finished(zeros_of(shape, left, right, vector), dtype, out)
        return finished(_multiply(left, right, vector, disp_type), dtype, out)

    return call(function, run, stream, out, tensors)


def check_generators(function: str, G: Tensor, H: Tensor, disp_type: int) -> None:
    if G.dim() < 2:
        raise ValueError(f"{function}: G: expected (…, n, r), got {tuple(G.shape)}")
    if H.dim() < 2 or G.shape[-2:] != H.shape[-2:]:
        raise ValueError(f"{function}: H: expected (…, n, r) as G has {tuple(G.shape)}, got {tuple(H.shape)}")
    if disp_type not in _TYPES:
        names = ", ".join(f"{d.value} ({d.name})" for d in DisplacementType)
        raise ValueError(f"{function}: disp_type: expected one of {names}, got {disp_type}")


def _check(function: str, G: Tensor, H: Tensor, x: Tensor, disp_type: int) -> None:
    check_generators(function, G, H, disp_type)
    if x.dim() < 1 or x.shape[-1] != G.shape[-2]:
        raise ValueError(f"{function}: x: expected (…, {G.shape[-2]}) as G has, got {tuple(x.shape)}")


def _multiply(G: Tensor, H: Tensor, x: Tensor, disp_type: int) -> Tensor:
    n, real = G.shape[-2], not G.is_complex()
    # CPU tensors, as in the other structured operators, are computed in fp64 and rounded once.
    working = torch.complex128 if G.device.type == "cpu" else torch.promote_types(G.dtype, torch.complex64)
    left, right, vector = (y.to(working) for y in (G.mT, H.mT, x[..., None, :]))  # (…,r,n), (…,r,n), (…,1,n)
    if disp_type == DisplacementType.CYCLIC_ANTICYCLIC:
        angles = torch.arange(n, dtype=torch.float64, device=x.device) * (math.pi / n)
        turn = torch.complex(angles.cos(), angles.sin()).to(working)
        right, vector = right * turn, vector * torch.conj_physical(turn)
    products = torch.fft.ifft(right) * torch.fft.fft(vector) * n  # ĥ_j x̂_j: the scales 1/√n and √n of the transforms cancel
    if disp_type == DisplacementType.CYCLIC_TRANSPOSED:
        products = torch.cat([products[..., :1], products[..., 1:].flip(-1)], -1)
    sums = torch.fft.fft(torch.fft.ifft(products) * _symbol(disp_type, n, working, x.device))
    total = (torch.fft.fft(left) * sums).sum(-2) / n
    # 1 / (l_i − m_j) has another factor 1 / l_i: in the basis of x, a shift up.
    y = torch.fft.ifft(total).roll(-1, -1)
    return y.real if real else y
