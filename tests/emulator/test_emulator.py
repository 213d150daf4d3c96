"""The emulator reports the fault of each kernel in faulty_kernels.cuh, and none in those without."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
from emulated import emulated, library, take_over, with_lines
from guarded import Guarded
from helpers import rel_rms
from torch import Tensor
from translate import translated

from gdn_cuda import selective_scan


class Arguments(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p)]


def launch(kernel: str, reverse: bool = False, blocks: int = 1) -> tuple[Tensor, str]:
    """The elements 0 … 63 after a kernel of one block, or a cluster, and its error."""
    memory = Guarded()
    values = memory.copy(torch.arange(64.0))
    library().emulator_schedule(7, reverse)
    arguments = ctypes.byref(Arguments(values.data_ptr()))
    name = f"faulty/{kernel}".encode()
    fault = library().emulator_launch(name, b"", blocks, 64 // blocks, 256, blocks, arguments).decode()
    memory.check()
    return values, with_lines(fault)


def orders(kernel: str, blocks: int = 1) -> tuple[Tensor, Tensor]:
    (values, fault), (others, other_fault) = (launch(kernel, reverse, blocks) for reverse in (False, True))
    assert not fault and not other_fault
    return values, others


def test_a_kernel_without_fault() -> None:
    assert all(torch.equal(values, torch.full((64,), 63.0)) for values in orders("none"))


@pytest.mark.parametrize("kernel", ["multiplies", "multiplies_codes"])
def test_tensor_cores_multiply_matrices(kernel: str) -> None:
    assert all(not values.any() for values in orders(kernel))


@pytest.mark.parametrize("kernel", ["reads_before_a_barrier", "overwrites_before_a_barrier"])
def test_a_race_shows_in_the_other_order(kernel: str) -> None:
    values, others = orders(kernel)
    assert not torch.equal(values, others)


def test_unwritten_memory_is_nan() -> None:
    assert all(values.isnan().all() for values in orders("reads_what_nobody_wrote"))


def test_copies_have_arrived_after_a_wait() -> None:
    for wrong in (False, True):
        copied = torch.cat([x[::4][:16] for x in orders("copies_without_a_wait" if wrong else "copies")])
        assert bool(copied.isnan().all()) if wrong else torch.equal(copied, torch.arange(1.0, 64, 4).repeat(2))


@pytest.mark.parametrize(
    "kernel, expected",
    [
        ("waits_for_nobody", "a deadlock: from thread 0 on __syncthreads at faulty_kernels.cuh:36, from thread 1 on __s"),
        ("waits_in_two_places", "waits in __"),
        ("reads_past_a_tensor", "thread 63: unmapped memory"),
        ("is_misaligned", "a misaligned address"),
        ("leaves_an_array", "an index outside of its array"),
        ("overflows", "an integer overflows"),
        ("writes_past_shared_memory", "thread 63: unmapped memory"),
    ],
)
def test_faults(kernel: str, expected: str) -> None:
    for reverse in (False, True):
        _, fault = launch(kernel, reverse)
        assert fault.startswith(f"faulty/{kernel}: block (0, 0, 0), ") and expected in fault
        assert "waits_in" in kernel or "faulty_kernels.cuh:" in fault


def test_blocks_of_a_cluster_reach_each_other() -> None:
    expected = torch.arange(64.0).roll(32)
    assert all(torch.equal(values, expected) for values in orders("exchanges", blocks=2))
    values, others = orders("reads_before_the_cluster_barrier", blocks=2)
    assert not (torch.equal(values, expected) and torch.equal(others, expected))


@pytest.mark.parametrize("kernel, when", [("has_not_begun", "may not have begun"), ("has_returned", "has returned")])
def test_stores_into_a_block_that_does_not_run(kernel: str, when: str) -> None:
    for reverse in (False, True):
        fault = launch(f"stores_into_a_block_that_{kernel}", reverse, blocks=2)[1]
        assert f"a store into the shared memory of a block that {when}" in fault


def test_an_unknown_kernel_is_refused() -> None:
    assert "no such kernel" in launch("unknown")[1]


def test_writes_before_a_tensor_are_found() -> None:
    memory = Guarded()
    values = memory.copy(torch.arange(3.0))
    memory.check()
    ctypes.c_ubyte.from_address(values.data_ptr() - 1).value = 0
    with pytest.raises(AssertionError, match="outside of a tensor"):
        memory.check()


def test_writes_between_the_elements_of_an_argument_are_found() -> None:
    pool, copy = torch.zeros(4, 8), torch.zeros(4, 8)
    copy[:, :6] = 1
    take_over([(pool[:, :6], copy[:, :6], True)], "fine")
    assert torch.equal(pool, copy)
    copy[2, 7] = 1
    for is_written in (True, False):
        with pytest.raises(AssertionError, match="memory that it only reads"):
            take_over([(pool[:, :6], copy[:, :6], is_written)], "faulty")


def test_translation() -> None:
    source = """
        asm volatile("ld.v2 {%0, %1}, [%2];" : "=r"(x.y), "=r"(a[1])
                     : "l"(c ? std::min(p, q) : r)
                     : "memory");
        asm("" : "+f"(x));
        extern __shared__ __align__(16) unsigned char memory[];
        __shared__ typename Block::Plan plan;
        __shared__ float two[N - 1][32];"""
    assert [line.strip() for line in translated(source).split("\n")] == [
        "",
        'emulator::ptx<"ld.v2 {%0, %1}, [%2];">(x.y, a[1], c ? std::min(p, q) : r)',
        "",
        ";",
        'emulator::ptx<"">(x);',
        "unsigned char* const memory = static_cast<unsigned char*>(emulator::dynamic_shared(16));",
        "auto& plan = emulator::shared_variable<typename Block::Plan>([] {});",
        "auto& two = emulator::shared_variable<float[N - 1][32]>([] {});",
    ]


def test_operators_get_and_make_guarded_tensors() -> None:
    """Both end where a protected page begins."""
    given = {name: torch.rand(1, 3, 5) for name in ("u", "delta", "B", "C")} | {"A": -torch.rand(3, 3)}
    with emulated():
        out, last = selective_scan(**given, return_last_state=True)
    for made in (out, last):
        end = made.untyped_storage().data_ptr() + made.untyped_storage().nbytes()
        assert -(-end // 16) * 16 % mmap.PAGESIZE == 0
    expected = selective_scan(**given, return_last_state=True)
    assert rel_rms(out, expected[0]) < 1e-5 and rel_rms(last, expected[1]) < 1e-5
