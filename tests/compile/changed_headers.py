"""Kernels whose headers a branch changes: of these the compile tests look at every configuration."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def changed_kernels(kernels: list[str], root: Path = ROOT) -> set[str]:
    """Those of which a header differs in code from the commit that `base` names: by more than comments, include lines and the
    place of the file. None without git."""
    changed = set(_changed_headers(root))
    return {
        kernel for kernel in kernels if changed & {root / "include/gdn_cuda/kernels" / f"{kernel}.cuh", *_ours(kernel, root)}
    }


def base(root: Path) -> str:
    """GDN_TEST_BASE; otherwise where the branch left main, and on main the commit before."""
    if named := os.environ.get("GDN_TEST_BASE"):
        if not _git(root, "rev-parse", "--quiet", "--verify", f"{named}^{{commit}}"):
            raise ValueError(f"GDN_TEST_BASE: expected a commit, got {named}")
        return named
    head, before = _git(root, "rev-parse", "HEAD"), _git(root, "rev-parse", "--quiet", "--verify", "HEAD~1")
    for main in ("origin/main", "main"):
        found = _git(root, "merge-base", "HEAD", main)
        if found and found != head:
            return found.strip()
    return (before or head).strip()


def included_by(header: Path, seen: set[Path], root: Path = ROOT) -> Iterator[str]:
    """What a header and those of ours that it includes ask for."""
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', header.read_text(), re.MULTILINE):
        yield name
        ours = root / "include" / name
        if ours.is_file() and ours not in seen:
            seen.add(ours)
            yield from included_by(ours, seen, root)


def _ours(kernel: str, root: Path) -> set[Path]:
    seen: set[Path] = set()
    list(included_by(root / "include/gdn_cuda/kernels" / f"{kernel}.cuh", seen, root))
    return seen


def _changed_headers(root: Path) -> Iterator[Path]:
    since = base(root)
    if not since:
        return
    for line in _git(root, "diff", "--name-status", "--no-renames", "--diff-filter=AM", since, "--", "include").splitlines():
        path = line.split("\t")[1]
        if not any(_code(_git(root, "show", old)) == _code((root / path).read_text()) for old in _same_name(root, since, path)):
            yield root / path
    for path in _git(root, "ls-files", "--others", "--exclude-standard", "--", "include").splitlines():
        yield root / path


def _same_name(root: Path, since: str, path: str) -> Iterator[str]:
    """The file as it was, or, if it is new, those that went."""
    was = _git(root, "ls-tree", "--name-only", since, "--", path).splitlines()
    gone = _git(root, "diff", "--name-only", "--no-renames", "--diff-filter=D", since, "--", "include").splitlines()
    for old in was or gone:
        yield f"{since}:{old}"


def _code(text: str) -> str:
    """Without comments, include lines and white space."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return "".join(re.sub(r"^\s*#\s*(include|pragma\s+once)[^\n]*", "", text, flags=re.MULTILINE).split())


def _git(root: Path, *command: str) -> str:
    """What it prints; nothing where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
