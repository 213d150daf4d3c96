"""Streams, `out=`, graphs, torch.compile, windows in L2 and the C++ API of the structured operators, on the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import structured_api
import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda import cauchy_conj, cauchy_kernel, log_vandermonde, log_vandermonde_transpose
from gdn_cuda.reference import structured_toeplitz

STEPS = 700


def draw(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda")


def calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    torch.manual_seed(0)
    v, w, x, points = draw(8, 33), draw(33), 0.01 * draw(8, 33), draw(STEPS)
    return {
        "cauchy_kernel": (cauchy_kernel, (v.real, points.real, w.real)),
        "cauchy_conj": (cauchy_conj, (v, points, w)),
        "log_vandermonde": (log_vandermonde, (v, x, STEPS)),
        "log_vandermonde_transpose": (log_vandermonde_transpose, (draw(8, STEPS).real, v, x, STEPS)),
    }


EVERY = pytest.mark.parametrize("name", ["cauchy_kernel", "cauchy_conj", "log_vandermonde", "log_vandermonde_transpose"])


@EVERY
def test_out_receives_the_result(name: str) -> None:
    function, x = calls()[name]
    expected = function(*x)
    out = torch.full_like(expected, torch.nan)
    assert function(*x, out=out) is out
    assert torch.equal(out, expected)


@EVERY
def test_a_stream_waits_for_its_inputs_and_keeps_their_memory(name: str) -> None:
    """The inputs are written late, and freed and overwritten as soon as the call returns."""
    function, x = calls()[name]
    expected = function(*x)
    stream, late = torch.cuda.Stream(), [y.clone() if isinstance(y, Tensor) else y for y in x]
    torch.cuda.synchronize()
    for y in late:
        if isinstance(y, Tensor):
            y.fill_(torch.nan)
    torch.cuda._sleep(20_000_000)
    for y, value in zip(late, x, strict=True):
        if isinstance(y, Tensor):
            y.copy_(value)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
    out = function(*late, stream=stream)
    shapes = [(y.shape, y.dtype) for y in late if isinstance(y, Tensor)]
    del late, y
    for shape, dtype in shapes:
        torch.full(shape, torch.nan, dtype=dtype, device="cuda")  # overwrites the inputs if their memory was reused too early
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(out, expected)


def test_a_wrong_stream_is_refused() -> None:
    x = draw(3)
    with pytest.raises(ValueError, match=r"^cauchy_conj: stream: expected a torch.cuda.Stream of cuda:0, got 7$"):
        cauchy_conj(x, x, x + 1, stream=7)


@EVERY
def test_gradients_on_a_stream(name: str) -> None:
    function, x = calls()[name]
    leaves = [y.detach().clone().requires_grad_() for y in x if isinstance(y, Tensor)]
    rest = [y for y in x if not isinstance(y, Tensor)]
    expected = torch.autograd.grad(function(*leaves, *rest).abs().sum(), leaves)
    stream = torch.cuda.Stream()
    out = function(*leaves, *rest, stream=stream)
    torch.cuda.current_stream().wait_stream(stream)
    for ours, theirs in zip(torch.autograd.grad(out.abs().sum(), leaves), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@EVERY
@pytest.mark.parametrize("into_out", [False, True])
def test_a_graph_replays(name: str, into_out: bool) -> None:
    function, x = calls()[name]
    expected = function(*x)
    options = {"out": torch.empty_like(expected)} if into_out else {}
    function(*x, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(*x, **options)
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)


@EVERY
def test_torch_compile(name: str) -> None:
    function, x = calls()[name]
    leaves = [y.detach().clone().requires_grad_() for y in x if isinstance(y, Tensor)]
    rest = [y for y in x if not isinstance(y, Tensor)]

    def loss(*leaves: Tensor) -> Tensor:
        out = function(*leaves, *rest)
        return (torch.view_as_real(out) if out.is_complex() else out).square().sum()

    compiled = torch.compile(loss, fullgraph=True)
    expected = torch.autograd.grad(loss(*leaves), leaves)
    for ours, theirs in zip(torch.autograd.grad(compiled(*leaves), leaves), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return structured_api.load(tmp_path_factory.mktemp("structured_api"))


def test_cpp_api(api: Any, seed: int) -> None:
    structured_api.check(api, "cuda", seed)


@pytest.mark.parametrize("n", [1, 33, 300, 1024])
def test_cpp_api_of_toeplitz_matrices(api: Any, n: int, seed: int) -> None:
    structured_api.check_toeplitz(api, "cuda", seed, n)


def test_cpp_api_by_conjugate_gradients(api: Any) -> None:
    c = 0.9 ** torch.arange(5000, device="cuda", dtype=torch.float64)
    broken, b = torch.stack([c, -c]), torch.randn(2, 5000, 2, device="cuda", dtype=torch.float64)
    x, info = api.toeplitz_solve_symmetric_ex(broken, b, True)
    assert info.tolist() == [0, -1] and bool(x[1].isnan().all())
    assert rel_rms(structured_toeplitz.toeplitz_matvec(c, c, x[0]), b[0]) < 1e-12


@pytest.mark.parametrize("n", [1025, 5000, 8193, 9001])
def test_cpp_api_beyond_one_block(api: Any, n: int, seed: int) -> None:
    """Clusters of blocks, dense LU and torch's transforms give the results of Python, which uses the same methods."""
    for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12), (torch.complex128, 1e-12)):
        c, r, b = (draw(2, n, dtype=dtype) for _ in range(3))
        c[:, 0] += 4 * n**0.5
        structured_api.same(api, "toeplitz_matvec", (c, r, b))
        structured_api.same(api, "toeplitz_matvec", (c, r[:, :77], b[:, :77]))
        x, info = api.toeplitz_solve_ex(c, r, b)
        assert not info.any() and rel_rms(api.toeplitz_matvec(c, r, x), b) < 10 * bound
        assert torch.equal(x, gdn_cuda.toeplitz_solve_ex(c, r, b)[0])
        if not dtype.is_complex:
            spd = (0.9 ** torch.arange(n, device="cuda", dtype=torch.float64)).to(dtype)
            assert rel_rms(gdn_cuda.toeplitz_matvec(spd, spd, api.toeplitz_solve_symmetric(spd, b[0])), b[0]) < 10 * bound


def test_cpp_api_refuses_what_python_refuses(api: Any) -> None:
    x = torch.ones(8193, device="cuda")
    with pytest.raises(ValueError, match=r"^toeplitz_solve_symmetric_ex: c: expected at most 8192 rows .*, got \(8193,\)"):
        api.toeplitz_solve_symmetric_ex(x, x, True)
    with pytest.raises(ValueError, match=r"^toeplitz_matvec: r: expected cuda:0, the device of c, got cpu"):
        api.toeplitz_matvec(x[:4], x[:4].cpu(), x[:4])
    with pytest.raises(
        RuntimeError, match=r"^toeplitz_solve: c, r: expected matrices that are nonsingular in working precision"
    ):
        api.toeplitz_solve(0 * x[:9], 0 * x[:9], x[:9])


def test_corrections_of_huge_values_do_not_overflow(api: Any, seed: int) -> None:
    """n = 1100 with entries near 1e304: the transforms of T x overflow where T x does not."""
    generator = torch.Generator().manual_seed(seed)
    n, size = 1100, 1e304
    c, r, x = (torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(3))
    c[0] += 8 * n**0.5
    b = size * structured_toeplitz.toeplitz_matvec(c, r, x)
    assert b.isfinite().all()
    given = [y.cuda() for y in (size * c, size * r, b)]
    for solve in (api.toeplitz_solve_ex, gdn_cuda.toeplitz_solve_ex):
        found, info = solve(*given)
        assert info == 0 and rel_rms(found, x) < 1e-11


def test_cpp_api_pins_poles_in_l2(api: Any, room: int) -> None:
    """Adjacent tensors and distant ones; the window ends with its handle, and a stream has only one."""
    v, both = draw(8, 300), torch.zeros(room // 4 + 4096, device="cuda", dtype=torch.complex64)
    both[:1000], both[-300:] = draw(1000), draw(300)
    for omega, lambd, moved in ((both[:1000], both[1000:1300] + 5, False), (both[:1000], both[-300:], True)):
        if not moved:
            both[1000:1300] = lambd
            lambd = both[1000:1300]
        found, points, poles = api.pinned_cauchy_kernel(v, omega, lambd)
        assert torch.equal(found, cauchy_kernel(v, omega, lambd)) and torch.equal(points, omega) and torch.equal(poles, lambd)
        assert (points.data_ptr() != omega.data_ptr()) == moved
    with gdn_cuda.cauchy_pin_l2(omega, lambd), pytest.raises(RuntimeError, match="has not been released"):
        api.pinned_cauchy_kernel(v, omega, lambd)
    with pytest.raises(ValueError, match=r"^cauchy_pin_l2: lambd: expected complex64, got float32"):
        api.pinned_cauchy_kernel(v, omega, omega.real)
    api.pinned_cauchy_kernel(v, omega, lambd)


# ---- Windows in L2


@pytest.fixture
def room() -> int:
    """The largest window on this GPU; skips if it has none."""
    most = gdn_cuda._C.most_l2_window_bytes(0)
    if most == 0:
        pytest.skip("this GPU sets no L2 aside")
    return int(most)


def test_pinned_poles_give_the_same_sums(room: int) -> None:
    v, omega, lambd = draw(8, 300), draw(5000), draw(300)
    expected = cauchy_kernel(v, omega, lambd)
    with gdn_cuda.cauchy_pin_l2(omega, lambd) as pinned:
        assert pinned.bytes <= room
        assert torch.equal(pinned.omega, omega) and torch.equal(pinned.lambd, lambd)
        assert torch.equal(cauchy_kernel(v, pinned.omega, pinned.lambd), expected)
    assert torch.equal(cauchy_kernel(v, pinned.omega, pinned.lambd), expected)


def test_pinning_copies_strided_or_distant_tensors(room: int) -> None:
    buffer = torch.zeros(room // 4 + 4096, device="cuda")
    omega, lambd = buffer[:1000], buffer[-1000:]
    with gdn_cuda.cauchy_pin_l2(omega, lambd) as pinned:
        assert pinned.bytes == 8000 and pinned.omega.data_ptr() != omega.data_ptr()
    x = draw(64, 2)
    with gdn_cuda.cauchy_pin_l2(x[:, 0], x[:, 1]) as pinned:
        assert pinned.bytes == 1024 and torch.equal(pinned.lambd, x[:, 1])


def test_a_stream_has_one_l2_window_at_a_time(room: int) -> None:
    omega, lambd = draw(50), draw(50)
    first = gdn_cuda.cauchy_pin_l2(omega, lambd)
    with pytest.raises(RuntimeError, match="has not been released"):
        gdn_cuda.cauchy_pin_l2(omega, lambd)
    with torch.cuda.stream(torch.cuda.Stream()):
        gdn_cuda.cauchy_pin_l2(omega, lambd).release()
    first.release()
    first.release()
    gdn_cuda.cauchy_pin_l2(omega, lambd).release()


def test_tensors_that_cannot_be_pinned_are_refused(room: int) -> None:
    omega = draw(50)
    with pytest.raises(
        ValueError, match=r"^cauchy_pin_l2: lambd: expected torch.complex64, the dtype of omega, got torch.float32$"
    ):
        gdn_cuda.cauchy_pin_l2(omega, omega.real)
    large = torch.empty(room // 4 + 1, device="cuda")
    with pytest.raises(RuntimeError, match="which device 0 can set aside"):
        gdn_cuda.cauchy_pin_l2(large, large[:1])
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="under CUDA graph capture"), torch.cuda.graph(graph):
        gdn_cuda.cauchy_pin_l2(omega, omega.clone())
