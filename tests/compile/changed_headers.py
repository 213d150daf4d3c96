"""Kernels whose headers a branch changes, and how many of their configurations the compile tests compile."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
MOST = 40  # configurations of changed kernels that are compiled: a header of all kernels would ask for over a thousand

T = TypeVar("T")


def spread(configurations: dict[str, list[T]], most: int = MOST) -> dict[str, list[T]]:
    """At most `most` configurations, divided evenly among the kernels, but one of every kernel in any case: the last (the most
    special one), then also the first, then others at equal distances between the two."""
    counts = dict.fromkeys(configurations, 1)
    left = most - len(counts)
    while left > 0 and (growing := [kernel for kernel in counts if counts[kernel] < len(configurations[kernel])]):
        for kernel in growing[:left]:
            counts[kernel] += 1
        left -= len(growing)
    return {kernel: _at_equal_distances(listed, counts[kernel]) for kernel, listed in configurations.items()}


def _at_equal_distances(listed: list[T], count: int) -> list[T]:
    if count == 1:
        return listed[-1:]
    return [listed[i * (len(listed) - 1) // (count - 1)] for i in range(count)]


def changed_kernels(kernels: list[str], root: Path = ROOT) -> set[str]:
    """The kernels with a header whose code differs from the commit that `base` names; comments, include lines and the place of
    the file do not count. None without git."""
    changed = set(_changed_headers(root))
    return {
        kernel for kernel in kernels if changed & {root / "include/gdn_cuda/kernels" / f"{kernel}.cuh", *_ours(kernel, root)}
    }


def base(root: Path) -> str:
    """The commit to compare with: GDN_TEST_BASE; otherwise the merge base with main, and on main the commit before."""
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
    """Names in the #include lines of a header and of those of our headers that it includes, directly or indirectly."""
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
    """The file as it was at `since`; for a new file, every header deleted since, as the new file may be a moved one."""
    was = _git(root, "ls-tree", "--name-only", since, "--", path).splitlines()
    gone = _git(root, "diff", "--name-only", "--no-renames", "--diff-filter=D", since, "--", "include").splitlines()
    for old in was or gone:
        yield f"{since}:{old}"


def _code(text: str) -> str:
    """The text without comments, include lines and white space."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return "".join(re.sub(r"^\s*#\s*(include|pragma\s+once)[^\n]*", "", text, flags=re.MULTILINE).split())


def _git(root: Path, *command: str) -> str:
    """Output of a git command; empty where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
