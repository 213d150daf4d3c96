"""Formatting, lint and types, as configured in .clang-format and pyproject.toml."""

from __future__ import annotations

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


def test_mypy() -> None:
    check(tool("mypy"))
