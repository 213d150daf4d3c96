"""Formatting, lint and types, as configured in .clang-format and pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def tool(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"{name} is not installed beside {sys.executable}: pip install 'gdn_cuda[test]'")
    return str(path)


def check(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command[:4])} ...\n{done.stdout}{done.stderr}"


def test_clang_format() -> None:
    files = [
        str(path)
        for folder in ("csrc", "include", "tests", "examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".cpp", ".hpp", ".cuh", ".cu"}
    ]
    check(tool("clang-format"), "--dry-run", "-Werror", *files)


def test_ruff_check() -> None:
    check(tool("ruff"), "check", ".")


def test_ruff_format() -> None:
    check(tool("ruff"), "format", "--check", ".")


def test_headers_and_sources_that_are_named_exist() -> None:
    """No comment refers to a file that was renamed."""
    folders = ("csrc", "include", "gdn_cuda", "benchmarks", "docs", "examples")
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.splitlines()]
    known = {path.name for path in files}
    named = re.compile(r"(?<![\w/>])[a-z][\w/]*\.(?:cuh|hpp|cpp)\b")
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        if path.suffix in {".cpp", ".hpp", ".cuh", ".py", ".md"}
        for line in path.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#include")
        for name in named.findall(line)
        if Path(name).name not in known and not name.startswith(("cute/", "cutlass/"))
    ]
    assert not missing


def test_mypy() -> None:
    check(tool("mypy"))
