"""The command line as users run it: real processes, each with its own cache. None needs a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import processes
import pytest
import torch

import gdn_cuda
from gdn_cuda import _C, cli
from gdn_cuda.cli.bench import benches
from gdn_cuda.cli.cache import kernel_of
from gdn_cuda.cli.compile import describe
from gdn_cuda.runtime import CompileResult

SMALLEST = min(_C.kernels(), key=lambda entry: len(entry["configurations"]))
COUNT = len(SMALLEST["configurations"])
IMPORTS = ("gdn_cuda.cli",)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache of mine"


def gdn(*arguments: object, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with output wide enough that every table row is on one line."""
    return processes.run(
        "-m", "gdn_cuda", *arguments, imports=IMPORTS, **{"GDN_JIT_CACHE_DIR": str(cache), "COLUMNS": "10000"} | variables
    )


def compile_smallest(*arguments: object, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return gdn("compile", "--arch", "sm_90a", "--kernel", SMALLEST["name"], *arguments, cache=cache, **variables)


def test_version(cache: Path) -> None:
    done = gdn("--version", cache=cache)
    assert (done.returncode, done.stdout) == (0, f"gdn_cuda {gdn_cuda.__version__}\n")


# ---- doctor


def test_doctor_finds_what_this_environment_has(cache: Path) -> None:
    """Started like a user's process, not forked."""
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


def test_doctor_says_which_kernels_need_cutlass(cache: Path, tmp_path: Path) -> None:
    users = [f"{kernel['family']}/{kernel['name']}" for kernel in _C.kernels() if kernel["uses_cutlass"]]
    report = json.loads(gdn("doctor", "--json", cache=cache).stdout)
    [check] = [check for check in report["checks"] if check["what"] == "need CUTLASS and libcu++"]
    assert check["status"] == "ok"
    assert check["found"].startswith(f"{', '.join(users)}; the other {len(_C.kernels()) - len(users)} kernels compile without")


def test_doctor_reports_a_malformed_variable_once_and_does_not_crash(cache: Path) -> None:
    done = gdn("doctor", "--json", cache=cache, GDN_JIT_CACHE_MAX_BYTES="lots")
    assert done.returncode == 1
    problems = [check for check in json.loads(done.stdout)["checks"] if check["status"] == "problem"]
    assert [("GDN_JIT_CACHE_MAX_BYTES" in problem["found"], "lots" in problem["found"]) for problem in problems] == [
        (True, True)
    ]


@pytest.mark.parametrize("name", ["GDN_JIT_CACHEDIR", "GDN_TUNDE"])
def test_doctor_notices_a_misspelt_variable(name: str, cache: Path) -> None:
    done = gdn("doctor", cache=cache, **{name: "/nowhere"})
    assert done.returncode == 0
    assert f"{name} is not read by gdn_cuda" in done.stdout


def test_doctor_says_why_a_cache_folder_was_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    done = gdn("doctor", cache=shared, XDG_CACHE_HOME=str(tmp_path / "xdg"))
    assert done.returncode == 0
    assert str(shared) in done.stdout
    assert "0777" in done.stdout or "777" in done.stdout


# ---- kernels


def test_kernels_lists_the_registered_kernels(cache: Path) -> None:
    listed = json.loads(gdn("kernels", "--json", cache=cache).stdout)
    assert listed == _C.kernels()
    assert {entry["max_capability"] for entry in listed} == {None, 90}, "None means no limit"
    text = gdn("kernels", "--kernel", SMALLEST["name"], cache=cache).stdout
    assert SMALLEST["summary"] in text
    assert SMALLEST["configurations"][0]["configuration"] in text


def test_kernels_takes_a_family_or_a_kernel_without_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> list[str]:
        assert cli.main(["kernels", *words, "--json"]) == 0
        return [f"{entry['family']}/{entry['name']}" for entry in json.loads(capsys.readouterr().out)]

    assert listed("gdn") == listed("--family", "gdn") and len(listed("gdn")) > 10
    assert listed("prefill") == listed("--kernel", "prefill") == ["gdn/prefill", "ssd/prefill"]
    assert listed("gdn/prefill") == ["gdn/prefill"]
    assert cli.main(["kernels", "gdn", "--kernel", "prefill"]) == 1
    assert "NAME: expected none with --family or --kernel, got gdn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("kernels --family nonesuch", f"family: expected one of {', '.join(sorted({k['family'] for k in _C.kernels()}))}, got"),
        ("kernels gatng", f"kernel: expected one of {len(_C.kernels())} names, got gatng; did you mean layers/gating?"),
        ("kernels --kernel Prefill_ahed", "got Prefill_ahed; did you mean gdn/prefill_ahead or "),
        ("compile --kernel cauchi", "got cauchi; did you mean structured/cauchy"),
        ("explain chunkd_forward", "got chunkd_forward; did you mean chunked_forward"),
        ("bench fused_decod", "got fused_decod; did you mean fused_decode"),
        (
            "kernls",
            "COMMAND: expected one of doctor, kernels, explain, compile, cache, bench, tune, got kernls; did you mean kernels?",
        ),
        (
            "--quick frobnicate",
            "COMMAND: expected one of doctor, kernels, explain, compile, cache, bench, tune, got frobnicate",
        ),
    ],
)
def test_a_misspelt_name_is_answered_by_the_nearest(words: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(words.split())
    except SystemExit as stopped:  # argparse's errors
        status = int(str(stopped.code))
    said = capsys.readouterr().err
    assert status in (1, 2)
    assert error in said
    assert len(said) < 700, "not every name that there is"


def test_a_name_that_resembles_none_is_answered_by_all_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels", "--kernel", "zzz"]) == 1
    named = capsys.readouterr().err.partition("expected one of ")[2].replace(",", "").split()
    assert sorted(named[:-2]) == sorted(f"{entry['family']}/{entry['name']}" for entry in _C.kernels())


def test_the_usage_names_the_command_that_was_typed(cache: Path) -> None:
    assert gdn("--help", cache=cache).stdout.startswith("usage: python -m gdn_cuda ")
    script = Path(sys.executable).parent / "gdn-cuda"
    if not script.exists():
        pytest.skip("gdn_cuda is not installed by pip")
    assert subprocess.run([script, "bench", "-h"], capture_output=True, text=True).stdout.startswith("usage: gdn-cuda bench ")


@pytest.fixture(scope="module")
def checks() -> list[cli.doctor.Check]:
    """Once, because other processes may write to the cache between two calls."""
    return cli.doctor.examine()


@pytest.mark.parametrize("columns", [None, 60, 140])
def test_piped_tables_keep_to_a_width_and_words_whole(
    columns: int | None, checks: list[cli.doctor.Check], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "" if columns is None else str(columns))
    monkeypatch.setattr(cli.doctor, "examine", lambda: checks)
    told = {
        "kernels": [f"{entry['family']}/{entry['name']} {entry['summary']}" for entry in _C.kernels()],
        "doctor": [check.found for check in checks],
    }
    for command, texts in told.items():
        assert cli.main([command]) in (0, 1)
        printed = capsys.readouterr().out
        assert {word for text in texts for word in text.split()} <= set(printed.split())
        long = [line for line in printed.splitlines() if len(line) > (columns or 100)]
        # Longer lines are values of records, such as a path or a list: in a file words stay whole, to be searched for.
        assert all(": " in line for line in long), long


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


def test_compile_reports_a_stack_without_spills() -> None:
    result = CompileResult("gdn/prefill", "{}", "sm_90a", "compiled", 1.0, 168, 1024, spill_bytes=0, stack_bytes=512)
    assert describe(result).endswith("168 registers, 1024 bytes of shared memory, 0 bytes spilled, 512 bytes of stack")
    assert describe(replace(result, is_serialized=True)).endswith("512 bytes of stack, wgmma serialized")


def test_cache_clear_names_what_it_leaves(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    mine = cache / f"my-{'0' * 64}.cubin"
    mine.write_text("precious")
    cleared = gdn("cache", "clear", cache=cache)
    assert cleared.returncode == 0
    assert f"not removed, as they are not entries despite their names: {mine.name}" in cleared.stdout
    assert json.loads(gdn("cache", "clear", "--json", cache=cache).stdout)["left"] == [mine.name]
    assert mine.read_text() == "precious"


def test_doctor_says_why_a_prebuilt_folder_is_skipped(cache: Path, tmp_path: Path) -> None:
    prebuilt = tmp_path / "prebuilt"
    prebuilt.mkdir()
    prebuilt.chmod(0o777)
    report = json.loads(gdn("doctor", "--json", cache=cache, GDN_JIT_PREBUILT_DIR=str(prebuilt)).stdout)
    [check] = [check for check in report["checks"] if check["what"] == "prebuilt"]
    assert check["status"] == "problem"
    assert f"{prebuilt} is passed over: others may write it (mode 0777)" in check["found"]


def test_the_output_of_compile_out_works_as_prebuilt_folder(cache: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "hopper"), "arch: expected a form like sm_90a, got hopper"),
        (("--arch", "sm_75"), "arch: expected what the chosen kernels are for (sm_80 and newer or "),
        (("--kernel", "prefill", "--arch", "sm_90a", "--arch", "sm_80"), "(sm_90a), got sm_80"),
        (("--arch", "sm_90"), "arch: expected sm_90a, which is what devices of capability 9.0 load, got sm_90"),
        (("--arch", "sm_999"), "arch: expected one that the installed NVRTC compiles for (sm_"),
        (("--out", ""), "out: expected None or a folder, got an empty name"),
    ],
)
def test_an_arch_or_folder_for_which_nothing_can_be_compiled_is_one_error(
    arguments: tuple[str, ...], message: str, cache: Path
) -> None:
    done = gdn("compile", *arguments, cache=cache)
    assert done.returncode == 1
    assert done.stderr.startswith("gdn_cuda compile: ")
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == "", "nothing was compiled"


@pytest.mark.parametrize("jobs", ["0", "-1", "x"])
def test_jobs_that_are_not_a_positive_integer_are_refused(jobs: str, cache: Path) -> None:
    done = gdn("compile", f"--jobs={jobs}", cache=cache)
    assert done.returncode == 2
    assert f"argument --jobs: expected a positive integer, got {jobs}" in done.stderr


# ---- bench


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU; the test is for machines without one")
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


def test_bench_of_all_operators(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    done = gdn("bench", "all", "--cpu", "--quick", "--only", "2x64", "--json", file, cache=cache)
    assert done.returncode == 0, done.stderr
    toeplitz = [operator for operator in benches() if operator.startswith("toeplitz")]
    assert [report["operator"] for report in json.loads(file.read_text(encoding="utf-8"))] == toeplitz
    assert all(f"{operator}: device" in done.stdout for operator in toeplitz)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all", "--only", "7/9"), "--only: expected a part of some operator's shape, got 7/9"),
        (("all", "--plot", "all.png"), "--plot: expected a folder for several operators, got all.png"),
        (("fused_decode", "--peers", "nobody"), "--peers: expected some of "),
        (("fused_decode", "--plot", "x.zip"), "--plot: expected a name that ends in one of "),
        (("fused_decode", "--json", "/nowhere/x"), "--json: expected a file in a folder that can be written, got /nowhere/x"),
        (("fused_decode", "--check-peers"), "--check-peers: expected a GPU, on which peers are measured, got --cpu"),
    ],
)
def test_bench_checks_its_options_before_it_measures(arguments: tuple[str, ...], message: str, cache: Path) -> None:
    done = gdn("bench", *arguments, "--cpu", cache=cache)
    assert done.returncode == 1
    assert done.stderr.startswith(f"gdn_cuda bench: {message}")
    assert done.stdout == ""


# ---- Unusual standard outputs


def with_output(opened: str, *arguments: object, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process whose standard output is replaced by `opened`, a line of Python."""
    code = f"import io, os, sys\n{opened}\nfrom gdn_cuda.cli import main\nsys.exit(main(sys.argv[1:]))"
    return processes.run(
        "-c", code, *arguments, imports=IMPORTS, **{"GDN_JIT_CACHE_DIR": str(cache), "COLUMNS": "10000"} | variables
    )


ASCII = "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'ascii')"
FULL = "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
LEFT = "r, w = os.pipe(); os.close(r); os.dup2(w, 1)"
EVERY_PRINTER = [("doctor",), ("kernels",), ("kernels", "--json"), ("cache", "path"), ("cache", "ls"), ("tune", "--list")]
GATING = ("bench", "fused_gdn_gating", "--cpu", "--quick", "--only", "1x1x32")


def test_characters_that_ascii_lacks_are_replaced(cache: Path) -> None:
    table = with_output(ASCII, *GATING, cache=cache)
    assert table.returncode == 0, table.stderr
    assert re.search(r" (us|ms)\n", table.stdout), "the heading of the times: µs elsewhere, and ms on a slow machine"
    assert "1x1x32" in table.stdout
    report = with_output(ASCII, *GATING, "--json", cache=cache)
    assert json.loads(report.stdout)["rows"][0]["shape"] == "1×1×32", "JSON has escapes for it"
    assert "(x stands for x)" in with_output(ASCII, "bench", "--help", cache=cache).stdout


@pytest.mark.parametrize("arguments", EVERY_PRINTER, ids=" ".join)
def test_every_command_prints_in_ascii(arguments: tuple[str, ...], cache: Path) -> None:
    done = with_output(ASCII, *arguments, cache=cache.with_name("cache µ×÷"), FORCE_COLOR="1", COLUMNS="60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


@pytest.mark.parametrize("arguments", EVERY_PRINTER, ids=" ".join)
def test_a_closed_pipe_is_not_an_error(arguments: tuple[str, ...], cache: Path) -> None:
    done = with_output(LEFT, *arguments, cache=cache)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", EVERY_PRINTER, ids=" ".join)
def test_output_to_a_full_disk_is_an_error_with_a_message(arguments: tuple[str, ...], cache: Path) -> None:
    done = with_output(FULL, *arguments, cache=cache)
    assert done.returncode == 1
    assert done.stderr == f"gdn_cuda {arguments[0]}: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 150])
def test_words_are_not_split_on_terminals_of_any_width(columns: int, cache: Path) -> None:
    terminal = {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(columns)}
    kernels = gdn("kernels", cache=cache, **terminal).stdout
    for entry in _C.kernels():
        assert f"{entry['family']}/{entry['name']}" in kernels
        assert set(entry["summary"].split()) <= set(kernels.split())
    doctor = gdn("doctor", cache=cache, **terminal).stdout
    if columns <= 60:
        assert f"gdn_cuda\n  found: {gdn_cuda.__version__}, {gdn_cuda.__path__[0]}/" in doctor


def test_an_interrupt_ends_a_command_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.kernels, "run", interrupted)
    assert cli.main(["kernels"]) == 130
    assert capsys.readouterr().err == ""


def test_cmake_dir_is_an_installed_packages_folder(cache: Path) -> None:
    done = gdn("--cmake-dir", cache=cache)
    folder = Path(gdn_cuda.__file__).parent / "lib" / "cmake" / "gdn_cuda"
    if folder.is_dir():
        assert (done.returncode, done.stdout) == (0, f"{folder}\n") and list(folder.glob("gdn_cudaConfig.cmake"))
    else:
        assert done.returncode == 2 and "--cmake-dir: expected an installed gdn_cuda with" in done.stderr
