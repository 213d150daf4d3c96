"""Long sequences of selective_scan, split into segments over blocks, against the literal recurrence in fp64.

The first tests have shapes that the host splits by itself. The others run in processes with GDN_SCAN_PIECES.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from typing import Any

import oracle
import pytest
import torch
from oracle import DISCRETIZATIONS, REAL_ONLY, within
from selective_inputs import Draw, channels_last, equal_steps, model_inputs, selective_inputs
from torch import Tensor

import gdn_cuda
from gdn_cuda.operators.explain import explained

PIECES = int(os.environ.get("GDN_SCAN_PIECES", "0"))
HERE = pytest.mark.skipif(not PIECES, reason="runs with GDN_SCAN_PIECES")
BY_ITSELF = pytest.mark.skipif(PIECES > 0, reason="the process with GDN_SCAN_PIECES")
CASES = [(name, False) for name in DISCRETIZATIONS] + [(name, True) for name in DISCRETIZATIONS if name not in REAL_ONLY]
EVERY_DISCRETIZATION = pytest.mark.parametrize("name, is_complex", CASES, ids=[f"{n}-complex" if c else n for n, c in CASES])
BOTH_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])
FORWARD, GRADIENT = 1e-5, 1e-4


def scan(**x: Any) -> tuple[Tensor, Tensor]:
    return gdn_cuda.selective_scan(**x, return_last_state=True)


def inputs(seed: int, *args: Any, **form: Any) -> dict[str, Any]:
    return selective_inputs(seed, *args, device="cuda", **form)


def poison() -> None:
    """Fills memory that the allocator hands out next with NaN."""
    small = torch.full((64, 1 << 14), torch.nan, device="cuda").unbind()
    kept = [x.clone() for x in small] + [torch.full((1 << 24,), torch.nan, device="cuda")]
    del small, kept


def is_split(x: dict[str, Any]) -> bool:
    return any(step["kernel"] == "scan/selective_pieces" for step in explained(gdn_cuda.selective_scan, **x).steps)


def check(x: dict[str, Any], seed: int) -> None:
    poison()
    with torch.no_grad():
        out, last = scan(**x)
        expected, expected_last = oracle.selective_scan(**x)
    assert within(out, expected, FORWARD) and within(last, expected_last, FORWARD)
    draw = Draw(seed + 1, "cuda")
    grads = draw.normal(*out.shape, dtype=out.dtype), draw.normal(*last.shape, dtype=last.dtype)
    wanted = oracle.gradients(oracle.selective_scan, x, *grads)
    poison()
    found = oracle.gradients(scan, x, *grads)
    again = oracle.gradients(scan, x, *grads)
    for argument, gradient in found.items():
        assert within(gradient, wanted[argument], GRADIENT), argument
        assert torch.equal(gradient, again[argument]), argument


# ---- Split by the host itself


@BY_ITSELF
@BOTH_LAYOUTS
def test_a_long_sequence_of_few_channels(last: bool, seed: int) -> None:
    x = model_inputs(seed, 1, 40, 16384, 16, torch.float32, last=last, device="cuda")
    assert is_split(x)
    check(x, seed)


@BY_ITSELF
@pytest.mark.parametrize("rate", [1e-6, 1e-4, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("name", ["mamba", "zoh", "bilinear"])
def test_memories_of_131072_tokens(rate: float, name: str, seed: int) -> None:
    x = equal_steps(inputs(seed, name, batch=1, dim=8, N=4, length=131072, bare=True), rate)
    with torch.no_grad():
        assert is_split(x)
        (out, last), (expected, expected_last) = scan(**x), oracle.selective_scan(**x)
    assert within(out, expected, FORWARD) and within(last, expected_last, FORWARD)


@BY_ITSELF
@pytest.mark.parametrize("segments", ["2", "3", "7", "128"])
def test_any_number_of_segments(segments: str) -> None:
    """In a new process, as the variable is read once per process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    done = subprocess.run(command, env={**os.environ, "GDN_SCAN_PIECES": segments}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


# ---- With GDN_SCAN_PIECES

FORMS: dict[str, dict[str, Any]] = {
    "varying": {},
    "bare": {"bare": True},
    "B-constant": {"B": "constant", "groups": 2},
    "C-constant": {"C": "constant", "groups": 4},
    "constant": {"B": "constant", "C": "constant"},
    "packed": {"batch": 1, "length": 400, "cu_seqlens": [0, 0, 1, 64, 65, 330, 330, 397]},
    "many-states": {"N": 70},
}


@HERE
@EVERY_DISCRETIZATION
@pytest.mark.parametrize("form", FORMS)
@BOTH_LAYOUTS
def test_discretizations(name: str, is_complex: bool, form: str, last: bool, seed: int) -> None:
    x = inputs(seed, name, is_complex=is_complex, last=last, **{"length": 201, "dim": 8, "N": 5} | FORMS[form])
    assert is_split(x)
    check(x, seed)


@HERE
@EVERY_DISCRETIZATION
def test_segments_of_several_tiles(name: str, is_complex: bool, seed: int) -> None:
    check(inputs(seed, name, is_complex=is_complex, length=2100, dim=5, N=7), seed)


@HERE
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@BOTH_LAYOUTS
def test_lengths(length: int, dtype: torch.dtype, last: bool, seed: int) -> None:
    check(inputs(seed, length=length, dim=37, N=16, dtype=dtype, last=last), seed)


@HERE
@pytest.mark.parametrize("N", [1, 16, 64, 256])
@pytest.mark.parametrize("is_complex", [False, True])
def test_states(N: int, is_complex: bool, seed: int) -> None:
    check(inputs(seed, length=150, dim=35, N=N, is_complex=is_complex), seed)


@HERE
@BOTH_LAYOUTS
def test_rows_at_any_element(last: bool, seed: int) -> None:
    x = inputs(seed, length=201, dim=34, N=16, dtype=torch.bfloat16, last=last)
    for name in ("u", "delta", "z", "delta_a"):
        more = torch.full([size + 3 for size in x[name].shape], torch.nan, dtype=torch.bfloat16, device="cuda")
        x[name] = (channels_last(more) if last else more)[1:-2, 1:-2, 1:-2].copy_(x[name])
    check(x, seed)


@HERE
def test_packed_sequences_equal_separate_calls(seed: int) -> None:
    offsets = [0, 5, 5, 300, 301, 700]
    x = inputs(seed, batch=1, length=700, dim=9, N=16, cu_seqlens=offsets)
    out, last = scan(**x)
    for i, (begin, end) in enumerate(pairwise(offsets)):
        part = {k: v[..., begin:end] if k in ("u", "delta", "z", "delta_a", "B", "C") else v for k, v in x.items()}
        alone, state = scan(**part | {"cu_seqlens": None, "initial_state": x["initial_state"][i : i + 1]})
        assert within(last[i : i + 1], state, FORWARD)
        assert begin == end or within(out[..., begin:end], alone, FORWARD)


@HERE
@pytest.mark.parametrize("offsets", [[0, 271, 0, 271, 0], [300, 200, 100, 0, -100], [-(2**63), 2**63 - 1, 5, -(2**63), 2**62]])
def test_invalid_offsets_touch_no_memory_outside(offsets: list[int], seed: int) -> None:
    x = inputs(seed, batch=1, length=271, cu_seqlens=[0, 5, 6, 7, 271])
    x["cu_seqlens"] = torch.tensor(offsets, device="cuda")
    out, state = scan(**x)
    found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(state))
    torch.cuda.synchronize()
    assert all(torch.isfinite(y).all() for y in (out, state, *found.values()))


@HERE
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_infinities_and_nans_stay_in_their_channel(value: float, seed: int) -> None:
    x = inputs(seed, batch=3, dim=40, N=16, length=400)
    out, state = scan(**x)
    x["u"][1, 22, 140] = value
    touched = torch.zeros_like(out, dtype=torch.bool)
    touched[1, 22, 140:] = True
    found, found_state = scan(**x)
    assert torch.equal(found[~touched], out[~touched]) and not torch.isfinite(found[1, 22, 140])
    in_channel = touched.any(-1)
    assert torch.equal(found_state[~in_channel], state[~in_channel])


@HERE
def test_zeros_of_a_state_that_grows(seed: int) -> None:
    """Zeros stay zeros where the product of the decays is infinite."""
    x = inputs(seed, length=500, bare=True)
    x |= {"A": torch.full_like(x["A"], 3.0), "u": torch.zeros_like(x["u"]), "delta": torch.ones_like(x["delta"])}
    out, last = scan(**x)
    assert not out.any() and not last.any()
