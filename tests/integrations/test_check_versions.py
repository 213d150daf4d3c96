"""tests/peers/check_versions.py on wheels and sdists that the tests make: no network."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import fake_hosts
import processes
import pytest

from gdn_cuda.compat import causal_conv1d
from gdn_cuda.integrations import vllm

SCRIPT = Path(__file__).resolve().parents[1] / "peers/check_versions.py"


def wheel(folder: Path, name: str, host: Any, **changed: str) -> None:
    """A wheel with the targets of a host; `changed` are targets with other parameters."""
    written = folder / "written"
    fake_hosts.write(written, {target: changed.get(target.rpartition(":")[2], p) for target, p in host.targets.items()})
    files = list(written.rglob("*.py"))
    if name.endswith(".whl"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            for path in files:
                archive.write(path, path.relative_to(written))
    else:
        with tarfile.open(folder / name, "w:gz") as archive:
            for path in files:
                member = tarfile.TarInfo(f"{name.removesuffix('.tar.gz')}/{path.relative_to(written)}")
                member.size = path.stat().st_size
                archive.addfile(member, io.BytesIO(path.read_bytes()))


def check(folder: Path, *requirements: str) -> tuple[int, list[str]]:
    done = processes.run(SCRIPT, "--downloads", folder, *requirements)
    return done.returncode, done.stdout.splitlines()[2:] or [done.stderr]


def test_a_wheel_and_an_sdist_with_the_verified_parameters(tmp_path: Path) -> None:
    wheel(tmp_path, "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl", vllm.HOST)
    wheel(tmp_path, "causal_conv1d-1.9.0.post2.tar.gz", causal_conv1d.HOST)
    assert check(tmp_path, "vllm==0.33.0", "causal-conv1d==1.9.0.post2") == (
        0,
        [
            f"| vllm | 0.33.0 | {len(vllm.HOST.targets)} | the same | yes |",
            "| causal-conv1d | 1.9.0.post2 | 2 | the same | no |",
            '  gdn_cuda.compat.causal_conv1d.VERSIONS lacks "1.9.0.post2": "compared"',
        ],
    )


def test_a_release_that_differs_is_reported_with_the_difference(tmp_path: Path) -> None:
    wheel(tmp_path, "vllm-0.40.0-cp38-abi3-manylinux_2_28_x86_64.whl", vllm.HOST, fla_chunk_gated_delta_rule="x, state")
    code, lines = check(tmp_path, "vllm==0.40.0")
    assert code == 1 and lines[0] == f"| vllm | 0.40.0 | {len(vllm.HOST.targets)} | 1 differ | no |"
    assert lines[1].startswith(f"  {vllm._MODULE}:fla_chunk_gated_delta_rule: expected (q, k, v") and len(lines) == 2
    assert lines[1].endswith("got (x, state)")


@pytest.mark.parametrize(("parameters", "why"), [("x, state=made()", "a default is made()"), ("x, ?", "it cannot be parsed")])
def test_a_release_whose_source_does_not_show_the_parameters(parameters: str, why: str, tmp_path: Path) -> None:
    wheel(tmp_path, "causal_conv1d-2.0.tar.gz", causal_conv1d.HOST, causal_conv1d_update=parameters)
    code, lines = check(tmp_path, "causal-conv1d==2.0")
    assert code == 1 and f"and its source does not tell: {why}" in lines[-1]


@pytest.mark.parametrize("given", ["torch", "vllm>=1"])
def test_another_library_is_refused(given: str, tmp_path: Path) -> None:
    code, (error,) = check(tmp_path, given)
    assert code == 2 and f"each with ==VERSION or without, got {given}" in error
