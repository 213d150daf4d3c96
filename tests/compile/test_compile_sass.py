"""The machine code: 16-byte accesses where rows are aligned, tensor cores where intended, no local memory.

Among configurations that a test does not distinguish, only the last one is compiled; with GDN_TEST_EVERY_CONFIGURATION=1 all
are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from compile_helpers import EVERY, HOPPER, Child, Registered, check_compiled, instructions, registered


def chosen(kernel: str, wanted: Callable[[dict[str, Any]], bool], distinguished: tuple[str, ...] = ()) -> list[Registered]:
    found = [each for each in registered() if each.kernel == kernel and wanted(each.fields)]
    assert found, f"no configuration of {kernel} is as this test wants it"
    return found if EVERY else list({tuple(each.fields[name] for name in distinguished): each for each in found}.values())


def code_of(work: list[Registered], compiler: Child, arch: str = HOPPER) -> list[list[str]]:
    made = compiler.compile(work, arch)
    check_compiled(work, made)
    return [instructions(made.cubin(i)) for i in range(len(work))]


def has(code: list[str], name: str) -> bool:
    """Whether the code has `name`, with additional modifiers anywhere: LDG.E.128 is also LDG.E.128.CONSTANT and
    LDG.E.NA.128."""
    operation, width = name.split(".")
    return any(x.split(".")[0] == operation and width in x.split(".") for x in code)


def local_accesses(code: list[str]) -> list[str]:
    return [x for x in code if x.split(".")[0] in ("LDL", "STL")]


@pytest.mark.parametrize("state", ["f32", "bf16"])
def test_the_aligned_recurrent_kernel_moves_16_bytes_at_a_time(state: str, compiler: Child) -> None:
    work = chosen(
        "gdn/recurrent",
        lambda x: x["head_k"] == 128 and x["exact_k"] and x["aligned"] and x["io"] == "bf16" and x["state"] == state,
    )
    for each, code in zip(work, code_of(work, compiler), strict=True):
        assert has(code, "LDG.128") and has(code, "STG.128"), each
        assert not local_accesses(code), each


def test_decode_moves_16_bytes_at_a_time(compiler: Child) -> None:
    work = chosen("gdn/decode", lambda x: x["head_k"] == 128 and x["io"] == "bf16", ("state", "stages"))
    for each, code in zip(work, code_of(work, compiler), strict=True):
        assert has(code, "LDGSTS.128" if each.fields["stages"] else "LDG.128") and has(code, "STG.128"), each
        assert not local_accesses(code), each


def test_decode_of_codes_converts_none_for_its_products(compiler: Child) -> None:
    work = chosen("gdn/decode_codes", lambda _: True, ("io",)) + chosen("scan/selective_step_codes", lambda _: True, ("io",))
    for each, code in zip(work, code_of(work, compiler), strict=True):
        assert has(code, "LDGSTS.128") and has(code, "STG.128") and has(code, "IMMA.16832"), each
        assert not local_accesses(code), each


def test_the_unaligned_recurrent_kernel_does_not_move_16_bytes_at_a_time(compiler: Child) -> None:
    """Wide accesses to rows that are not aligned to 16 bytes would fault."""
    work = chosen("gdn/recurrent", lambda x: x["head_k"] == 128 and not x["aligned"] and x["io"] == "bf16", ("state",))
    for each, code in zip(work, code_of(work, compiler), strict=True):
        assert not has(code, "LDG.128") and not has(code, "STG.128"), each
        assert not local_accesses(code), each


def test_vectorized_gating_moves_16_bytes_at_a_time(compiler: Child) -> None:
    work = chosen("layers/gating", lambda x: x["vector"] == 8, ("io",))
    for each, code in zip(work, code_of(work, compiler), strict=True):
        assert has(code, "LDG.128") and has(code, "STG.128"), each
        assert not local_accesses(code), each


def test_transposed_copies_move_16_bytes_at_a_time(compiler: Child) -> None:
    work = chosen("common/transposed_copy", lambda _: True, ("element_bytes",))
    for each, code in zip(work, code_of(work, compiler), strict=True):
        assert has(code, "LDGSTS.128") and has(code, "STG.128"), each
        assert not local_accesses(code), each


@pytest.mark.parametrize("kernel", ["compute_u_w", "seq_state_update", "compute_o"])
def test_the_steps_of_the_chunked_form_use_the_tensor_cores(kernel: str, compiler: Child) -> None:
    work = chosen(f"gdn/{kernel}", lambda x: x["head_k"] == 128, ("aligned",))
    for each, code in zip(work, code_of(work, compiler), strict=True):
        assert has(code, "HMMA.16816") and has(code, "LDSM.16"), each
        assert has(code, "LDGSTS.128") == has(code, "STG.128") == each.fields["aligned"], each
        assert not has(code, "LDG.128") or each.fields["aligned"], each
        assert not local_accesses(code), each


@pytest.mark.parametrize("arch", ["sm_80", HOPPER])
def test_prefill_mma_uses_mma_ldmatrix_and_cp_async(arch: str, compiler: Child) -> None:
    """The state stays in registers, and every tile is loaded by asynchronous copies of 16 bytes."""
    work = chosen("gdn/prefill_mma", lambda x: x["io"] == "bf16" and x["head_k"] == 128)
    for each, code in zip(work, code_of(work, compiler, arch), strict=True):
        assert has(code, "HMMA.16816") and has(code, "HMMA.1688") and has(code, "LDSM.M88") and has(code, "LDGSTS.128"), each
        assert not local_accesses(code), each


@pytest.mark.parametrize("arch", ["sm_80", HOPPER])
def test_gates_of_channels_on_any_gpu_use_mma_ldmatrix_and_cp_async(arch: str, compiler: Child) -> None:
    work = chosen("gdn/kda_mma", lambda x: x["io"] == "bf16" and x["head_k"] == 128)
    for each, code in zip(work, code_of(work, compiler, arch), strict=True):
        assert has(code, "HMMA.16816") and has(code, "LDSM.M88") and has(code, "LDSM.MT88") and has(code, "LDGSTS.128"), each
        assert has(code, "STG.128") and not local_accesses(code), each


@pytest.mark.parametrize("arch", ["sm_80", HOPPER])
def test_mamba2_on_any_gpu_uses_mma_ldmatrix_and_cp_async(arch: str, compiler: Child) -> None:
    """The state stays in registers, and every tile is loaded by asynchronous copies of 16 bytes."""
    work = chosen("ssd/prefill_mma", lambda x: x["io"] == "bf16" and x["states"] == 128)
    for each, code in zip(work, code_of(work, compiler, arch), strict=True):
        assert has(code, "HMMA.16816") and has(code, "LDSM.M88") and has(code, "LDGSTS.128"), each
        assert has(code, "STG.128") and not local_accesses(code), each


@pytest.mark.parametrize("arch", ["sm_80", HOPPER])
def test_gradients_of_mamba2_on_any_gpu_use_mma_ldmatrix_and_cp_async(arch: str, compiler: Child) -> None:
    """The sums over heads stay in registers, and every tile is loaded by asynchronous copies of 16 bytes."""
    work = chosen("ssd/backward_mma", lambda x: x["io"] == "bf16" and x["states"] == 256)
    for each, code in zip(work, code_of(work, compiler, arch), strict=True):
        assert has(code, "HMMA.16816") and has(code, "LDSM.M88") and has(code, "LDSM.MT88") and has(code, "LDGSTS.128"), each
        assert not local_accesses(code), each


@pytest.mark.parametrize("arch", ["sm_80", HOPPER])
@pytest.mark.parametrize("kernel", ["vandermonde", "cauchy_batch"])
def test_structured_sums_in_fp32_use_the_tensor_cores(kernel: str, arch: str, compiler: Child) -> None:
    work = chosen(f"structured/{kernel}", lambda x: x["io"] in ("c64", "f32", "bf16", "f16"), ("io",) if arch == HOPPER else ())
    for each, code in zip(work, code_of(work, compiler, arch), strict=True):
        assert has(code, "HMMA.1688") and has(code, "LDS.128"), each
        assert has(code, "STG.128") == (kernel == "vandermonde"), each
        assert not local_accesses(code), each
