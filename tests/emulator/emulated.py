"""Runs the kernels of gdn_cuda's operators on CPU tensors: `with emulated(): gdn_cuda.selective_scan(…)`.

Each call runs twice with opposite orders of threads, on memory that ends at protected pages. Both runs must give the same bits
and change no memory but the elements of arguments that the operator's schema marks as written. EMULATOR_ORDERS, if set, is the
number of such pairs of runs.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import emulator_build
import torch
from devices import Device
from guarded import Guarded, bits, bytes_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)  # the implementations for CUDA tensors
_MOST_CALLERS = 6
_SEED = 7
_NEW = ("aten::new_empty", "aten::empty", "aten::empty_strided", "aten::empty_like")


@functools.cache
def library() -> ctypes.CDLL:
    path = emulator_build.library()
    torch.ops.load_library(path)
    loaded = ctypes.CDLL(str(path))
    loaded.emulator_launches.restype = loaded.emulator_blocks.restype = ctypes.c_size_t
    loaded.emulator_launched.argtypes = loaded.emulator_blocks.argtypes = (ctypes.c_size_t,)
    loaded.emulator_schedule.argtypes = (ctypes.c_uint, ctypes.c_bool)
    loaded.emulator_launched.restype = loaded.emulator_launch.restype = ctypes.c_char_p
    loaded.emulator_launch.argtypes = (*(ctypes.c_char_p,) * 2, *(ctypes.c_uint,) * 4, ctypes.c_void_p)
    grid = ctypes.POINTER(ctypes.c_uint)
    loaded.emulator_launch_grid.argtypes = (*(ctypes.c_char_p,) * 2, grid, *(ctypes.c_uint,) * 3, ctypes.c_void_p)
    loaded.emulator_launch_grid.restype = ctypes.c_char_p
    loaded.emulator_set_loader(_load_kernel)
    return loaded


@ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
def _load_kernel(kernel: bytes, configuration: bytes) -> None:
    """An error cannot pass through C++: `with_lines` raises it."""
    try:
        ctypes.CDLL(str(emulator_build.kernel_library(kernel.decode(), configuration.decode())))
    except (OSError, RuntimeError) as error:
        _load_errors.append(error)


_load_errors: list[Exception] = []


def launched(first: int = 0) -> set[str]:
    """Kernels with their configurations, from this process's launch number `first` on."""
    return set(library().emulator_launched(first).decode().splitlines())


@contextmanager
def counted_blocks() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the number of blocks launched since, in one order of threads."""
    first = library().emulator_launches()
    yield lambda: library().emulator_blocks(first) // len(_orders())


@contextmanager
def emulated(
    multiprocessors: int = 132, shared_bytes: int = 227 << 10, capability: int = 90
) -> Iterator[Callable[[], set[str]]]:
    """Heuristics choose for the device of the arguments. Yields a function that returns the kernels launched since."""
    library().emulator_device(capability, multiprocessors, shared_bytes)
    with _Emulated():
        yield functools.partial(launched, library().emulator_launches())


EMULATOR = Device("cpu", emulated)


class _Emulated(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "gdn_cuda" or not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CUDA"):
            return func(*args, **(kwargs or {}))
        ours = getattr(torch.ops.gdn_emulated, func.overloadpacket.__name__).default
        declared = ours._schema.arguments  # torch leaves out the last arguments that have their defaults
        given = [*args, *(argument.default_value for argument in declared[len(args) :])]
        given = tree_map_only(Tensor, lambda x: x.resolve_conj().resolve_neg(), given)
        written = [argument.is_write for argument in declared]
        assert len(given) == len(written) and not kwargs, "torch passes all arguments by position"
        orders = _orders()
        results, after = _run(ours, given, *orders[0])
        for order in orders[1:]:
            for mine, other in zip(_tensors([results, after]), _tensors(_run(ours, given, *order)), strict=True):
                same = mine.stride() == other.stride() and torch.equal(bits(mine), bits(other))
                assert same, f"{ours}: another order of threads gives other results: a race"
        changes = [(x, y, is_written) for x, y, is_written in zip(given, after, written, strict=True) if isinstance(x, Tensor)]
        take_over(changes, str(ours))
        return results


def _orders() -> list[tuple[int, bool]]:
    """(seed, whether it is reversed) of each run."""
    pairs = int(os.environ.get("EMULATOR_ORDERS", "1"))
    return [(seed, reverse) for seed in range(_SEED, _SEED + pairs) for reverse in (False, True)]


def take_over(pairs: list[tuple[Tensor, Tensor, bool]], operator: str) -> None:
    """Copies written arguments back, from (argument, its copy after the call, whether it is written). Nothing else in their
    storages may have changed."""
    for before, now, is_written in pairs:
        if is_written:
            before.copy_(now)
    for before, now, _ in pairs:
        assert torch.equal(bytes_of(before), bytes_of(now)), f"{operator}: writes to memory that it only reads"


def _run(operator: Any, given: list[Any], seed: int, reverse: bool) -> tuple[Any, list[Any]]:
    """The results, and the arguments after the call."""
    memory = Guarded()
    copies = tree_map_only(Tensor, memory.copy, given)
    library().emulator_schedule(seed, reverse)
    with _NewTensors(memory):
        try:
            results = operator.redispatch(_CUDA, *copies)
        except RuntimeError as error:
            raise RuntimeError(with_lines(str(error))) from None
    memory.check()
    return results, copies


class _NewTensors(TorchDispatchMode):
    """Makes the operator's allocations guarded, and NaN until written."""

    def __init__(self, memory: Guarded):
        super().__init__()
        self.memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Operators allocate outputs on their inputs' device, which they take for a GPU.
        made = func(*args, **({} if kwargs is None else kwargs | {"device": "cpu"} if "device" in kwargs else kwargs))
        return self.memory.like(made) if func.name().partition(".")[0] in _NEW else made


def _tensors(x: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(x) if isinstance(leaf, Tensor)]


def with_lines(text: str) -> str:
    """An error of the emulator, with lines of the kernel's source for places in its libraries: the innermost first, then its
    callers. Raises what kept a kernel from being built."""
    if _load_errors:
        raise _load_errors.pop()

    def lines(found: re.Match[str]) -> str:
        frames = [frame for place in found[1].split(" < ") for frame in _frames(*place.split("+"))]
        in_kernels = [frame for frame in frames if ".cuh:" in frame][:_MOST_CALLERS]
        return " at " + " < ".join(in_kernels or frames[:1]) if frames else found[0]

    place = r"\w+\.so\+0x[0-9a-f]+"
    return re.sub(f" at ({place}(?: < {place})*)", lines, text)


def _frames(library: str, offset: str) -> list[str]:
    """The lines there, the inlined functions' first; none without binutils."""
    command = ["addr2line", "-i", "-e", str(emulator_build.FOLDER / library), offset]
    try:
        where = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    return [Path(line.partition(" ")[0]).name for line in where]
