"""simplified_scan and s5_inner on the GPU against their definition in fp64: any length, both forms of step sizes, initial
states, gradients, rows split over blocks, hostile input, the same bits in every run, graphs, torch.compile, the C++ API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import pytest
import simplified_oracle as oracle
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import explain, s5_inner, simplified_scan
from gdn_cuda.nn import LRU, S5
from gdn_cuda.scan.diagonal import diagonal_scan

EVERY = pytest.mark.parametrize("name", oracle.NAMES)
FORMS = pytest.mark.parametrize(
    "varying,with_a,with_state", [(False, False, False), (True, False, True), (True, True, False), (False, True, True)]
)
FORWARD, GRADIENT = 1e-5, 1e-4  # in fp32; the products are torch's


@pytest.fixture(autouse=True)
def exact_products() -> Any:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def scanned(seed: int, batch: int, P: int, L: int, varying: bool, with_a: bool, with_state: bool) -> list[Tensor | None]:
    """Arguments of diagonal_scan without the discretization."""
    x = oracle.drawn(seed, batch, P, P, L, varying=varying, with_a=with_a, with_state=with_state, device="cuda")
    return [x["u"], x["delta"], x["A"], x.get("delta_a"), x.get("initial_state")]


def check(given: list[Tensor | None], name: str, seed: int, gradients: bool = True) -> None:
    leaves = [x.requires_grad_() for x in given if x is not None]
    torch.cuda.empty_cache()
    torch.empty(1 << 22, device="cuda").fill_(torch.nan)  # memory of new tensors
    found, expected = diagonal_scan(*given, name), oracle.diagonal_scan(*given, name)
    assert rel_rms(found[0], expected[0]) < FORWARD and rel_rms(found[1], expected[1]) < FORWARD
    if not gradients:
        return
    rng = torch.Generator("cuda").manual_seed(seed)
    weights = [torch.randn(y.shape, generator=rng, dtype=y.dtype, device="cuda") for y in found]
    ours = torch.autograd.grad(found, leaves, weights)
    theirs = torch.autograd.grad(expected, leaves, [oracle.wide(w) for w in weights], allow_unused=True)
    for mine, wanted, leaf in zip(ours, theirs, leaves, strict=True):
        assert rel_rms(mine, torch.zeros_like(leaf) if wanted is None else wanted) < GRADIENT


@EVERY
@FORMS
@pytest.mark.parametrize("L", [1, 3, 127, 128, 129, 511, 512, 513, 1000, 2051])
def test_values_and_gradients(name: str, varying: bool, with_a: bool, with_state: bool, L: int, seed: int) -> None:
    check(scanned(seed, 2, 5, L, varying, with_a, with_state), name, seed)


@EVERY
@pytest.mark.parametrize("varying", [False, True])
def test_no_tokens(name: str, varying: bool, seed: int) -> None:
    given = scanned(seed, 2, 3, 0, varying, False, True)
    leaves = [x.requires_grad_() for x in given if x is not None]
    states, last = diagonal_scan(*given, name)
    assert states.shape == (2, 3, 0) and torch.equal(last, leaves[-1])
    found = torch.autograd.grad(last, leaves, torch.ones_like(last))
    assert torch.equal(found[-1], torch.ones_like(last)) and not any(x.any() for x in found[:-1])
    for batch, P in ((0, 3), (2, 0)):
        assert diagonal_scan(*scanned(seed, batch, P, 4, varying, False, True), name)[0].shape == (batch, P, 4)


@EVERY
@FORMS
def test_rows_that_blocks_share(name: str, varying: bool, with_a: bool, with_state: bool, seed: int) -> None:
    given = scanned(seed, 1, 3, 9001, varying, with_a, with_state)
    assert "scan/diagonal_scan_parts" in explain(diagonal_scan, *given, name)
    check(given, name, seed)


@EVERY
@pytest.mark.parametrize("rows", [1, 600])
def test_decays_near_one_and_fast_phases_over_65536_tokens(name: str, rows: int, seed: int) -> None:
    """Rows split over blocks, and one block per row: the batch repeats five rows, of which the first ones are compared."""
    L = 65536
    A = torch.tensor([-1e-7, -1e-6, -1e-6 + 1e4j, -1e-7 + 3j, -1e3 - 1e4j], dtype=torch.complex64, device="cuda")
    rng = torch.Generator("cuda").manual_seed(seed)
    Bu = torch.randn(1, 5, L, generator=rng, dtype=torch.complex64, device="cuda")
    for delta in (torch.ones(5, device="cuda"), 0.5 + torch.rand(1, 5, L, generator=rng, device="cuda")):
        more = rows // 5 if rows > 5 else 1
        sizes = delta if delta.dim() == 1 else delta.expand(more, 5, L)
        states, last = diagonal_scan(Bu.expand(more, 5, L), sizes, A, None, None, name)
        expected, expected_last = oracle.diagonal_scan(Bu, delta, A, None, None, name)
        for row in range(5):
            assert rel_rms(states[:1, row], expected[:, row]) < FORWARD
            assert rel_rms(last[-1:, row], expected_last[:, row]) < FORWARD


@EVERY
def test_steps_of_zero_and_a_hundred(name: str, seed: int) -> None:
    given = scanned(seed, 2, 5, 700, True, False, True)
    given[1][..., ::7] = 0
    given[1][..., ::11] = 100
    given[2][:4] = torch.tensor([0, -1e-6, 1e-9 - 1e-9j, -1e3 + 100j], dtype=torch.complex64)
    check(given, name, seed)


@EVERY
def test_infinities_and_nans_stay_in_their_row(name: str, seed: int) -> None:
    given = scanned(seed, 3, 4, 900, True, False, True)
    clean = diagonal_scan(*given, name)
    for bad in (torch.inf, -torch.inf, torch.nan):
        hurt = [None if x is None else x.clone() for x in given]
        hurt[0][1, 2, 300] = bad
        found = diagonal_scan(*hurt, name)
        for ours, theirs in zip(found, clean, strict=True):
            same = torch.ones(3, 4, dtype=torch.bool, device="cuda")
            same[1, 2] = False
            assert torch.equal(ours[same], theirs[same])
        assert torch.equal(found[0][1, 2, :300], clean[0][1, 2, :300])
        assert not torch.isfinite(found[0][1, 2, 300])


def test_layouts_and_offsets_of_inputs(seed: int) -> None:
    """Transposed, shifted by one element, lazily conjugated."""
    given = scanned(seed, 2, 4, 512, True, False, True)
    expected = diagonal_scan(*given, "zoh")
    moved = [x.mT.contiguous().mT if x is not None and x.dim() == 3 else x for x in given]
    shifted = [None if x is None else torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x) for x in given]
    conjugate = [x if x is None or not x.is_complex() else torch.conj_physical(x).conj() for x in given]
    for other in (moved, shifted, conjugate):
        for ours, theirs in zip(diagonal_scan(*other, "zoh"), expected, strict=True):
            assert torch.equal(ours, theirs)


@EVERY
@pytest.mark.parametrize("L", [700, 9000])
def test_two_runs_have_the_same_bits(name: str, L: int, seed: int) -> None:
    given = scanned(seed, 2, 20, L, True, True, True)
    leaves = [x.requires_grad_() for x in given if x is not None]

    def run() -> list[Tensor]:
        states, last = diagonal_scan(*given, name)
        return [states, last, *torch.autograd.grad((states, last), leaves, (torch.ones_like(states), torch.ones_like(last)))]

    first = run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))


@EVERY
def test_simplified_scan_and_s5_inner(name: str, seed: int) -> None:
    x = oracle.drawn(seed, 2, 7, 10, 333, varying=True, with_state=True, device="cuda")
    y, last = simplified_scan(**x, discretization=name, return_last_state=True)
    expected, expected_last = oracle.simplified_scan(**x, discretization=name)
    assert rel_rms(y, expected) < FORWARD and rel_rms(last, expected_last) < FORWARD
    del x["initial_state"]
    D = torch.randn(7, device="cuda")
    leaves = [z.requires_grad_() for z in (*x.values(), D)]
    found = s5_inner(*leaves, discretization=name)
    wanted = 2 * oracle.simplified_scan(**x, discretization=name)[0].real + D.double().cpu()[:, None] * oracle.wide(x["u"]).real
    assert rel_rms(found, wanted) < FORWARD
    weight = torch.randn_like(found)
    theirs = torch.autograd.grad(wanted, leaves, weight.double().cpu())
    for mine, other in zip(torch.autograd.grad(found, leaves, weight), theirs, strict=True):
        assert rel_rms(mine, other) < GRADIENT


def test_fp64_is_refused(seed: int) -> None:
    x = oracle.drawn(seed, 2, 3, 4, 5, varying=True, dtype=torch.complex128, device="cuda")
    with pytest.raises(ValueError, match=r"^simplified_scan: u: expected torch.complex64, as on every GPU, got complex128$"):
        simplified_scan(**x)


@pytest.mark.parametrize("L", [300, 9000])
def test_a_graph_replays_it(L: int, seed: int) -> None:
    given = scanned(seed, 1, 8, L, True, False, True)
    leaves = [x.requires_grad_() for x in given if x is not None]

    def run() -> list[Tensor]:
        states, last = diagonal_scan(*given, "zoh")
        return [states, last, *torch.autograd.grad((states, last), leaves, (torch.ones_like(states), torch.ones_like(last)))]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    with torch.no_grad():
        for x in leaves[:2]:
            x.mul_(0.5)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, run(), strict=True))


def test_compiled(seed: int) -> None:
    x = oracle.drawn(seed, 2, 7, 10, 333, varying=True, with_state=True, device="cuda")
    run = lambda **x: simplified_scan(**x, return_last_state=True)  # noqa: E731
    for ours, theirs in zip(torch.compile(run, fullgraph=True)(**x), run(**x), strict=True):
        assert rel_rms(ours, theirs) < FORWARD


def test_the_cpp_api(tmp_path: Path, seed: int) -> None:
    api = cpp_api.load(Path(__file__).parents[1] / "scan_api.cpp", tmp_path)
    x = oracle.drawn(seed, 2, 7, 10, 333, varying=True, with_a=True, with_state=True, device="cuda")
    for ours, theirs in zip(api.simplified_scan(*x.values()), simplified_scan(**x, return_last_state=True), strict=True):
        assert torch.equal(ours, theirs)
    del x["initial_state"]
    D = torch.randn(7, device="cuda")
    assert rel_rms(api.s5_inner(*x.values(), D, True), s5_inner(**x, D=D, discretization="zoh")) < 1e-6


@pytest.mark.parametrize("make", [LRU, S5])
def test_modules_equal_those_on_the_cpu(make: Any, seed: int) -> None:
    torch.manual_seed(seed)
    layer, u = make(16, 32), torch.randn(3, 200, 16)
    y, last = layer(u, return_last_state=True)
    loss_gradients = torch.autograd.grad(y.square().sum(), tuple(layer.parameters()))
    layer.cuda()
    on_gpu, last_on_gpu = layer(u.cuda(), return_last_state=True)
    assert rel_rms(on_gpu, y) < FORWARD and rel_rms(last_on_gpu, last) < FORWARD
    for ours, theirs in zip(torch.autograd.grad(on_gpu.square().sum(), tuple(layer.parameters())), loss_gradients, strict=True):
        assert rel_rms(ours, theirs) < GRADIENT
    state, steps = layer.default_state(3), []
    for t in range(5):
        step, state = layer.step(u[:, t].cuda(), state)
        steps.append(step)
    assert rel_rms(torch.stack(steps, 1), y[:, :5]) < FORWARD
