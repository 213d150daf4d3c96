"""Which kernels count as changed, in repositories made here, and which of their configurations are compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from changed_headers import changed_kernels, spread

KERNELS = ["gdn/decode", "gdn/verify", "scan/scan"]


def git(root: Path, *command: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *command], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A branch of main: decode includes common/types.cuh, verify includes decode_plan.cuh, which includes common/types.cuh too,
    and scan includes no header of ours."""
    monkeypatch.delenv("GDN_TEST_BASE", raising=False)
    kernels = tmp_path / "include/gdn_cuda/kernels"
    for folder in ("gdn", "scan", "common"):
        (kernels / folder).mkdir(parents=True)
    (kernels / "common/types.cuh").write_text("#pragma once\nusing u32 = unsigned;  // a comment\n")
    (kernels / "gdn/decode_plan.cuh").write_text("#include <gdn_cuda/kernels/common/types.cuh>\nstruct Plan {};\n")
    (kernels / "gdn/decode.cuh").write_text("#include <gdn_cuda/kernels/common/types.cuh>\nint decode();\n")
    (kernels / "gdn/verify.cuh").write_text('#include "gdn_cuda/kernels/gdn/decode_plan.cuh"\nint verify();\n')
    (kernels / "scan/scan.cuh").write_text("#include <cuda_bf16.h>\nint scan();\n")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    git(tmp_path, "checkout", "-q", "-b", "branch")
    return kernels


def root_of(kernels: Path) -> Path:
    return kernels.parents[2]


def test_an_unchanged_tree_has_no_changed_kernels(tree: Path) -> None:
    assert changed_kernels(KERNELS, root_of(tree)) == set()


def test_a_changed_header_changes_every_kernel_that_includes_it(tree: Path) -> None:
    (tree / "common/types.cuh").write_text("#pragma once\nusing u32 = unsigned long;\n")
    assert changed_kernels(KERNELS, root_of(tree)) == {"gdn/decode", "gdn/verify"}
    git(root_of(tree), "commit", "-q", "-a", "-m", "second")
    (tree / "scan/scan.cuh").write_text("int scan(int);\n")
    assert changed_kernels(KERNELS, root_of(tree)) == set(KERNELS)


def test_an_indirectly_included_header_counts(tree: Path) -> None:
    (tree / "gdn/decode_plan.cuh").write_text("#include <gdn_cuda/kernels/common/types.cuh>\nstruct Plan { int x; };\n")
    assert changed_kernels(KERNELS, root_of(tree)) == {"gdn/verify"}


def test_comments_and_moves_do_not_count(tree: Path) -> None:
    (tree / "common/types.cuh").write_text("// Types.\n#pragma once\nusing u32 =\n    unsigned;\n")
    (tree / "gdn/plans").mkdir()
    git(root_of(tree), "mv", str(tree / "gdn/decode_plan.cuh"), str(tree / "gdn/plans/decode.cuh"))
    (tree / "gdn/verify.cuh").write_text("#include <gdn_cuda/kernels/gdn/plans/decode.cuh>\nint verify();\n")
    assert changed_kernels(KERNELS, root_of(tree)) == set()
    (tree / "gdn/plans/decode.cuh").write_text("struct Plan { int moved_and_changed; };\n")
    assert changed_kernels(KERNELS, root_of(tree)) == {"gdn/verify"}


def test_an_untracked_header_counts(tree: Path) -> None:
    (tree / "gdn/new.cuh").write_text("int fresh();\n")
    (tree / "gdn/decode.cuh").write_text("#include <gdn_cuda/kernels/gdn/new.cuh>\nint decode();\n")
    assert changed_kernels(KERNELS, root_of(tree)) == {"gdn/decode"}


def test_on_main_the_last_commit_counts(tree: Path) -> None:
    git(root_of(tree), "checkout", "-q", "main")
    (tree / "scan/scan.cuh").write_text("int scan(int);\n")
    git(root_of(tree), "commit", "-q", "-a", "-m", "second")
    assert changed_kernels(KERNELS, root_of(tree)) == {"scan/scan"}


def test_a_base_may_be_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "scan/scan.cuh").write_text("int scan(int);\n")
    git(root_of(tree), "commit", "-q", "-a", "-m", "second")
    monkeypatch.setenv("GDN_TEST_BASE", "HEAD")
    assert changed_kernels(KERNELS, root_of(tree)) == set()
    monkeypatch.setenv("GDN_TEST_BASE", "no-such-commit")
    with pytest.raises(ValueError, match=r"GDN_TEST_BASE: expected a commit, got no-such-commit"):
        changed_kernels(KERNELS, root_of(tree))


def test_without_git_no_kernel_counts(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "scan/scan.cuh").write_text("int scan(int);\n")
    monkeypatch.setenv("PATH", "")
    assert changed_kernels(KERNELS, root_of(tree)) == set()


def test_all_configurations_are_compiled_where_they_are_few() -> None:
    few = {"gdn/decode": list(range(30)), "scan/scan": list(range(10))}
    assert spread(few, most=40) == few


def test_configurations_are_bounded_and_spread_from_first_to_last() -> None:
    many = {"gdn/decode": list(range(300)), "gdn/verify": [0, 1], "scan/scan": list(range(1000))}
    chosen = spread(many, most=41)
    assert {kernel: len(listed) for kernel, listed in chosen.items()} == {"gdn/decode": 20, "gdn/verify": 2, "scan/scan": 19}
    for kernel, listed in chosen.items():
        assert listed == sorted(set(listed))
        assert (listed[0], listed[-1]) == (many[kernel][0], many[kernel][-1])
    gaps = [after - before for before, after in zip(chosen["scan/scan"], chosen["scan/scan"][1:], strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_every_changed_kernel_is_compiled_even_beyond_the_bound() -> None:
    assert spread({str(kernel): [0, 1, 2] for kernel in range(50)}, most=40) == {str(kernel): [2] for kernel in range(50)}
    assert spread({"a": [0, 1, 2], "b": [0, 1, 2]}, most=3) == {"a": [0, 2], "b": [2]}
    assert spread({}) == {}
