"""Registered configurations compile through NVRTC for Hopper without spills or a stack, and for their other GPUs.

There are over a thousand. These tests compile configurations of the kernels whose headers this branch changes (all of them up
to a bound, spread beyond it: changed_headers.py), and the most special one of each other kernel. GDN_TEST_EVERY_CONFIGURATION=1
compiles all, and so does tests/gpu_pack.sh before every session on a GPU, which refuses spills and stacks as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from changed_headers import ROOT, changed_kernels, included_by, spread
from compile_helpers import (
    EVERY,
    HOPPER,
    Child,
    Compiled,
    Registered,
    check_compiled,
    median_seconds,
    registered,
    representatives,
)

from gdn_cuda import _C

SLICE = 8  # configurations per test: few enough to divide the work among pytest's processes


def by_kernel() -> dict[str, list[Registered]]:
    kernels: dict[str, list[Registered]] = {}
    for each in registered():
        kernels.setdefault(each.kernel, []).append(each)
    return kernels


def slices() -> list[tuple[str, list[Registered]]]:
    chosen = by_kernel()
    if not EVERY:
        changed = changed_kernels(list(chosen))
        chosen = {kernel: listed[-1:] for kernel, listed in chosen.items()} | spread(
            {kernel: chosen[kernel] for kernel in chosen if kernel in changed}
        )
    return [
        (f"{kernel}-{first}", listed[first : first + SLICE])
        for kernel, listed in chosen.items()
        for first in range(0, len(listed), SLICE)
    ]


def test_every_kernel_file_is_registered() -> None:
    """Each kernel is in a file of its name; the other files, in folders too, are parts of kernels."""
    kernels = ROOT / "include/gdn_cuda/kernels"
    with_kernels = {
        header.relative_to(kernels).with_suffix("").as_posix()
        for header in kernels.rglob("*.cuh")
        if "__global__" in header.read_text()
    }
    assert {each.kernel for each in registered()} == with_kernels


def test_uses_cutlass_is_declared_by_the_kernels_that_include_it() -> None:
    """The other kernels get no include folder of CUTLASS or libcu++: that they compile shows that they need neither."""
    said = {f"{entry['family']}/{entry['name']}": entry["uses_cutlass"] for entry in _C.kernels()}
    kernels = ROOT / "include/gdn_cuda/kernels"
    found = {kernel: list(included_by(kernels / f"{kernel}.cuh", set())) for kernel in said}
    assert said == {
        kernel: any(name.startswith(("cute/", "cutlass/", "cuda/std/")) for name in names) for kernel, names in found.items()
    }


@pytest.mark.parametrize("name, work", slices(), ids=[name for name, _ in slices()])
def test_configurations_compile_for_hopper(name: str, work: list[Registered], compiler: Child) -> None:
    made = compiler.compile(work, HOPPER)
    check_compiled(work, made)
    assert len({result["full_key"] for result in made.results}) == len(work)
    # One to two seconds on a quiet machine of two cores, several times that on a busy one: this catches code that explodes.
    print(f"{name}: median of {len(work)} cold compiles: {median_seconds(made):.2f} s")
    assert median_seconds(made) < 60


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
def test_kernels_compile_for_their_other_architectures(arch: str, compiler: Child) -> None:
    """The most special configuration of a ninth of the kernels for sm_80, the oldest arch of most, and of an eighteenth for
    each of the others."""
    work = list({each.kernel: each for each in representatives(arch)}.values())
    if not EVERY:
        work = work[::9] if arch == "sm_80" else work[("sm_89", "sm_100a", "sm_120a").index(arch) + 4 :: 18]
    check_compiled(work, compiler.compile(work, arch), arch)


@pytest.mark.parametrize(
    "wrong",
    [{"spill_bytes": 8}, {"stack_bytes": 512}, {"is_serialized": True}, {"registers": 0}, {"origin": "disk"}, {"error": "?"}],
)
def test_a_compile_with_spills_stack_serialization_or_an_error_is_refused(wrong: dict[str, Any]) -> None:
    sound = {"origin": "compiled", "registers": 168, "shared_bytes": 1024, "spill_bytes": 0, "stack_bytes": 0}
    sound |= {"is_serialized": False}
    work = representatives(HOPPER)[:1]
    check_compiled(work, Compiled({}, Path(), [sound]))
    with pytest.raises(AssertionError, match=work[0].kernel):
        check_compiled(work, Compiled({}, Path(), [sound | wrong]))


def test_spills_of_what_cannot_run_do_not_count() -> None:
    work = representatives("sm_89")[:1]
    found = {"origin": "compiled", "registers": 168, "spill_bytes": 8, "stack_bytes": 0, "is_serialized": False}
    check_compiled(work, Compiled({}, Path(), [found | {"shared_bytes": 128 << 10}]), "sm_89")
    with pytest.raises(AssertionError, match="8 bytes"):
        check_compiled(work, Compiled({}, Path(), [found | {"shared_bytes": 64 << 10}]), "sm_89")


def test_an_architecture_too_old_for_the_kernel_is_refused(tmp_path: Path) -> None:
    """The compiler does not know the arch, or the kernel needs a newer one: an error names the arch, and no entry is
    written."""
    with Child(tmp_path) as child:
        made = child.compile(representatives(HOPPER)[:1], "sm_35")
    assert "sm_35" in made.results[0]["error"]
    assert not list(made.cache.glob("*.cubin"))
