"""Results whose length is an integer argument: a result larger than any memory is refused by name, before it is allocated."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gdn_cuda
from gdn_cuda import _C
from gdn_cuda.nn import S4DKernel, S4Kernel
from gdn_cuda.structured import reference_sums


def kernel(module: Any, device: str = "cpu", l_max: int | None = None) -> Any:
    H, N = 2, 4
    config = {"N": N, "H": H, "channels": 1, "rank": 1, "repeat": 1, "disc": "zoh"}
    config |= {"real_transform": "exp", "imag_transform": "none", "dt_transform": "exp"}
    config |= {name: torch.randn(1, H, N, 2, device=device) for name in ("B", "C", "P")}
    config |= {"A_real": torch.zeros(H, N, device=device), "A_imag": torch.randn(H, N, device=device)}
    return module(H, l_max, 1, config | {"inv_dt": torch.full((H, 1), -3.0, device=device)})


def one(device: str) -> torch.Tensor:
    return torch.ones(1, 1, device=device)


def pool(device: str) -> torch.Tensor:
    """A pool of many slots in the memory of one."""
    return torch.zeros(1, 4, 16, 16, device=device).expand(2**36, 4, 16, 16)


LONG = 2**39
CALLS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "log_vandermonde": ("L", lambda device: gdn_cuda.log_vandermonde(one(device), -one(device), LONG)),
    "hyena_filter": (
        "L",
        lambda device: gdn_cuda.hyena_filter(one(device).expand(2**20, 1), -one(device).expand(2**20, 1), 2**30),
    ),
    "replay_buffers": ("state_pool", lambda device: gdn_cuda.replay_buffers(pool(device), 16, 4)),
    "ring_buffers": ("state_pool", lambda device: gdn_cuda.ring_buffers(pool(device), 16, 4)),
    "ssd_replay_buffers": ("state_pool", lambda device: gdn_cuda.ssd_replay_buffers(pool(device), 16, 4)),
    "S4Kernel": ("L", lambda device: kernel(S4Kernel, device)(L=LONG)),
    "S4DKernel": ("L", lambda device: kernel(S4DKernel, device)(L=LONG)),
}
BY_NAME = pytest.mark.parametrize("name", CALLS)


def refused(name: str, device: str) -> None:
    argument, call = CALLS[name]
    with pytest.raises(ValueError, match=rf"^{name}: {argument}: expected a result of at most \d+ bytes, as memory has, got "):
        call(device)


@BY_NAME
def test_a_result_that_memory_does_not_hold_is_refused(name: str) -> None:
    refused(name, "cpu")


@BY_NAME
def test_a_large_result_is_refused_for_meta_tensors_and_in_a_trace(name: str) -> None:
    refused(name, "meta")
    with FakeTensorMode():
        refused(name, "cpu")


@pytest.mark.parametrize("name", ["log_vandermonde", "hyena_filter", "replay_buffers"])
def test_a_large_result_is_refused_in_an_explained_call(name: str) -> None:
    argument, call = CALLS[name]
    with pytest.raises(
        ValueError, match=rf"^{name}: {argument}: expected a result of at most {2**40} bytes, as memory has, got "
    ):
        gdn_cuda.explain(lambda: call("meta"))


@pytest.mark.parametrize("module", [S4Kernel, S4DKernel])
def test_a_small_rate_makes_a_kernel_too_long(module: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{module.__name__}: L: expected a result of at most"):
        kernel(module, l_max=64)(rate=2.0**-40)


def test_a_callers_output_of_that_length_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("log_vandermonde: L: expected a result of at most")):
        gdn_cuda.log_vandermonde(one("cpu"), -one("cpu"), LONG, out=torch.zeros(1, 1))


def test_the_limit_is_the_machines_memory() -> None:
    on_cpu, on_gpu = _C.most_result_bytes(False), _C.most_result_bytes(True)
    assert 2**28 < on_cpu < 2**46
    assert on_gpu == 2**40


class LargestInFloat64(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.dtype == torch.float64:
                self.numel = max(self.numel, x.numel())
        return result


def test_log_vandermonde_sums_in_float64_for_some_points_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call needs no more memory than its result."""
    monkeypatch.setattr(reference_sums, "BYTES", 2**16)
    ones = torch.ones(1, 1, dtype=torch.complex64)
    with LargestInFloat64() as seen:
        out = reference_sums.log_vandermonde(SimpleNamespace(v=ones, x=-ones, L=2**16))
    assert out.shape == (1, 2**16)
    assert seen.numel <= 2**16 // 8
