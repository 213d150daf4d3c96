"""Products by displacement, against A from its defining equation, solved as a linear system in all entries."""

import pytest
import torch
from gdn_cuda.reference.structured_displacement import DisplacementType, displacement_matrix, displacement_matvec
from gdn_cuda.reference.structured_toeplitz import toeplitz
from helpers import rel_rms

TYPES = tuple(DisplacementType)
SIZES = (1, 2, 3, 4, 7, 11)
DTYPES = (torch.float64, torch.complex128)


def draw(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def shift(n, corner):
    matrix = torch.diag(torch.ones(n - 1), -1).double()
    matrix[0, n - 1] += corner
    return matrix


def pair(disp_type, n):
    Z = shift(n, 1)
    return Z, {0: Z.T, 1: Z, 2: shift(n, -1)}[int(disp_type)]


def least_norm_solution(L, M, right):
    """The least-squares solution A of L A − A M = right with the least norm, by the pseudoinverse."""
    n = len(L)
    operator = torch.kron(L, torch.eye(n).double()) - torch.kron(torch.eye(n).double(), M.T.contiguous())
    inverse = torch.linalg.pinv(operator, rtol=1e-10).to(right.dtype)
    return (inverse @ right.flatten()).reshape(n, n)


@pytest.mark.parametrize("disp_type", TYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("rank", [1, 3])
def test_the_matrix_is_the_least_norm_solution_of_its_equation(disp_type, dtype, n, rank, rng):
    G, H, x = draw(rng, n, rank, dtype=dtype), draw(rng, n, rank, dtype=dtype), draw(rng, n, dtype=dtype)
    expected = least_norm_solution(*pair(disp_type, n), G @ H.T)
    matrix, y = displacement_matrix(G, H, disp_type), displacement_matvec(G, H, x, disp_type)
    assert matrix.dtype == y.dtype == dtype
    assert rel_rms(matrix, expected) < 1e-12 if expected.any() else not matrix.abs().gt(1e-13).any()
    assert rel_rms(y, matrix @ x) < 1e-14 if expected.any() else not y.abs().gt(1e-13).any()


def test_the_default_is_sylvester_with_the_transposed_shift(rng):
    G, H, x = draw(rng, 5, 2), draw(rng, 5, 2), draw(rng, 5)
    assert torch.equal(displacement_matvec(G, H, x), displacement_matvec(G, H, x, 0))


@pytest.mark.parametrize("n", SIZES)
def test_entries_in_the_fourier_basis(n, rng):
    """(Ĝ_i·Ĥ_j) / (ω_i − ω_j⁻¹), and 0 where i + j ≡ 0 mod n."""
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    G, H = draw(rng, n, 2), draw(rng, n, 2)
    transformed = np.fft.ifft(np.fft.fft(displacement_matrix(G, H).numpy(), axis=0), axis=1)
    numerators = np.fft.fft(G.numpy(), axis=0) @ np.fft.ifft(H.numpy(), axis=0).T
    omega = np.exp(-2j * np.pi * np.arange(n) / n)
    for i in range(n):
        for j in range(n):
            expected = 0 if (i + j) % n == 0 else numerators[i, j] / (omega[i] - 1 / omega[j])
            assert abs(transformed[i, j] - expected) < 1e-12


def generators_of(disp_type, matrix):
    """Generators G and H of rank 2 of a matrix, and the part of its displacement beyond rank 2."""
    L, M = pair(disp_type, len(matrix))
    U, S, V = torch.linalg.svd(L @ matrix - matrix @ M)
    return U[:, :2] * S[:2], V.mH[:, :2].conj(), S[2:]


@pytest.mark.parametrize("n", SIZES[1:])
def test_each_type_represents_its_structured_matrices(n, rng):
    """Two types have Toeplitz matrices at rank 2, one Hankel matrices; the null space of the operator is lost."""
    T = toeplitz(draw(rng, n), draw(rng, n))
    circulants = torch.stack([torch.linalg.matrix_power(shift(n, 1), k) for k in range(n)])
    cyclic_hankels = circulants.flip(-1)
    T_left = T - torch.einsum("kij,ij,kab->ab", circulants, T, circulants) / n
    hankel_left = T.flip(-1) - torch.einsum("kij,ij,kab->ab", cyclic_hankels, T.flip(-1), cyclic_hankels) / n
    for disp_type, matrix, expected in (
        (DisplacementType.CYCLIC_ANTICYCLIC, T, T),
        (DisplacementType.CYCLIC, T, T_left),
        (DisplacementType.CYCLIC_TRANSPOSED, T.flip(-1), hankel_left),
    ):
        G, H, beyond = generators_of(disp_type, matrix)
        assert (beyond < 1e-12).all(), disp_type.name
        assert (displacement_matrix(G, H, disp_type) - expected).norm() < 1e-11 * T.norm(), disp_type.name
        x = draw(rng, n)
        assert (displacement_matvec(G, H, x, disp_type) - expected @ x).norm() < 1e-11 * T.norm() * x.norm()
    if n > 3:
        assert generators_of(DisplacementType.CYCLIC_TRANSPOSED, T)[2].max() > 1e-3


def test_nearly_equal_nodes_keep_full_precision():
    """n = 1009: the distance of adjacent roots is 3e-3, and half of that to those of Z_{−1}. A single pair of generators gives
    an A whose displacement is again an outer product."""
    n = 1009
    rng = torch.Generator().manual_seed(n)
    G, H, x = draw(rng, n, 1), draw(rng, n, 1), draw(rng, n)
    y, L, M = displacement_matvec(G, H, x, 2), *pair(2, n)
    assert rel_rms(L @ y - displacement_matvec(G, H, M @ x, 2), G[:, 0] * (H[:, 0] @ x)) < 1e-12


@pytest.mark.parametrize("disp_type", TYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_gradients(disp_type, dtype, n, rng):
    shapes = [(2, 1, n, 2), (n, 2), (3, n)]
    leaves = [draw(rng, *shape, dtype=dtype).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lambda G, H, x: displacement_matvec(G, H, x, disp_type), leaves)


@pytest.mark.parametrize("disp_type", TYPES)
def test_broadcasting(disp_type, rng):
    G, H, x = draw(rng, 2, 1, 5, 2), draw(rng, 5, 2), draw(rng, 3, 5)
    y = displacement_matvec(G, H, x, disp_type)
    assert y.shape == (2, 3, 5)
    assert rel_rms(y[1, 2], displacement_matvec(G[1, 0], H, x[2], disp_type)) < 1e-13


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]
)
def test_dtypes_are_widened_before_anything_is_computed(dtype, rng):
    wide = torch.complex128 if dtype.is_complex else torch.float64
    G, H, x = (draw(rng, *shape, dtype=wide).to(dtype) for shape in ((4, 2), (4, 2), (4,)))
    y = displacement_matvec(G, H, x, 1)
    assert y.dtype == wide
    assert torch.equal(y, displacement_matvec(G.to(wide), H.to(wide), x.to(wide), 1))
    assert displacement_matvec(G, H, x.to(torch.complex64), 1).dtype == torch.complex128


@pytest.mark.parametrize("disp_type", TYPES)
def test_small_sizes(disp_type):
    """No rows; no generators; and one row, where only the third type has something to solve: 2 a = g h."""
    assert displacement_matvec(torch.zeros(2, 0, 3), torch.zeros(0, 3), torch.zeros(0), disp_type).shape == (2, 0)
    assert displacement_matvec(torch.zeros(3, 0), torch.zeros(3, 0), torch.ones(3), disp_type).tolist() == [0, 0, 0]
    one = displacement_matvec(torch.tensor([[3.0]]), torch.tensor([[4.0]]), torch.tensor([1.0]), disp_type)
    assert one.item() == pytest.approx(6.0 if disp_type == DisplacementType.CYCLIC_ANTICYCLIC else 0.0)


def test_bad_input():
    G, x = torch.ones(4, 2), torch.ones(4)
    with pytest.raises(ValueError, match=r"displacement_matvec: disp_type: expected one of 0 \(CYCLIC_TRANSPOSED\), .* got 3"):
        displacement_matvec(G, G, x, 3)
    with pytest.raises(ValueError, match=r"displacement_matvec: H: expected \(…, n, r\) as G has \(4, 2\), got \(4, 1\)"):
        displacement_matvec(G, G[:, :1], x)
    with pytest.raises(ValueError, match=r"displacement_matvec: x: expected \(…, 4\) as G has, got \(1,\)"):
        displacement_matvec(G, G, x[:1])
