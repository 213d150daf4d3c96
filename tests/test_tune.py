"""`python -m gdn_cuda tune` as users run it: real processes, each test with its own cache. None needs a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import processes
import pytest
import torch

from gdn_cuda import _C, cli
from gdn_cuda.cli import bench_timing
from gdn_cuda.cli.tune_measure import GpuRunner, difference, results
from gdn_cuda.operators import measure
from gdn_cuda.operators.tunable import TORCH_DTYPES, Case, Shape
from gdn_cuda.structured.measure_tune import Sums

CHILD = Path(__file__).with_name("tune_child.py")
TUNABLES = measure.load().tunables
H200 = _C.device_traits_for_arch("sm_90a")
IMPORTS = ("gdn_cuda.cli",)
TUNE = ("tune", "cauchy_conj", "8x4x3000")  # enough points for four turns of a block


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache of mine"


def gdn(*arguments: object, cache: Path | str, **variables: str) -> subprocess.CompletedProcess[str]:
    return processes.run("-m", "gdn_cuda", *arguments, imports=IMPORTS, GDN_JIT_CACHE_DIR=str(cache), **variables)


def faked(mode: str, *arguments: object, cache: Path | str, **variables: str) -> subprocess.CompletedProcess[str]:
    return processes.run(CHILD, mode, *arguments, imports=IMPORTS, GDN_JIT_CACHE_DIR=str(cache), **variables)


def stored(cache: Path) -> list[dict[str, Any]]:
    return json.loads(gdn("tune", "--list", "--json", cache=cache).stdout)["files"]


def files(cache: Path) -> int:
    return len(list((cache / "tuned").glob("*.tuned")))


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Makes a folder unwritable, for root too, who ignores the mode."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode != 0:
        pytest.skip("mounting is not permitted here")
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
    yield
    subprocess.run(["umount", "--lazy", folder], check=True)


# Small problems that have several candidates.
SHAPES = {
    "causal_conv1d_update": "3x64x4",
    "chunked_forward": "1x1024x1x2x64x64",
    "fused_decode": "64x2x4x64x64",
    "selective_scan": "3x5x7x40",
    "selective_state_update": "3x5x8",
    "simplified_scan": "2x3x1500",
}


def problem(operator: str, shape: Shape, dtype: str | None = None, shared: bool = False) -> str:
    return TUNABLES[operator].case(operator, shape, dtype, shared).problem


# ---- Wrong arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), f"OP: expected one of {', '.join(TUNABLES)}, or --list or --clear, got none"),
        (("verify", "1x1x1"), f"OP: expected one of {', '.join(TUNABLES)}, got verify"),
        (("cauchy_conj",), "SHAPE: expected at least one for cauchy_conj, such as 1024x32x16384, got none"),
        (("cauchy_conj", "8x8"), "SHAPE: expected ROWSxPOLESxPOINTS such as 1024x32x16384, got 8x8"),
        (
            ("selective_scan", "8x8x8"),
            "SHAPE: expected BATCHxDIMxTOKENSxSTATES such as 8x5120x2048x16, got 8x8x8",
        ),
        (("cauchy_conj", "8x8x8", "8x0x8"), "SHAPE: expected ROWSxPOLESxPOINTS such as 1024x32x16384, got 8x0x8"),
        (("cauchy_conj", "8x8x8", "--dtype", "f32"), "--dtype: expected one of c64, c128 for cauchy_conj, got f32"),
        (
            ("log_vandermonde", "8x8x8", "--shared-poles"),
            "--shared-poles: expected one of cauchy_kernel, cauchy_conj, to which",
        ),
        (("--list", "cauchy_conj", "8x8x8"), "SHAPE: expected none with --list, got ['8x8x8']"),
        (("--clear", "--dtype", "c64"), "--dtype: expected none with --clear, got c64"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", *arguments]) == 1
    assert f"gdn_cuda tune: {message}" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU; the test is for machines without one")
def test_without_a_gpu_it_says_so(cache: Path) -> None:
    done = gdn("tune", "cauchy_conj", "8×8×8", cache=cache)
    assert done.returncode == 2
    assert "tune: expected a CUDA GPU, got none" in done.stderr


# ---- The whole flow, on a simulated H200


def test_a_winner_is_measured_stored_listed_used_and_removed(cache: Path) -> None:
    done = faked("sound", *TUNE, "16x4x3000", cache=cache)
    assert done.returncode == 0, done.stderr
    candidates = _C.tuned_candidates("structured/cauchy", problem("cauchy_conj", Sums(8, 4, 3000)), H200)
    assert f"[{len(candidates)}/{len(candidates)}] cauchy_conj 8x4x3000 c64: " in done.stdout
    assert f"stored in {cache / 'tuned'}/structured-cauchy-" in done.stdout

    found = stored(cache)
    assert len(found) == 2
    for file in found:
        entry = file["entry"]
        assert "turns = 4" in entry["choice"]
        assert entry["heuristic"] == candidates[0]
        assert (entry["us"], entry["heuristic_us"]) == (8.0, 10.0)
        assert (entry["device"], entry["multiprocessors"]) == (H200["name"], H200["multiprocessors"])
    listed = gdn("tune", "--list", cache=cache).stdout
    assert "cauchy_conj" in listed
    assert f"2 tuned problems in {cache / 'tuned'}" in listed

    explained = explain(cache)
    assert explained.startswith("tuned on this device: {.in_batches = false")
    assert "8.00 us, the heuristic's own choice 10.00 us" in explained
    assert "a thread" in explain(cache, GDN_TUNED="0")
    call = ("explain", "cauchy_conj", "rows=8", "poles=4", "points=3000", "--device", "h200")
    assert "tuned on this device: {.in_batches = false" in gdn(*call, cache=cache).stdout
    assert "a thread" in gdn(*call, "--sms", "66", cache=cache).stdout, "another device"

    assert "removed 0 tuned problems" in gdn("tune", "--clear", "log_vandermonde", cache=cache).stdout
    assert files(cache) == 2
    assert "removed 2 tuned problems" in gdn("tune", "--clear", "cauchy_conj", cache=cache).stdout
    assert files(cache) == 0
    assert "a thread" in explain(cache)


def explain(cache: Path, **variables: str) -> str:
    code = "import sys; from gdn_cuda import _C; print(_C.tuned_explain(*sys.argv[1:], _C.device_traits_for_arch('sm_90a')))"
    kernel = TUNABLES["cauchy_conj"].kernel
    case = problem("cauchy_conj", Sums(8, 4, 3000))
    done = processes.run("-c", code, kernel, case, GDN_JIT_CACHE_DIR=str(cache), **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


CALLS = {
    "selective_scan": "batch=3 dim=5 tokens=7 states=40 groups=1",
    "selective_state_update": "B=3 dim=5 N=8",
    "simplified_scan": "batch=2 H=4 P=3 L=1500",
}


def test_every_operator_is_measured_and_its_winner_decides_about_that_call(cache: Path) -> None:
    """The problem that Python computes is the one that the operator looks up."""
    commands: list[str] = []
    for operator, one in TUNABLES.items():
        dtype = list(one.tolerance)[-1] if operator not in CALLS else next(iter(one.tolerance))
        commands += ["then", "tune", operator, SHAPES.get(operator, "16x4x700"), "--dtype", dtype, "--json"]
    done = faked("sound", *commands, cache=cache)
    assert done.returncode == 0, done.stderr
    reports = documents(done.stdout)
    assert [report["operator"] for (report,) in reports] == list(TUNABLES)
    for (report,) in reports:
        assert report["why_not"] is None
        assert report["decides"].startswith("tuned on this device")
        assert report["candidates"][0]["choice"] == report["heuristic"]
    assert {file["entry"]["problem"] for file in stored(cache)} == {report["problem"] for (report,) in reports}

    calls = (
        word for operator, sizes in CALLS.items() for word in ("then", "explain", operator, *sizes.split(), "--device", "h200")
    )
    explained = faked("sound", *calls, cache=cache).stdout
    assert explained.count("tuned on this device: {.") == len(CALLS)
    for operator in CALLS:
        assert TUNABLES[operator].kernel in explained


def documents(text: str) -> list[Any]:
    """Parses JSON texts that follow each other."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


def test_a_gain_within_noise_keeps_the_choice_of_the_heuristic(cache: Path) -> None:
    (report,) = json.loads(faked("slow", *TUNE, "--json", cache=cache).stdout)
    assert report["winner"] == report["heuristic"]
    assert stored(cache)[0]["entry"]["choice"] == report["heuristic"]


def test_a_wrong_candidate_is_an_error_and_nothing_is_stored(cache: Path) -> None:
    done = faked("wrong", *TUNE, cache=cache)
    assert done.returncode == 1
    assert "cauchy_conj 8x4x3000 c64: {.in_batches = false, .rows = 1" in done.stderr
    assert "turns = 2}: expected the result of {" in done.stderr
    assert "within 2.0e-06 (relative RMS), got inf" in done.stderr
    assert files(cache) == 0


def test_a_candidate_that_does_not_run_is_an_error(cache: Path) -> None:
    """Otherwise the heuristic's choice would be timed in place of every candidate."""
    done = faked("elsewhere", *TUNE, cache=cache)
    assert done.returncode == 1
    assert "expected the call to be the problem {.rows = 8, .shared_rows = 1, .points = 3000, .poles = 4" in done.stderr
    assert files(cache) == 0


def test_without_a_cache_folder_tune_measures_and_says_that_nothing_is_stored() -> None:
    nowhere = {"HOME": "/proc", "XDG_CACHE_HOME": "/proc/x", "TMPDIR": "/proc/y"}
    done = faked("sound", *TUNE, cache="/proc/gdn_cuda", **nowhere)
    assert done.returncode == 0, done.stderr
    assert "not stored: there is no usable cache directory (/proc/gdn_cuda: cannot make" in done.stdout
    assert "8.00" in done.stdout
    listed = gdn("tune", "--list", cache="/proc/gdn_cuda", **nowhere)
    assert listed.returncode == 0
    assert "0 tuned problems in memory only (/proc/gdn_cuda: " in listed.stdout
    assert "removed 0 tuned problems" in gdn("tune", "--clear", cache="/proc/gdn_cuda", **nowhere).stdout


def test_tune_says_that_winners_are_not_used_when_gdn_tuned_is_off(cache: Path) -> None:
    done = faked("sound", *TUNE, cache=cache, GDN_TUNED="0")
    assert done.returncode == 0, done.stderr
    assert "it will not be used: GDN_TUNED=0 disables stored results" in done.stdout
    assert files(cache) == 1


def test_tune_says_when_winners_in_an_earlier_folder_take_precedence(cache: Path, tmp_path: Path) -> None:
    """A folder in an image is read first; if it is read-only, new winners are stored in another folder."""
    assert faked("sound", *TUNE, cache=cache).returncode == 0
    with unwritable(cache):
        done = faked("sound", "tune", "cauchy_conj", "9x4x3000", cache=cache, XDG_CACHE_HOME=str(tmp_path / "xdg"))
    assert done.returncode == 0, done.stderr
    assert f"stored in {tmp_path / 'xdg'}" in done.stdout
    assert f"it will not be used: results in {cache / 'tuned'} take precedence" in done.stdout


def test_corrupt_and_foreign_winners_are_listed_ignored_and_cleared(cache: Path) -> None:
    assert faked("sound", *TUNE, cache=cache).returncode == 0
    (file,) = (cache / "tuned").iterdir()
    good = file.read_text()
    file.write_text(good.replace("turns = 4", "turns = 9"))
    listed = gdn("tune", "--list", cache=cache)
    assert "ignored: its contents do not match its digest" in listed.stdout
    done = processes.run("-c", "import gdn_cuda", GDN_JIT_CACHE_DIR=str(cache))
    assert done.stderr == "", "winners are not read at import"
    assert "a thread" in explain(cache)
    assert "removed 1 tuned problem in" in gdn("tune", "--clear", cache=cache).stdout
    assert list((cache / "tuned").iterdir()) == []


def test_cache_clear_keeps_winners_and_says_so(cache: Path) -> None:
    assert faked("sound", *TUNE, cache=cache).returncode == 0
    cleared = gdn("cache", "clear", cache=cache).stdout
    assert "kept the results of `tune` (1), which `python -m gdn_cuda tune --clear` removes" in cleared
    assert json.loads(gdn("cache", "clear", "--json", cache=cache).stdout)["tuned_kept"] == 1
    assert json.loads(gdn("cache", "ls", "--json", cache=cache).stdout)["entries"] == [], "winners are not listed as kernels"
    assert files(cache) == 1


# ---- Cases


@pytest.mark.parametrize("operator", TUNABLES)
def test_measured_cases_are_valid_arguments_of_the_operator(operator: str) -> None:
    one = TUNABLES[operator]
    shape = one.shape.parse(SHAPES.get(operator, "3x5x7"))
    for dtype in one.tolerance:
        for shared in {False, one.shares_poles}:
            case = one.case(operator, shape, dtype, shared)
            given = case.arguments("cpu")
            for result in results(case.function()(**given)):
                assert torch.isfinite(result).all() and result.numel() > 0, "what is not finite cannot be compared"
            assert TORCH_DTYPES[dtype] in {x.dtype for x in given.values() if isinstance(x, torch.Tensor)}
            assert len(_C.tuned_candidates(case.kernel, case.problem, H200)) > 1
            assert measure.operator_of(case.kernel, case.problem) == operator


@pytest.mark.parametrize("operator", TUNABLES)
def test_every_result_is_that_of_the_same_inputs(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, and states that are written in place; the runner itself, on CPU tensors."""
    case = TUNABLES[operator].case(operator, TUNABLES[operator].shape.parse(SHAPES.get(operator, "3x5x7")))
    given = Case.arguments
    monkeypatch.setattr(Case, "arguments", lambda self, device: given(self, "cpu"))
    monkeypatch.setattr(bench_timing, "Timer", lambda repeats: None)
    runner = GpuRunner(case, H200, 3)
    first, second = runner.result(), runner.result()
    assert torch.equal(first, second) and bool(torch.isfinite(first).all())
    written = sum(case.arguments("cpu")[name].numel() for name in TUNABLES[operator].in_place)
    assert first.dim() == 1 and first.numel() > written


def test_the_difference_of_results_is_relative_and_infinite_for_nan() -> None:
    x = torch.tensor([3.0, 4.0])
    assert difference(x, x) == 0
    assert difference(x + torch.tensor([0.0, 0.5]), x) == pytest.approx(0.1)
    assert difference(torch.tensor([torch.nan, 4.0]), x) == float("inf")
    assert difference(torch.zeros(2), torch.zeros(2)) == 0
