"""Properties of every module of gdn_cuda.nn: devices, dtypes, empty and short inputs, gradients, copies, steps, autocast."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import rel_rms
from module_cases import CASES, Case
from torch import Tensor

from gdn_cuda import nn

EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
LAYERS = pytest.mark.parametrize("case", [case for case in CASES if case.is_layer], ids=lambda case: case.id)
MATRICES = pytest.mark.parametrize("case", [case for case in CASES if not case.is_layer], ids=lambda case: case.id)
STEPPED = pytest.mark.parametrize("case", [case for case in CASES if case.has_steps], ids=lambda case: case.id)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
# Kernels' steps count parameters as constants.
STEPS_FOR_INFERENCE = {
    "GatedDeltaNet",
    "KimiDeltaAttention",
    "S6",
    "Mamba",
    "Mamba2",
    "HyenaCascade",
    "ShortConv",
    "S4Kernel",
    "S4DKernel",
}
# A few roundings of inputs, parameters and results in sequence, and of projections between them.
BOUNDS = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def test_every_module_has_a_case() -> None:
    assert {case.module for case in CASES} == set(nn.__all__)


def test_the_list_of_modules_is_complete() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs/operators.md").read_text()
    listed = next(line for line in page.splitlines() if line.startswith("- `gdn_cuda.nn` has modules. "))
    assert set(re.findall(r"`(\w+)`", listed)) == set(nn.__all__)


def result_dtype(case: Case, dtype: torch.dtype) -> torch.dtype:
    """Kernels and complex sums return fp32 for 16-bit parameters; all other modules return the dtype of their input."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if case.module in ("S4Kernel", "S4DKernel"):
        return wide
    return wide.to_complex() if case.more.get("conj") else dtype


def with_dtype(case: Case, module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A module made with that dtype, with the same parameters."""
    made = case.make(dtype=dtype)
    made.load_state_dict(module.state_dict())
    return made


# ---- Devices and dtypes


@LAYERS
def test_layers_take_device_and_dtype_by_name(case: Case) -> None:
    parameters = inspect.signature(getattr(nn, case.module)).parameters
    for name in ("device", "dtype"):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY and parameters[name].default is None


@EVERY
@EVERY_DTYPE
def test_a_module_has_the_dtype_it_is_made_with(case: Case, dtype: torch.dtype, seed: int) -> None:
    wide, x = case.make(), case.inputs(seed)
    module = with_dtype(case, wide, dtype)
    fits = {dtype} if not case.is_layer else {dtype, torch.float64 if dtype == torch.float64 else torch.float32}
    assert {p.dtype for p in module.parameters()} <= fits
    y = case.run(module, x.to(dtype))
    assert y.dtype == result_dtype(case, dtype)
    assert rel_rms(y, case.run(with_dtype(case, wide, torch.float32), x)) < max(BOUNDS[dtype], 1e-5)


@EVERY
@EVERY_DTYPE
def test_a_module_can_be_converted(case: Case, dtype: torch.dtype, seed: int) -> None:
    wide, x = case.make(), case.inputs(seed)
    expected = case.run(copy.deepcopy(wide), x)
    module = wide.to(dtype)
    assert {p.dtype for p in module.parameters()} <= {dtype, torch.float32}
    y = case.run(module, x.to(dtype))
    assert y.dtype == result_dtype(case, dtype)
    assert rel_rms(y, expected) < max(BOUNDS[dtype], 1e-5)


@LAYERS
def test_a_seed_gives_the_same_values_in_every_dtype(case: Case) -> None:
    wide, narrow, half = (case.make(dtype=dtype).state_dict() for dtype in (torch.float64, torch.float32, torch.bfloat16))
    ours = ("S5", "LRU", "S4", "S4D")  # others draw in their own dtype, as torch's modules do
    names = [name for name in wide if case.module in ours and not name.startswith("out_proj")]
    for name in names:
        assert torch.equal(wide[name].to(narrow[name].dtype), narrow[name]) and torch.equal(
            narrow[name].to(half[name].dtype), half[name]
        )


@EVERY
def test_meta(case: Case, seed: int) -> None:
    module = case.make(device="meta", dtype=torch.bfloat16)
    assert {x.device.type for x in (*module.parameters(), *module.buffers())} == {"meta"}
    if case.is_layer:
        with torch.device("meta"):
            inside = case.make()
        assert {x.device.type for x in (*inside.parameters(), *inside.buffers())} == {"meta"}
        y = case.run(module, case.inputs(seed, device="meta", dtype=torch.bfloat16))
        assert y.device.type == "meta" and y.shape == case.shape(2, 5) and y.dtype == torch.bfloat16
        loaded = module.to_empty(device="cpu")
        wide = case.make(dtype=torch.bfloat16)
        loaded.load_state_dict(wide.state_dict())
        x = case.inputs(seed, dtype=torch.bfloat16)
        assert torch.equal(case.run(loaded, x), case.run(wide, x))


@EVERY
def test_the_representation_shows_sizes(case: Case) -> None:
    shown = case.make().extra_repr()
    assert [size for size in case.sizes if not re.search(rf"\b{size}\b", shown)] == [], shown


# ---- Empty and short inputs


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("B", "L"), [(0, 5), (2, 0), (2, 1), (0, 0), (1, 1)])
def test_empty_and_short_inputs(case: Case, B: int, L: int, dtype: torch.dtype, seed: int) -> None:
    like: dict[str, Any] = {} if case.is_layer or case.module in ("S4Kernel", "S4DKernel") else {"L": L}
    if like and L == 0:
        like = {"L": 5}
        B, L = 0, 5  # matrices have rows
    module = case.make(dtype=dtype, **like)
    x = case.inputs(seed, B, L, dtype=dtype).requires_grad_()
    y = case.run(module, x)
    assert y.shape == case.shape(B, L) and y.isfinite().all()
    y.abs().float().square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in module.parameters())


@STEPPED
@pytest.mark.parametrize("L", [0, 1, 5])
@torch.no_grad()
def test_no_sequences_and_no_tokens_keep_states(case: Case, L: int, seed: int) -> None:
    module = case.make()
    y, state = case.prompt(module, case.inputs(seed, 0, L))
    assert y.shape == case.shape(0, L)
    if L:
        y, _ = case.step(module, case.inputs(seed, 0, 1)[:, 0], state)
        assert y.shape == case.shape(0, 1)[:1] + case.shape(0, 1)[2:]
    x = case.inputs(seed, 2, 4)
    _, state = case.prompt(module, x[:, :0])
    assert rel_rms(case.stepped(module, x, state), case.run(module, x)) < 1e-5


# ---- Gradients


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_finite(case: Case, dtype: torch.dtype, seed: int) -> None:
    module, x = case.make(dtype=dtype), case.inputs(seed, dtype=dtype).requires_grad_()
    y = case.run(module, x)
    (y.abs().float() * torch.randn(y.shape)).sum().backward()
    for name, p in (*module.named_parameters(), ("x", x)):
        assert p.grad is not None and p.grad.dtype == p.dtype and bool(p.grad.isfinite().all()), name
        assert p.grad.any(), name


@EVERY
def test_fp64_is_computed_in_fp64(case: Case, seed: int) -> None:
    """Finite differences of results agree with gradients to many digits."""
    module, x = case.make(dtype=torch.float64), case.inputs(seed, dtype=torch.float64).requires_grad_()
    y = case.run(module, x)
    assert y.dtype == result_dtype(case, torch.float64)
    y_of = lambda x: torch.view_as_real(y) if (y := case.run(module, x)).is_complex() else y  # noqa: E731
    assert torch.autograd.gradcheck(y_of, (x,), fast_mode=True, rtol=1e-6, atol=1e-7)


# ---- Copies


@EVERY
def test_checkpoints_and_copies(case: Case, seed: int) -> None:
    module, x = case.make(), case.inputs(seed)
    expected = case.run(module, x)  # S4's kernels convert C at the first call
    other = case.make(seed=1)
    assert not torch.equal(case.run(other, x), expected)
    assert not any(other.load_state_dict(module.state_dict()))
    copies = (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module)))
    for each in copies:
        assert torch.equal(case.run(each, x), expected)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    for each in copies:
        assert torch.equal(case.run(each, x), expected)


# ---- Steps


@STEPPED
@EVERY_DTYPE
@torch.no_grad()
def test_steps_give_the_same_as_the_sequence(case: Case, dtype: torch.dtype, seed: int) -> None:
    """From the default state, and after a prompt."""
    module, x = case.make(dtype=dtype), case.inputs(seed, L=24, dtype=dtype)
    whole = case.run(module, x)
    assert rel_rms(case.stepped(module, x), whole) < BOUNDS[dtype]
    first, state = case.prompt(module, x[:, :9])
    parts = torch.cat([first, case.stepped(module, x[:, 9:], state)], 1)
    assert parts.dtype == whole.dtype and rel_rms(parts, whole) < BOUNDS[dtype]


@STEPPED
def test_steps_have_gradients_or_refuse_backward(case: Case, seed: int) -> None:
    module, x = case.make(), case.inputs(seed, L=6)
    whole = case.run(module, x)
    weights = torch.randn(whole.shape)
    try:
        (case.stepped(module, x) * weights).sum().backward()
    except RuntimeError:
        assert case.module in STEPS_FOR_INFERENCE
        return
    found = {name: p.grad for name, p in module.named_parameters()}
    expected = torch.autograd.grad((whole * weights).sum(), list(module.parameters()))
    for (name, ours), theirs in zip(found.items(), expected, strict=True):
        assert ours is not None and rel_rms(ours, theirs) < 1e-4, name


# ---- Autocast and torch.compile


@LAYERS
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_layers_return_the_dtype_of_autocast(case: Case, given: torch.dtype, seed: int) -> None:
    module, x = case.make(), case.inputs(seed, L=200)
    expected = case.run(module, x)
    with torch.autocast("cpu", torch.bfloat16):
        y = case.run(module, x.to(given))
        assert y.dtype == torch.bfloat16 and rel_rms(y, expected) < 3e-2
        if case.has_steps:
            first, state = case.prompt(module, x[:, :150].to(given))
            last = case.stepped(module, x[:, 150:].to(given), state)
            assert last.dtype == torch.bfloat16 and rel_rms(torch.cat([first, last], 1), expected) < 3e-2


@LAYERS
def test_gradients_under_autocast(case: Case, seed: int) -> None:
    module, x = case.make(), case.inputs(seed, L=20).requires_grad_()
    weights = torch.randn(case.shape(2, 20))
    leaves = [x, *module.parameters()]
    expected = torch.autograd.grad((case.run(module, x) * weights).sum(), leaves)
    with torch.autocast("cpu", torch.bfloat16):
        y = case.run(module, x)
    for ours, theirs, leaf in zip(torch.autograd.grad((y * weights).sum(), leaves), expected, leaves, strict=True):
        assert ours.dtype == leaf.dtype and rel_rms(ours, theirs) < 0.1


@LAYERS
def test_autocast_leaves_fp64(case: Case, seed: int) -> None:
    module, x = case.make(dtype=torch.float64), case.inputs(seed, dtype=torch.float64)
    expected = case.run(module, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(case.run(module, x), expected)


@MATRICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@torch.no_grad()
def test_autocast_leaves_matrices_and_kernels(case: Case, dtype: torch.dtype, seed: int) -> None:
    module, x = case.make(dtype=dtype), case.inputs(seed, L=64 if case.has_steps else 5, dtype=dtype)

    def results() -> list[Tensor]:
        found = [case.run(module, x) if not case.has_steps else module(L=64)[0]]
        return [*found, case.stepped(module, x)] if case.has_steps else found

    expected = results()
    with torch.autocast("cpu", torch.bfloat16):
        assert all(
            torch.equal(ours, theirs) and ours.dtype == theirs.dtype for ours, theirs in zip(results(), expected, strict=True)
        )


@pytest.mark.parametrize("name", sorted({case.module for case in CASES if case.is_layer}))
@torch.no_grad()
def test_layers_compile_under_autocast(name: str, seed: int) -> None:
    case = next(case for case in CASES if case.module == name)
    module, x = case.make(), case.inputs(seed)
    with torch.autocast("cpu", torch.bfloat16):
        expected = case.run(module, x)  # which converts C of S4
        torch._dynamo.reset()
        y = torch.compile(lambda x: case.run(module, x), fullgraph=True, backend="aot_eager")(x)
    assert y.dtype == torch.bfloat16 and rel_rms(y, expected) < 1e-2
