"""selective_scan on the GPU, forward and backward, against the literal recurrence in fp64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import oracle
import pytest
import selective_api
import torch
from oracle import DISCRETIZATIONS, REAL_ONLY, relative_rms, within
from selective_inputs import (
    DTYPES,
    INVALID_OFFSETS,
    Draw,
    channels_last,
    check_at_the_root,
    equal_steps,
    model_inputs,
    selective_inputs,
)
from torch import Tensor

import gdn_cuda

FORWARD, GRADIENT = 1e-5, 1e-4
CASES = [(name, False) for name in DISCRETIZATIONS] + [(name, True) for name in DISCRETIZATIONS if name not in REAL_ONLY]
EVERY_DISCRETIZATION = pytest.mark.parametrize("name, is_complex", CASES, ids=[f"{n}-complex" if c else n for n, c in CASES])
BOTH_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])
ROWS = ("u", "delta", "z", "delta_a")


def scan(**x: Any) -> tuple[Tensor, Tensor]:
    return gdn_cuda.selective_scan(**x, return_last_state=True)


def poison() -> None:
    """Fills memory that the allocator hands out next with NaN."""
    large, small = (
        torch.full((1 << 24,), torch.nan, device="cuda"),
        torch.full((64, 1 << 12), torch.nan, device="cuda").unbind(),
    )
    kept = [x.clone() for x in small]
    del large, small, kept


def inputs(seed: int, *args: Any, **form: Any) -> dict[str, Any]:
    return selective_inputs(seed, *args, device="cuda", **form)


def check_forward(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    poison()
    with torch.no_grad():
        out, last = scan(**x)
        expected, expected_last = oracle.selective_scan(**x)
    assert within(out, expected, FORWARD) and within(last, expected_last, FORWARD)
    return out, last


def check(x: dict[str, Any], seed: int, spare: tuple[str, ...] = ()) -> None:
    """`spare`: arguments whose gradients are not compared, as they cancel to rounding errors."""
    out, last = check_forward(x)
    draw = Draw(seed + 1, "cuda")
    grads = draw.normal(*out.shape, dtype=out.dtype), draw.normal(*last.shape, dtype=last.dtype)
    wanted = oracle.gradients(oracle.selective_scan, x, *grads)
    poison()
    for argument, found in oracle.gradients(scan, x, *grads).items():
        assert found.dtype == x[argument].dtype
        if argument not in spare:
            assert within(found, wanted[argument], GRADIENT), argument


# ---- The two operators, each alone


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("form", [{"length": 200}, {"batch": 1, "length": 333, "cu_seqlens": [0, 0, 64, 129, 320]}])
@BOTH_LAYOUTS
def test_each_operator_equals_that_on_the_cpu(is_complex: bool, form: dict[str, Any], last: bool, seed: int) -> None:
    """Including the states before chunks; backward reads the CPU's."""
    x = selective_inputs(seed, dim=37, N=16, is_complex=is_complex, last=last, **form)
    given = [x.get(argument) for argument in gdn_cuda.scan.selective._scan.schema.arguments[:-1]]
    on_gpu = [v.cuda() if isinstance(v, Tensor) else v for v in given]
    poison()
    expected = torch.ops.gdn_cuda.selective_scan(*given, True)
    for found, wanted in zip(torch.ops.gdn_cuda.selective_scan(*on_gpu, True), expected, strict=True):
        assert found.stride() == wanted.stride() and relative_rms(found.cpu(), wanted) < 1e-5
    out, state, states = expected
    grads = torch.randn_like(out), torch.randn_like(state)
    wanted_gradients = torch.ops.gdn_cuda.selective_scan_backward(*grads, *given, states)
    poison()
    found_gradients = torch.ops.gdn_cuda.selective_scan_backward(*(g.cuda() for g in grads), *on_gpu, states.cuda())
    for found, wanted in zip(found_gradients, wanted_gradients, strict=True):
        assert found.stride() == wanted.stride() and relative_rms(found.cpu(), wanted) < 1e-4


# ---- Sizes and forms


@pytest.mark.parametrize("length", [1, 2, 5, 31, 32, 63, 64, 65, 129, 1000, 2049])
@pytest.mark.parametrize("dtype", DTYPES)
@BOTH_LAYOUTS
def test_lengths(length: int, dtype: torch.dtype, last: bool, seed: int) -> None:
    check(inputs(seed, length=length, dim=35, N=16, dtype=dtype, last=last), seed)


@pytest.mark.parametrize("N", [1, 2, 7, 16, 17, 64, 256])
@pytest.mark.parametrize("is_complex", [False, True])
@BOTH_LAYOUTS
def test_states(N: int, is_complex: bool, last: bool, seed: int) -> None:
    check(inputs(seed, length=150, dim=9, N=N, is_complex=is_complex, last=last), seed)


FORMS: dict[str, dict[str, Any]] = {
    "varying": {},
    "bare": {"bare": True},
    "B-constant": {"B": "constant", "groups": 2},
    "C-constant": {"C": "constant", "groups": 4},
    "constant": {"B": "constant", "C": "constant", "length": 64},
    "packed": {"batch": 1, "groups": 2, "cu_seqlens": [0, 0, 1, 64, 65, 130, 130, 133]},
    "packed-with-a-tail": {"batch": 1, "cu_seqlens": [0, 100]},
}


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("form", FORMS)
@BOTH_LAYOUTS
def test_discretizations(name: str, is_complex: bool, form: str, last: bool, seed: int) -> None:
    check(inputs(seed, name, is_complex=is_complex, last=last, **{"length": 133, "dim": 8, "N": 5} | FORMS[form]), seed)


@pytest.mark.parametrize("form", ["varying", "B-constant", "packed"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide_coefficients", [False, True])
@BOTH_LAYOUTS
def test_complex_coefficients_in_pairs(form: str, dtype: torch.dtype, wide_coefficients: bool, last: bool, seed: int) -> None:
    options = {"length": 133, "dtype": dtype, "wide_coefficients": wide_coefficients, "last": last} | FORMS[form]
    check(inputs(seed, is_complex=True, in_pairs=True, **options), seed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@BOTH_LAYOUTS
def test_coefficients_in_fp32_beside_rows_in_half(dtype: torch.dtype, last: bool, seed: int) -> None:
    check(inputs(seed, length=133, dtype=dtype, wide_coefficients=True, last=last), seed)
    mixed = inputs(seed, length=133, dtype=dtype, last=last)
    check(mixed | {"B": mixed["B"].float()}, seed)


@pytest.mark.parametrize("groups", [1, 2, 3, 6, 36])
@BOTH_LAYOUTS
def test_groups(groups: int, last: bool, seed: int) -> None:
    check(inputs(seed, length=100, dim=36, N=16, groups=groups, last=last), seed)


@pytest.mark.parametrize("dim", [1, 2, 31, 64, 130])
@BOTH_LAYOUTS
def test_channels(dim: int, last: bool, seed: int) -> None:
    check(inputs(seed, length=70, dim=dim, N=16, dtype=torch.bfloat16, last=last), seed)


@pytest.mark.parametrize("batch, dim, length", [(2, 4, 0), (0, 4, 5), (2, 0, 5)])
@BOTH_LAYOUTS
def test_empty_tensors(batch: int, dim: int, length: int, last: bool, seed: int) -> None:
    x = inputs(seed, batch=batch, dim=dim, length=length, last=last)
    out, state = scan(**x)
    assert out.shape == (batch, dim, length) and state.shape == (batch, dim, 3)
    found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(state))
    if length == 0:
        assert torch.equal(state, x["initial_state"]) and torch.equal(found["initial_state"], torch.ones_like(state))
        assert not any(found[k].any() for k in ("A", "D", "delta_bias"))
        del x["initial_state"]
        assert not scan(**x)[1].any()


@pytest.mark.parametrize("cu_seqlens", [[0], [0, 0, 0]])
def test_no_packed_tokens(cu_seqlens: list[int], seed: int) -> None:
    x = inputs(seed, batch=1, length=0, cu_seqlens=cu_seqlens)
    assert torch.equal(scan(**x)[1], x["initial_state"])


# ---- Memory


@pytest.mark.parametrize("dtype", DTYPES)
@BOTH_LAYOUTS
def test_slices_and_mixed_layouts(dtype: torch.dtype, last: bool, seed: int) -> None:
    """Rows that start off 16 bytes, in a larger tensor; z in the other layout, as in transformers."""
    x = inputs(seed, length=101, dim=6, N=16, dtype=dtype, last=last)

    def within_more(x: Tensor) -> Tensor:
        more = torch.full([size + 3 for size in x.shape], torch.nan, dtype=x.dtype, device="cuda")
        view = (channels_last(more) if last else more)[1:-2, 1:-2, 1:-2]
        return view.copy_(x)

    y = {k: within_more(v) if k in ROWS else v for k, v in x.items()}
    y["z"] = x["z"].contiguous() if last else channels_last(x["z"])
    y["B"] = channels_last(x["B"])
    out, state = check_forward(y)
    assert out.mT.is_contiguous() if last else out.is_contiguous()
    check(y, seed)
    spread = {k: torch.stack([v, v], -1)[..., 0] if isinstance(v, Tensor) else v for k, v in x.items()}
    check(spread, seed)
    assert relative_rms(scan(**x)[1], state) < 1e-6


def test_offsets_beyond_2_to_the_31(seed: int) -> None:
    dim, length = 4099, 1 << 19
    u = torch.randn(1, dim, length, dtype=torch.bfloat16, device="cuda")
    x = {
        "A": torch.full((dim, 1), -1.0, device="cuda"),
        "B": torch.ones(dim, 1, device="cuda"),
        "C": torch.ones(dim, 1, device="cuda"),
    }
    out, state = scan(u=u, delta=u.abs(), **x)
    alone = {k: v[-1:] for k, v in x.items()}
    wanted, wanted_state = scan(u=u[:, -1:], delta=u[:, -1:].abs(), **alone)
    assert relative_rms(out[:, -1:], wanted) < 1e-3 and relative_rms(state[:, -1:], wanted_state) < 1e-5


@pytest.mark.parametrize("offsets", INVALID_OFFSETS)
@BOTH_LAYOUTS
def test_invalid_offsets_touch_no_memory_outside(offsets: list[int], last: bool, seed: int) -> None:
    x = inputs(seed, batch=1, length=271, cu_seqlens=[0, 5, 6, 7, 271], last=last)
    out, state = scan(**x | {"cu_seqlens": torch.tensor(offsets, device="cuda")})
    found = oracle.gradients(
        scan, x | {"cu_seqlens": torch.tensor(offsets, device="cuda")}, torch.ones_like(out), torch.ones_like(state)
    )
    torch.cuda.synchronize()
    assert all(torch.isfinite(y).all() for y in (out, state, *found.values()))


# ---- Values


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("name", ["mamba", "zoh", "bilinear", "dirac"])
@BOTH_LAYOUTS
def test_rates(rate: float, name: str, last: bool, seed: int) -> None:
    x = inputs(seed, name, length=300, bare=True, last=last)
    x["A"] = torch.full_like(x["A"], -rate) * torch.tensor([0.5, 1, 2], device="cuda")
    check(x, seed)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 100.0])
@EVERY_DISCRETIZATION
@BOTH_LAYOUTS
def test_step_sizes(delta: float, name: str, is_complex: bool, last: bool, seed: int) -> None:
    x = inputs(seed, name, length=100, is_complex=is_complex, bare=True, last=last)
    x["delta"] = torch.full_like(x["delta"], delta)
    if name == "rglru" and delta == 0:  # the root's derivative is infinite there, and counts as 0
        check_forward(x)
        check_at_the_root(seed, "cuda")
    else:
        check(x, seed)


@pytest.mark.parametrize("name", ["mamba", "zoh", "bilinear", "dirac"])
@BOTH_LAYOUTS
def test_phases_of_up_to_1e4(name: str, last: bool, seed: int) -> None:
    x = inputs(seed, name, length=100, is_complex=True, bare=True, last=last)
    x["A"] = torch.complex(x["A"].real, x["A"].imag * 3e3)
    check_forward(x)


@BOTH_LAYOUTS
def test_large_biases_and_softplus_from_both_sides(last: bool, seed: int) -> None:
    x = inputs(seed, length=100, last=last)
    x["delta"] = torch.linspace(-40, 40, 2 * 4 * 100, device="cuda").view(2, 4, 100)
    x["delta"] = channels_last(x["delta"]) if last else x["delta"]
    del x["delta_a"]
    check(x, seed)


@pytest.mark.parametrize("N", [16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BOTH_LAYOUTS
def test_a_layer_at_initialisation(N: int, dtype: torch.dtype, last: bool, seed: int) -> None:
    check(model_inputs(seed, 2, 96, 1500, N, dtype, last=last, device="cuda"), seed)


@BOTH_LAYOUTS
def test_65536_tokens_of_a_layer(last: bool, seed: int) -> None:
    check(model_inputs(seed, 1, 24, 65536, 16, torch.float32, last=last, device="cuda"), seed)


@pytest.mark.parametrize("rate", [1e-6, 1e-4])
@BOTH_LAYOUTS
def test_memories_of_65536_tokens(rate: float, last: bool, seed: int) -> None:
    x = inputs(seed, batch=1, dim=8, length=65536, bare=True, last=last)
    check_forward(x | {"A": torch.full_like(x["A"], -rate)})


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("rate", [1e-6, 1e-4, 3e-3, 1e-2, 1.0])
def test_equal_steps(rate: float, is_complex: bool, seed: int) -> None:
    check_forward(equal_steps(inputs(seed, is_complex=is_complex, batch=1, dim=8, length=65536, bare=True), rate))


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("rate", [1e-6, 1e-5, 1e-4])
def test_gradients_through_equal_steps(rate: float, is_complex: bool, seed: int) -> None:
    x = equal_steps(inputs(seed, is_complex=is_complex, batch=1, dim=8, length=65536, bare=True), rate)
    state = torch.zeros(1, *x["A"].shape, dtype=x["A"].dtype, device="cuda", requires_grad=True)
    out, last = scan(**x, initial_state=state)
    (found,) = torch.autograd.grad((out, last), [state], (torch.zeros_like(out), torch.ones_like(last)))
    decay = torch.exp(65536 * x["delta"][0, :, :1].double() * oracle.wide(x["A"]))
    assert within(found, decay.conj()[None], GRADIENT)


@pytest.mark.parametrize("zero", ["u", "delta", "B", "C", "z", "A"])
def test_zeros(zero: str, seed: int) -> None:
    x = inputs(seed, length=100, bare=zero != "z")
    x[zero] = torch.zeros_like(x[zero])
    check(x, seed)


@pytest.mark.parametrize("argument, value", [("u", torch.nan), ("delta", torch.nan), ("z", torch.inf), ("u", torch.inf)])
@BOTH_LAYOUTS
def test_infinities_and_nans_stay_in_their_channel(argument: str, value: float, last: bool, seed: int) -> None:
    x = inputs(seed, batch=3, dim=40, N=16, length=200, last=last)
    clean = scan(**x)
    x[argument] = x[argument].clone(memory_format=torch.preserve_format)
    x[argument][1, 22, 140] = value
    out, state = scan(**x)
    touched = torch.zeros_like(out, dtype=torch.bool)
    touched[1, 22, 140:] = True
    assert torch.equal(out[~touched], clean[0][~touched]) and not torch.isfinite(out[1, 22, 140])
    in_channel = touched.any(-1)
    assert torch.equal(state[~in_channel], clean[1][~in_channel])
    draw = Draw(seed + 1, "cuda")
    grads = draw.normal(*out.shape), draw.normal(*state.shape)
    found = oracle.gradients(scan, x, *grads)
    for row in (k for k in ROWS if k in x):
        assert torch.isfinite(found[row][~in_channel]).all(), row
    for parameter in ("A", "D", "delta_bias"):
        assert torch.isfinite(found[parameter][torch.arange(40, device="cuda") != 22]).all(), parameter


# ---- Between calls


@pytest.mark.parametrize("split", [1, 64, 100, 132])
@EVERY_DISCRETIZATION
def test_tokens_in_two_parts(name: str, is_complex: bool, split: int, seed: int) -> None:
    x = inputs(seed, name, is_complex=is_complex, length=133)

    def tokens(first: int, end: int) -> dict[str, Any]:
        return x | {k: x[k][..., first:end] for k in (*ROWS, "B", "C") if k in x}

    out, state = scan(**x)
    first, middle = scan(**tokens(0, split))
    second, end = scan(**tokens(split, 133) | {"initial_state": middle})
    assert relative_rms(torch.cat([first, second], -1), out) < 2e-6 and relative_rms(end, state) < 2e-6


@BOTH_LAYOUTS
def test_packed_sequences_equal_separate_calls(last: bool, seed: int) -> None:
    cu_seqlens = [0, 0, 700, 701, 765, 829, 2000]
    x = inputs(seed, batch=1, dim=40, N=16, length=2000, cu_seqlens=cu_seqlens, last=last)
    out, state = scan(**x)
    for n, (first, end) in enumerate(pairwise(cu_seqlens)):
        alone = x | {k: x[k][..., first:end] for k in (*ROWS, "B", "C") if k in x}
        alone |= {"cu_seqlens": None, "initial_state": x["initial_state"][n : n + 1]}
        expected, expected_state = scan(**alone)
        assert relative_rms(out[..., first:end], expected) < 2e-6 and relative_rms(state[n : n + 1], expected_state) < 2e-6


@pytest.mark.parametrize("form", [{"batch": 3, "length": 500}, {"batch": 1, "length": 9000}, {"is_complex": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BOTH_LAYOUTS
def test_two_runs_are_bit_identical(form: dict[str, Any], dtype: torch.dtype, last: bool, seed: int) -> None:
    x = inputs(seed, dim=130, N=16, dtype=dtype, last=last, **form)
    out, state = scan(**x)
    grads = torch.randn_like(out), torch.randn_like(state)
    wanted = oracle.gradients(scan, x, *grads)
    for _ in range(3):
        again, again_state = scan(**x)
        assert torch.equal(out, again) and torch.equal(state, again_state)
        assert all(torch.equal(found, wanted[k]) for k, found in oracle.gradients(scan, x, *grads).items())


@BOTH_LAYOUTS
def test_graphs_capture_both_passes(last: bool, seed: int) -> None:
    x = inputs(seed, length=200, dim=40, N=16, dtype=torch.bfloat16, last=last)
    out, state = scan(**x)
    grads = torch.randn_like(out), torch.randn_like(state)
    oracle.gradients(scan, x, *grads)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, captured_state = scan(**x)
        found = oracle.gradients(scan, x, *grads)
    other = inputs(seed + 1, length=200, dim=40, N=16, dtype=torch.bfloat16, last=last)
    for k, v in other.items():
        if isinstance(v, Tensor):
            x[k].copy_(v)
    for _ in range(2):
        for y in (captured, captured_state, *found.values()):
            y.fill_(torch.nan)
        graph.replay()
    expected, expected_state = scan(**other)
    assert torch.equal(captured, expected) and torch.equal(captured_state, expected_state)
    wanted = oracle.gradients(scan, other, *grads)
    assert all(torch.equal(y, wanted[k]) for k, y in found.items())


def test_either_result_may_be_the_only_one_with_a_gradient(seed: int) -> None:
    x = inputs(seed, length=100)
    out, state = scan(**x)
    grads = torch.randn_like(out), torch.randn_like(state)
    for kept in ((grads[0], torch.zeros_like(state)), (torch.zeros_like(out), grads[1])):
        u = x["u"].clone().requires_grad_()
        results = scan(**x | {"u": u})
        which = 0 if kept[0] is grads[0] else 1
        (found,) = torch.autograd.grad(results[which], u, grads[which])
        assert within(found, oracle.gradients(oracle.selective_scan, x, *kept)["u"], GRADIENT)


def test_the_cpp_api(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    selective_api.check(selective_api.load(tmp_path_factory.mktemp("selective_api")), "cuda", seed)


def test_fp64_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=r"^selective_scan: u: expected float32 or bfloat16 or float16 on CUDA, got float64$"):
        scan(**inputs(seed, dtype=torch.float64))
