"""The command line as a user meets it: real processes, each with a cache of its own. None needs a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch

from gdn_cuda import _C
from gdn_cuda.cli.cache import kernel_of

SMALLEST = min(_C.kernels(), key=lambda entry: len(entry["configurations"]))
COUNT = len(SMALLEST["configurations"])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache of mine"


def gdn(*arguments: object, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return processes.run("-m", "gdn_cuda", *arguments, GDN_JIT_CACHE_DIR=str(cache), **variables)


def compile_smallest(*arguments: object, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return gdn("compile", "--arch", "sm_90a", "--kernel", SMALLEST["name"], *arguments, cache=cache, **variables)


# ---- doctor


def test_doctor_finds_what_this_environment_has(cache: Path) -> None:
    """Started as by a user, from nothing."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GDN_")}
    command = [sys.executable, "-m", "gdn_cuda", "doctor"]
    environment |= {"GDN_JIT_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("torch", "NVRTC", "cache", str(cache), "0 problems"):
        assert text in done.stdout


def test_doctor_as_json(cache: Path) -> None:
    done = gdn("doctor", "--json", cache=cache)
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert {"torch", "gdn_cuda", "cache"} <= {check["what"] for check in report["checks"]}
    assert all(check["status"] in ("ok", "note", "problem") for check in report["checks"])


def test_doctor_reports_a_malformed_variable_once_and_does_not_crash(cache: Path) -> None:
    done = gdn("doctor", "--json", cache=cache, GDN_JIT_CACHE_MAX_BYTES="lots")
    assert done.returncode == 1
    problems = [check for check in json.loads(done.stdout)["checks"] if check["status"] == "problem"]
    assert [("GDN_JIT_CACHE_MAX_BYTES" in problem["found"], "lots" in problem["found"]) for problem in problems] == [
        (True, True)
    ]


def test_doctor_notices_a_misspelt_variable(cache: Path) -> None:
    done = gdn("doctor", cache=cache, GDN_JIT_CACHEDIR="/nowhere")
    assert done.returncode == 0
    assert "GDN_JIT_CACHEDIR" in done.stdout


def test_doctor_says_why_a_cache_folder_was_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    done = gdn("doctor", cache=shared, XDG_CACHE_HOME=str(tmp_path / "xdg"))
    assert done.returncode == 0
    assert str(shared) in done.stdout
    assert "0777" in done.stdout or "777" in done.stdout


# ---- kernels


def test_kernels_prints_the_registry(cache: Path) -> None:
    assert json.loads(gdn("kernels", "--json", cache=cache).stdout) == _C.kernels()
    text = gdn("kernels", "--kernel", SMALLEST["name"], cache=cache).stdout
    assert SMALLEST["summary"] in text
    assert SMALLEST["configurations"][0]["configuration"] in text


def test_an_unknown_name_lists_the_known(cache: Path) -> None:
    done = gdn("kernels", "--family", "nonesuch", cache=cache)
    assert done.returncode == 1
    assert "family: expected one of" in done.stderr
    assert SMALLEST["family"] in done.stderr
    assert "Traceback" not in done.stderr


# ---- compile and cache


def test_compile_then_cache_commands(cache: Path) -> None:
    first = compile_smallest("--jobs", 2, cache=cache)
    assert first.returncode == 0, first.stdout + first.stderr
    assert f"{COUNT} of {COUNT} configurations ready, {COUNT} compiled now" in first.stdout
    assert f"[{COUNT}/{COUNT}]" in first.stdout

    again = compile_smallest(cache=cache)
    assert f"{COUNT} of {COUNT} configurations ready, 0 compiled now" in again.stdout
    forced = compile_smallest("--force", cache=cache)
    assert f"{COUNT} compiled now" in forced.stdout

    assert gdn("cache", "path", cache=cache).stdout.strip() == str(cache)
    listed = json.loads(gdn("cache", "ls", "--json", cache=cache).stdout)
    assert len(listed["entries"]) == COUNT
    assert all(SMALLEST["name"] in kernel_of(entry["file"]) for entry in listed["entries"])
    assert gdn("cache", "verify", cache=cache).returncode == 0

    broken = cache / listed["entries"][0]["file"]
    content = bytearray(broken.read_bytes())
    content[len(content) // 3] ^= 1
    broken.write_bytes(content)
    verified = gdn("cache", "verify", cache=cache)
    assert verified.returncode == 1
    assert broken.name in verified.stdout
    assert f"{COUNT - 1} sound, 1 broken" in verified.stdout

    assert gdn("cache", "clear", cache=cache).returncode == 0
    assert json.loads(gdn("cache", "ls", "--json", cache=cache).stdout)["entries"] == []


def test_cache_clear_names_what_it_leaves(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    mine = cache / f"my-{'0' * 64}.cubin"
    mine.write_text("precious")
    cleared = gdn("cache", "clear", cache=cache)
    assert cleared.returncode == 0
    assert f"left what has the name of an entry and not its contents: {mine.name}" in cleared.stdout
    assert json.loads(gdn("cache", "clear", "--json", cache=cache).stdout)["left"] == [mine.name]
    assert mine.read_text() == "precious"


def test_doctor_says_why_a_prebuilt_folder_is_passed_over(cache: Path, tmp_path: Path) -> None:
    prebuilt = tmp_path / "prebuilt"
    prebuilt.mkdir()
    prebuilt.chmod(0o777)
    report = json.loads(gdn("doctor", "--json", cache=cache, GDN_JIT_PREBUILT_DIR=str(prebuilt)).stdout)
    [check] = [check for check in report["checks"] if check["what"] == "prebuilt"]
    assert check["status"] == "problem"
    assert f"{prebuilt} is passed over: others may write it (mode 0777)" in check["found"]


def test_compile_out_serves_as_the_prebuilt_tier(cache: Path, tmp_path: Path) -> None:
    prebuilt = tmp_path / "prebuilt"
    assert compile_smallest("--out", prebuilt, cache=cache).returncode == 0
    assert len(list(prebuilt.glob("*.cubin"))) == COUNT

    slim = {"GDN_JIT_PREBUILT_DIR": str(prebuilt), "GDN_JIT_DISABLE": "1"}
    done = compile_smallest(cache=tmp_path / "empty", **slim)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": prebuilt") == COUNT


def test_a_compile_that_fails_exits_1_and_names_the_kernel(cache: Path) -> None:
    done = compile_smallest(cache=cache, GDN_JIT_DISABLE="1")
    assert done.returncode == 1
    assert f"{COUNT} of {COUNT} configurations failed" in done.stderr
    assert SMALLEST["name"] in done.stderr
    assert "GDN_JIT_DISABLE" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_arch_of_no_known_form_is_refused(cache: Path) -> None:
    done = gdn("compile", "--arch", "hopper", cache=cache)
    assert done.returncode == 1
    assert "arch: expected a form like sm_90a, got hopper" in done.stderr


# ---- bench


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU; the test is of machines without")
def test_bench_without_a_gpu_says_so(cache: Path) -> None:
    done = gdn("bench", "fused_decode", cache=cache)
    assert done.returncode == 2
    assert "expected a CUDA GPU, got none" in done.stderr


@pytest.mark.parametrize("operator", ["fused_decode", "recurrent_forward", "fused_gdn_gating", "chunked_forward"])
def test_bench_of_the_cpu_path(operator: str, cache: Path, tmp_path: Path) -> None:
    done = gdn("bench", operator, "--cpu", "--quick", "--json", "--plot", tmp_path / "plot.png", cache=cache)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["operator"] == operator
    assert all(row["time_us"] > 0 for row in report["rows"])
    assert {"device", "torch", "gdn_cuda", "commit", "command"} <= report.keys()
    assert (tmp_path / "plot.png").stat().st_size > 1000
