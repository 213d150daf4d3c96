"""common/transposed_copy in the emulator: alone, on any bits and from memory at any element, and in calls of selective_scan."""

from __future__ import annotations

import ctypes
import mmap
import tempfile

import pytest
import torch
from emulated import emulated, library, with_lines
from guarded import Guarded
from selective_checks import check
from selective_inputs import channels_last, identity_scan, selective_inputs
from selective_on_device import scan
from torch import Tensor

BITS = {2: torch.int16, 4: torch.int32}
BOTH_SIZES = pytest.mark.parametrize("element_bytes", BITS)


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "to")),
        *((name, ctypes.c_int64) for name in ("batch", "row")),
        *((name, ctypes.c_int) for name in ("rows", "columns")),
        *((name, ctypes.c_bool) for name in ("loads_vectors", "stores_vectors")),
    ]


def launch(source: Tensor, to: int, loads_vectors: bool, stores_vectors: bool, reverse: bool) -> None:
    """Launches the kernel on a (batch, row, column) tensor."""
    batches, rows, columns = source.shape
    batch, row, _ = source.stride()
    arguments = Arguments(source.data_ptr(), to, batch, row, rows, columns, loads_vectors, stores_vectors)
    blocks = batches * -(-rows // 64) * -(-columns // 64)
    library().emulator_schedule(7, reverse)
    kernel, configuration = b"common/transposed_copy", f"{{.element_bytes = {source.element_size()}}}".encode()
    threads = 64 * source.element_size()
    fault = library().emulator_launch(kernel, configuration, blocks, threads, 0, 1, ctypes.byref(arguments)).decode()
    assert not fault, with_lines(fault)


def check_alone(source: Tensor, loads_vectors: bool = False, stores_vectors: bool = False) -> None:
    expected = source.mT.contiguous()
    for reverse in (False, True):
        memory = Guarded()
        ours, to = memory.copy(source), memory.like(torch.empty_like(expected))
        launch(ours, to.data_ptr(), loads_vectors, stores_vectors, reverse)
        memory.check()
        assert torch.equal(to, expected) and torch.equal(ours, source)


def any_bits(element_bytes: int, *shape: int, seed: int) -> Tensor:
    """Random bits, among them NaN with any payload."""
    limits = torch.iinfo(BITS[element_bytes])
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min, limits.max + 1, shape, generator=rng, dtype=torch.int64).to(BITS[element_bytes])


# ---- The kernel alone

SIZES = [(1, 1, 1), (1, 1, 70), (1, 70, 1), (2, 64, 64), (3, 63, 65), (1, 2, 200), (1, 130, 3), (2, 65, 127), (70, 3, 2)]


@BOTH_SIZES
@pytest.mark.parametrize("shape", SIZES)
def test_sizes(shape: tuple[int, int, int], element_bytes: int, seed: int) -> None:
    check_alone(any_bits(element_bytes, *shape, seed=seed))


@BOTH_SIZES
@pytest.mark.parametrize("rows, columns", [(8, 8), (64, 64), (72, 136), (8, 200), (136, 64), (192, 8)])
@pytest.mark.parametrize("loads_vectors", [False, True])
@pytest.mark.parametrize("stores_vectors", [False, True])
def test_vectors(rows: int, columns: int, loads_vectors: bool, stores_vectors: bool, element_bytes: int, seed: int) -> None:
    check_alone(any_bits(element_bytes, 2, rows, columns, seed=seed), loads_vectors, stores_vectors)
    if loads_vectors:
        rows += 0 if stores_vectors else 1
        padded = any_bits(element_bytes, 3, rows, columns + 24, seed=seed)
        check_alone(padded[::2, :, 8 : columns + 8], True, stores_vectors)  # columns of the projection of another tensor
    if stores_vectors:
        check_alone(any_bits(element_bytes, 2, rows, columns + 5, seed=seed)[..., 1:-1], False, True)


@BOTH_SIZES
@pytest.mark.parametrize("begin", range(8))
def test_rows_from_every_element(begin: int, element_bytes: int, seed: int) -> None:
    """Other values stand before and after each row; the last row ends with the memory."""
    more = any_bits(element_bytes, 2, 66, 83, seed=seed)
    check_alone(more[:, :, begin:])
    check_alone(more[:, begin:, 3 : 3 + begin + 1])


@BOTH_SIZES
def test_rows_and_batches_that_are_one(element_bytes: int, seed: int) -> None:
    """Expanded tensors, with strides of zero."""
    row = any_bits(element_bytes, 1, 1, 72, seed=seed)
    check_alone(row.expand(2, 9, 72))
    check_alone(row.expand(2, 16, 72), True, True)


@BOTH_SIZES
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("rows, row, batch", [(2, (3 << 31) + 8, (1 << 31) + 16), (66, (1 << 27) + 8, (1 << 26) + 16)])
def test_offsets_beyond_2_to_the_31_elements(
    rows: int, row: int, batch: int, vectors: bool, element_bytes: int, seed: int
) -> None:
    """The memory is a sparse file."""
    columns = 72
    size = (batch + (rows - 1) * row + columns) * element_bytes
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
    source = torch.frombuffer(memory, dtype=BITS[element_bytes]).as_strided((2, rows, columns), (batch, row, 1))
    source.copy_(any_bits(element_bytes, *source.shape, seed=seed))
    to = torch.zeros(2, columns, rows, dtype=source.dtype)
    launch(source, to.data_ptr(), vectors, False, False)
    assert torch.equal(to, source.mT)


# ---- In calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [False, True], ids=["to-tokens", "to-channels"])
@pytest.mark.parametrize("dim, length", [(1, 1), (1, 70), (70, 1), (16, 136), (72, 8), (37, 70), (72, 67), (35, 72), (3, 0)])
def test_a_scan_that_returns_u_returns_it(dim: int, length: int, last: bool, dtype: torch.dtype, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    u = torch.randn(2, dim, length, generator=rng).to(dtype)
    u = u if last else channels_last(u)
    with emulated() as launched:
        out, gradient = identity_scan(u, last)
    assert torch.equal(out, u) and torch.equal(gradient, u)
    assert not u.numel() or (out.mT if last else out).is_contiguous()
    copied = f"common/transposed_copy{{.element_bytes = {u.element_size()}}}"
    assert min(dim, length) <= 1 or copied in launched()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True], ids=["to-tokens", "to-channels"])
def test_parts_of_other_tensors(dtype: torch.dtype, last: bool, seed: int) -> None:
    more = torch.randn(3, 40, 80, generator=torch.Generator().manual_seed(seed)).to(dtype)
    for part in (more[::2, 8:, 16:], more[1:, 3:-2, 5:-1], more[:2, :, 1:], more[:, 1:, :-8], more[:, ::2, 8:], more[..., ::2]):
        u = part if last else part.mT
        with emulated():
            out, gradient = identity_scan(u, last)
        assert torch.equal(out, u) and torch.equal(gradient, u)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("other", [("u",), ("z", "delta"), ("delta_a",)])
@pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])
@pytest.mark.parametrize("dim, length", [(16, 72), (9, 67)])
def test_mixed_layouts(dim: int, length: int, last: bool, other: tuple[str, ...], dtype: torch.dtype, seed: int) -> None:
    x = selective_inputs(seed, dim=dim, length=length, N=16, dtype=dtype, last=last)
    mixed = x | {k: x[k].contiguous() if last else channels_last(x[k]) for k in other}
    check(mixed, seed)
    with emulated():
        for found, wanted in zip(scan(**mixed), scan(**x), strict=True):
            assert torch.equal(found, wanted)
