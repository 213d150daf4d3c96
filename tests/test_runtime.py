"""The Python side of the runtime: paths, choosing configurations, compiling ahead of use, messages."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
import torch

import gdn_cuda
from gdn_cuda import _C, paths, runtime

SMALLEST = min(
    (entry for entry in _C.kernels() if entry["min_capability"] <= 80), key=lambda entry: len(entry["configurations"])
)

# ---- Paths


@pytest.mark.parametrize(
    "cuda, include, cccl, nvrtc",
    [
        ("13.0", "cu13/include", "cu13/include/cccl", "cu13/lib/libnvrtc.so.13"),
        ("12.9", "cuda_runtime/include", "cuda_cccl/include", "cuda_nvrtc/lib/libnvrtc.so.12"),
    ],
)
def test_wheels_of_both_layouts_are_found_beside_torch(
    cuda: str, include: str, cccl: str, nvrtc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "site packages" / "nvidia"
    for file in (f"{include}/cuda_bf16.h", f"{cccl}/cuda/std/version", nvrtc, nvrtc.replace(".so", ".alt.so")):
        (wheels / file).parent.mkdir(parents=True, exist_ok=True)
        (wheels / file).touch()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "site packages" / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = paths.find_paths()
    assert found["cuda_include"] == str(wheels / include)
    assert found["cccl_include"] == str(wheels / cccl)
    assert found["nvrtc"] == str(wheels / nvrtc)


def test_without_wheels_beside_torch_the_rest_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = paths.find_paths()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    assert {name: Path(path).resolve() for name, path in paths.find_paths().items()} == {
        name: Path(path).resolve() for name, path in usual.items()
    }


def test_unreadable_wheel_folders_are_passed_to_the_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core reports the folder; the search neither fails nor uses the files of another CUDA."""
    wheels = tmp_path / "nvidia"

    def refusing(method: Callable[..., Any]) -> Callable[..., Any]:
        def below_wheels(path: Path, **options: bool) -> Any:
            if path.is_relative_to(wheels):
                raise PermissionError(13, "Permission denied", str(path))
            return method(path, **options)

        return below_wheels

    monkeypatch.setattr(Path, "stat", refusing(Path.stat))
    monkeypatch.setattr(Path, "iterdir", refusing(Path.iterdir))
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = paths.find_paths()
    assert found["cuda_include"] == str(wheels / "cu13/include")
    assert found["cccl_include"] == str(wheels / "cu13/include/cccl")
    assert found["nvrtc"] == str(wheels / "cu13/lib/libnvrtc.so")


def test_entries_of_the_path_that_cannot_be_read_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, found = paths.search_inputs(), paths.find_paths()
    closed = tmp_path / "closed"
    archive = tmp_path / "packages.zip"
    archive.write_bytes(b"PK")
    stat = Path.stat

    def refusing(path: Path, **options: bool) -> Any:
        if path.is_relative_to(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refusing)
    odd: list[Any] = [str(closed), str(archive), "a\0b", 42, None, b"bytes", tmp_path]
    monkeypatch.setattr(sys, "path", [*odd, *sys.path])
    assert paths.search_inputs() == before
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: 1 / 0)  # an importer that fails for an entry
    assert paths.find_paths() == {name: path for name, path in found.items() if name != "cutlass_include"}


def test_the_kernel_headers_are_found() -> None:
    root = paths.library_root()
    assert root is not None
    assert (root / "gdn_cuda" / "kernels" / SMALLEST["family"] / f"{SMALLEST['name']}.cuh").is_file()


# ---- Choosing configurations


def test_fields_of_a_configuration() -> None:
    assert runtime.configuration_fields("{.head_k = 128, .state = DType::f32, .norm = true}") == {
        "head_k": 128,
        "state": "f32",
        "norm": True,
    }


def test_select_filters_by_field_value() -> None:
    everything = runtime.select()
    assert len(everything) == sum(len(entry["configurations"]) for entry in _C.kernels())
    name, value = next(iter(runtime.configuration_fields(everything[0].configuration).items()))
    chosen = runtime.select(**{name: value})
    assert 0 < len(chosen) <= len(everything)
    assert all(runtime.configuration_fields(choice.configuration)[name] == value for choice in chosen)
    assert runtime.select(**{name: [value]}) == chosen


def test_select_takes_torch_dtypes() -> None:
    for dtype, name in ((torch.complex64, "c64"), (torch.complex128, "c128"), (torch.float64, "f64"), (torch.bfloat16, "bf16")):
        chosen = runtime.select("structured", "cauchy", io=dtype)
        assert chosen == runtime.select("structured", "cauchy", io=name) != []


def test_select_refuses_what_does_not_exist() -> None:
    with pytest.raises(ValueError, match="field: expected one of"):
        runtime.select(nonesuch=1)
    with pytest.raises(ValueError, match="kernel: expected one of"):
        runtime.select(kernel="nonesuch")
    name = next(iter(runtime.configuration_fields(runtime.select()[0].configuration)))
    with pytest.raises(ValueError, match=f"no registered configuration has {name}=-12345. Values that exist: {name}: "):
        runtime.select(**{name: -12345})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU; the test is of machines without")
def test_warmup_without_a_gpu_says_so() -> None:
    with pytest.raises(RuntimeError, match="warmup: expected a CUDA device, got none"):
        runtime.warmup()


# ---- Compiling


def test_compile_reports_and_returns_every_configuration(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    results = runtime.compile(
        kernel=SMALLEST["name"],
        arch=["sm_80", "sm_90a"],
        out=tmp_path,
        progress=lambda done, total, _: seen.append((done, total)),
    )
    count = 2 * len(SMALLEST["configurations"])
    assert seen == [(done, count) for done in range(1, count + 1)]
    assert {result.arch for result in results} == {"sm_80", "sm_90a"}
    assert len(list(tmp_path.glob("*.cubin"))) == count


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ([], "compile: arch: expected at least one, got none"),
        (["sm_90a", "sm_75"], r"compile: arch: expected what the chosen kernels are for \(sm_80 and newer\), got sm_75"),
        ("sm_100", "compile: arch: expected sm_100a, which is what devices of capability 10.0 load, got sm_100"),
    ],
)
def test_compile_refuses_an_arch_that_no_device_loads(arch: str | list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        runtime.compile(kernel=SMALLEST["name"], arch=arch, out=tmp_path)
    assert list(tmp_path.iterdir()) == [], "no kernel is compiled before all arches are known to be valid"


def test_compile_refuses_no_jobs() -> None:
    for jobs in (0, -1):
        with pytest.raises(ValueError, match=f"compile: jobs: expected None or a positive number, got {jobs}"):
            runtime.compile("gdn", "chunk_cumsum", jobs=jobs)


def test_an_arch_that_is_named_twice_is_compiled_once(tmp_path: Path) -> None:
    results = runtime.compile(kernel=SMALLEST["name"], arch=["sm_90a", "sm_90a"], out=tmp_path)
    assert len(results) == len(SMALLEST["configurations"])


def test_compile_tries_everything_before_it_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(runtime.CompileError) as raised:
        runtime.compile(kernel=SMALLEST["name"], arch="sm_90a", out=tmp_path / "file" / "below")
    results = raised.value.results
    assert len(results) == len(SMALLEST["configurations"])
    assert all(result.error for result in results)
    assert str(tmp_path / "file") in str(raised.value)


def test_no_compile_refuses_ahead_of_time_compiles_too() -> None:
    with gdn_cuda.no_compile(), pytest.raises(runtime.CompileError, match="no_compile") as raised:
        runtime.compile(kernel=SMALLEST["name"], arch="sm_90a", force=True)
    assert all(result.error for result in raised.value.results)


def test_functions_that_torch_compiled_run_in_no_compile() -> None:
    def gates(rates: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return 2 * gdn_cuda.fused_gdn_gating(rates, rates, x, x)[0]

    given = torch.rand(4), torch.rand(1, 8, 4)
    with gdn_cuda.no_compile():
        out = torch.compile(gates, backend="eager", fullgraph=True)(*given)
    torch.testing.assert_close(out, gates(*given))


# ---- Messages


def test_messages_go_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="gdn_cuda"):
        runtime.log(logging.WARNING, "a message with %s and {braces}")
    assert caplog.messages == ["a message with %s and {braces}"]


@pytest.mark.parametrize("level, heard", [("debug", True), ("info", True), ("warning", False), ("off", False)])
def test_the_log_level_variable_works_without_any_logging_set_up(level: str, heard: bool) -> None:
    code = "import logging, gdn_cuda.runtime as r; r.log(logging.INFO, 'hello there')"
    done = processes.run("-c", code, GDN_LOG_LEVEL=level)
    assert done.returncode == 0, done.stderr
    assert ("gdn_cuda: INFO: hello there" in done.stderr) is heard
