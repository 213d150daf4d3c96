"""Hopper's asynchronous instructions in the emulator: correct kernels give the right results in both orders of threads, and
each kernel with a fault is reported (hopper_kernels.cuh)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import pytest
import torch
from emulated import library, with_lines
from guarded import Guarded
from torch import Tensor

ROWS = 64
At = tuple[int, int, int, int]  # element, head, token, batch


class TensorMap(ctypes.Structure):
    _fields_ = [("opaque", ctypes.c_ubyte * 128)]


class Arguments(ctypes.Structure):
    _fields_ = [
        ("source", TensorMap),
        ("target", TensorMap),
        ("load_at", ctypes.c_int * 4),
        ("store_at", ctypes.c_int * 4),
        ("data", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("chunks", ctypes.c_int),
    ]


def small_integers(*shape: int) -> Tensor:
    """Sums of their products are exact."""
    return (torch.arange(torch.Size(shape).numel()).view(shape) * 7 % 11 - 5).bfloat16()


@dataclass
class Launch:
    """A call of a kernel, on guarded copies of its tensors (batch, token, head, d)."""

    source: Tensor = field(default_factory=lambda: small_integers(1, ROWS, 1, 64))
    target: Tensor = field(default_factory=lambda: torch.zeros(1, ROWS, 1, 64).bfloat16())
    load_at: At = (0, 0, 0, 0)
    store_at: At = (0, 0, 0, 0)
    chunks: int = 1
    threads: int = 128
    blocks: int = 1
    cluster: int = 1
    shared: int = 34 << 10
    target_tokens: int = ROWS  # tokens of a box
    data: Tensor = field(default_factory=lambda: torch.arange(ROWS * 64.0))
    aliased: bool = False  # the source is what the kernel writes to `data`

    def run(self, kernel: str, configuration: str, reverse: bool) -> str:
        """Returns its error; `data` and `target` become what it has written."""
        memory = Guarded()
        source, target, data = memory.copy(self.source), memory.copy(self.target), memory.copy(self.data)
        counts = memory.copy(torch.zeros(1, dtype=torch.int32))
        room = ctypes.create_string_buffer(ctypes.sizeof(Arguments) + 64)
        arguments = Arguments.from_address(-(-ctypes.addressof(room) // 64) * 64)
        pointer = data.data_ptr() if self.aliased else source.data_ptr()
        self._set_map(arguments.source, source, pointer, ROWS)
        self._set_map(arguments.target, target, target.data_ptr(), self.target_tokens)
        arguments.load_at[:], arguments.store_at[:] = self.load_at, self.store_at
        arguments.data, arguments.counts, arguments.chunks = data.data_ptr(), counts.data_ptr(), self.chunks
        library().emulator_schedule(7, reverse)
        fault = library().emulator_launch(
            f"hopper/{kernel}".encode(),
            configuration.encode(),
            self.blocks,
            self.threads,
            self.shared,
            self.cluster,
            ctypes.byref(arguments),
        )
        memory.check()
        self.data, self.target = data, target
        return with_lines(fault.decode())

    @staticmethod
    def _set_map(into: TensorMap, x: Tensor, pointer: int, tokens: int) -> None:
        batches, length, heads, d = x.shape
        sizes = (ctypes.c_longlong * 4)(batches, length, heads, d)
        strides = (ctypes.c_longlong * 3)(*x.stride()[:3])
        library().emulator_tile_map(ctypes.byref(into), ctypes.c_void_p(pointer), sizes, strides, tokens)


def results(kernel: str, configuration: str = "", **options: object) -> list[Launch]:
    """Runs a kernel in each order of threads; expects no error."""
    made = []
    for reverse in (False, True):
        launch = Launch(**options)  # type: ignore[arg-type]
        fault = launch.run(kernel, configuration, reverse)
        assert not fault, fault
        made.append(launch)
    return made


def faults(kernel: str, configuration: str, **options: object) -> list[str]:
    return [Launch(**options).run(kernel, configuration, reverse) for reverse in (False, True)]  # type: ignore[arg-type]


# ---- wgmma


def test_a_product_of_a_tile_from_tma() -> None:
    for launch in results("product", "Fault::none", threads=160):
        x = launch.source[0, :, 0].float()
        assert torch.equal(launch.data.view(ROWS, 64), x @ x.T)


@pytest.mark.parametrize("kernel", ["multiplies", "overlaps"])
def test_every_product(kernel: str) -> None:
    for launch in results(kernel):
        assert not launch.data[:128].any()


@pytest.mark.parametrize(
    "fault, expected, where",
    [
        ("expects_too_much", "a deadlock: from thread 0 on mbarrier at dynamic shared memory + 8192 (phase 0: 0 of 1 arrivals "
         "and 16 bytes are missing; initialised at hopper_kernels", ".cuh:"),
        ("expects_too_little", "more bytes arrive than are expected", "tma.cuh"),
        ("arrives_twice", "one arrival more than is expected", "hopper_kernels.cuh"),
        ("no_barrier", "no mbarrier at dynamic shared memory + 8192: not initialised, or overwritten", "hopper_kernels.cuh"),
        ("barrier_without_fence", "without a fence after its init", "tma.cuh"),
        ("no_wgmma_fence", "a wgmma without wgmma.fence", "wgmma.cuh"),
        ("no_commit", "reads registers of a wgmma in flight", "hopper_kernels.cuh"),
        ("reads_accumulators_in_flight", "reads registers of a wgmma in flight", "hopper_kernels.cuh"),
        ("writes_accumulators_in_flight", "writes registers of a wgmma in flight", "hopper_kernels.cuh"),
        ("overwrites_operand_in_flight", "stores what is still read, dynamic shared memory + ", "hopper_kernels.cuh"),
        ("one_warp_is_missing", "another warp of the warpgroup", ""),
        ("returns_in_flight", "returns before its wgmma has ended", "wgmma.cuh"),
        ("misaligned_operand", "does not begin where the swizzle's pattern does", "wgmma.cuh"),
        ("stores_without_fence", "without a fence.proxy.async since", "wgmma.cuh"),
    ],
)  # fmt: skip
def test_faults_around_a_product(fault: str, expected: str, where: str) -> None:
    for text in faults("product", f"Fault::{fault}", threads=160):
        assert expected in text and where in text, text


UNORDERED = ("what has not arrived yet", "and no barrier is between")


@pytest.mark.parametrize("fault", ["loads_before_arrival", "multiplies_before_arrival"])
def test_tma_loads_without_a_wait(fault: str) -> None:
    for text in faults("product", f"Fault::{fault}", threads=160):
        assert any(each in text for each in UNORDERED) and "hopper_kernels.cuh:" in text, text


def test_tma_overwrites_an_operand() -> None:
    """Its mbarrier may be two phases ahead when other threads wait for the first phase."""
    for text in faults("product", "Fault::overwrites_by_tma", threads=160):
        assert any(each in text for each in (*UNORDERED, "overwrites what is still in use", "a deadlock")), text


# ---- TMA


LOADED = [(0, 0, 0, 0), (64, 1, 8, 1), (-16, 2, -3, 0), (48, 0, 90, 1), (0, 3, 0, 0), (0, 0, 500, 0)]


def box(at: At, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A mask of the tokens and elements that exist in x, and their indices."""
    tokens, elements = at[2] + torch.arange(ROWS), at[0] + torch.arange(64)
    exists = ((tokens >= 0) & (tokens < x.shape[1]))[:, None] & ((elements >= 0) & (elements < x.shape[3]))
    return exists & (0 <= at[1] < x.shape[2]) & (0 <= at[3] < x.shape[0]), tokens, elements


@pytest.mark.parametrize("load_at", LOADED)
@pytest.mark.parametrize("store_at", [(0, 0, 0, 0), (64, 0, 60, 1), (-8, 1, -1, 0), (0, 0, 0, 2)])
def test_boxes_of_a_tensor(load_at: At, store_at: At) -> None:
    """Outside of the tensor, loads give zeros and stores do nothing."""
    source, target = small_integers(2, 100, 3, 96), small_integers(2, 80, 2, 72)
    tile, expected = torch.zeros(ROWS, 64).bfloat16(), target.clone()
    exists, tokens, elements = box(load_at, source)
    rows, columns = exists.nonzero(as_tuple=True)
    tile[rows, columns] = source[load_at[3], tokens[rows], load_at[1] % 3, elements[columns]]
    exists, tokens, elements = box(store_at, target)
    rows, columns = exists.nonzero(as_tuple=True)
    expected[store_at[3] % 2, tokens[rows], store_at[1], elements[columns]] = 2 * tile[rows, columns]
    for launch in results("copy", "Store::right", source=source, target=target, load_at=load_at, store_at=store_at):
        assert torch.equal(launch.target, expected)


def test_strided_tensors() -> None:
    source = small_integers(2, 70, 4, 128)[..., 1::2, 32:]
    assert not source.is_contiguous()
    for launch in results("copy", "Store::right", source=source, load_at=(16, 1, 3, 1)):
        assert torch.equal(launch.target[0, :, 0], 2 * source[1, 3:67, 1, 16:80])


@pytest.mark.parametrize(
    "fault, expected",
    [
        ("without_fence", "a TMA store takes dynamic shared memory + "),
        ("overwrites", "stores what is still read, dynamic shared memory + 5: a TMA store"),
        ("no_wait", "returns before its TMA store has read shared memory"),
    ],
)
def test_faults_of_stores(fault: str, expected: str) -> None:
    for text in faults("copy", f"Store::{fault}"):
        assert expected in text and "hopper_kernels.cuh:" in text, text


# ---- Rings


@pytest.mark.parametrize("ring", ["right", "asks"])
def test_a_ring(ring: str) -> None:
    source = small_integers(1, 5 * ROWS, 1, 64)
    for launch in results("ring", f"Ring::{ring}", source=source, chunks=5, threads=160):
        expected = source[0, :, 0, 0].float().view(5, ROWS).sum(0)
        assert torch.equal(launch.data[:128], expected.repeat(2))


@pytest.mark.parametrize("fault", ["no_wait_for_empty", "releases_too_early"])
def test_races_of_rings(fault: str) -> None:
    for text in faults("ring", f"Ring::{fault}", source=small_integers(1, 5 * ROWS, 1, 64), chunks=5, threads=160):
        assert any(each in text for each in (*UNORDERED, "one arrival more")), text


def test_a_ring_without_a_producer() -> None:
    for text in faults("ring", "Ring::waits_for_a_phase_too_many", chunks=1, threads=160):
        assert "a deadlock: from thread 0 on mbarrier at dynamic shared memory + " in text
        assert "(phase 0: 1 of 1 arrivals and 0 bytes are missing; initialised" in text


# ---- Named barriers


def test_a_named_barrier_orders_stores_and_loads() -> None:
    for launch in results("named", "Named::right"):
        assert torch.equal(launch.data[:64], torch.arange(64.0) + torch.arange(64.0, 128))


@pytest.mark.parametrize(
    "fault, expected",
    [
        ("part_of_a_warp", "complete with part of the warp of thread"),
        ("other_counts", "threads, where others expect"),
        ("nobody_comes", "on named barrier 9 (64 of 128 threads are there)"),
        ("comes_twice", "a second time at named barrier 9"),
    ],
)
def test_faults_of_named_barriers(fault: str, expected: str) -> None:
    found = faults("named", f"Named::{fault}")
    assert all(expected in text for text in found), found


# ---- Clusters


def test_a_cluster_loads_for_all_its_blocks() -> None:
    source = small_integers(1, ROWS, 1, 64)
    for launch in results("multicast", "Cluster::right", target=source, target_tokens=32, blocks=2, cluster=2):
        assert torch.equal(launch.data[:128], source[0, :, 0, 0].float().repeat(2))


@pytest.mark.parametrize(
    "fault, expected", [("no_cluster_barrier", ("may not have begun", "no mbarrier")), ("leaves_early", ("return",))]
)
def test_faults_of_clusters(fault: str, expected: tuple[str, ...]) -> None:
    options = {"target": small_integers(1, ROWS, 1, 64), "target_tokens": 32, "blocks": 2, "cluster": 2}
    for text in faults("multicast", f"Cluster::{fault}", **options):
        assert any(each in text for each in expected), text


# ---- Blocks that wait for others


def test_a_block_waits_for_an_earlier_one() -> None:
    for launch in results("hands_over", "Order::right", blocks=2, aliased=True):
        assert launch.data[256:384].int().tolist() == list(range(128))


@pytest.mark.parametrize(
    "fault, expected",
    [
        ("waits_for_a_later_block", "a deadlock: from thread 0 on ld.acquire of a value that no thread of this or an earlier"),
        ("no_proxy_fence", "reads global memory that this launch has stored, without fence.proxy.async between"),
    ],
)
def test_faults_between_blocks(fault: str, expected: str) -> None:
    for text in faults("hands_over", f"Order::{fault}", blocks=2, aliased=True):
        assert expected in text and "hopper_kernels.cuh:" in text, text
