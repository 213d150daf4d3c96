"""PEERS_DEVICE=cpu: tests that name the device "cuda" get CPU tensors, which gdn_cuda supports too, to try the plugin without a
GPU. References in Triton, those of vLLM's and SGLang's recurrences, fail then: Triton's interpreter cannot run them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

ON_CPU = os.environ.get("PEERS_DEVICE") == "cpu"
DEVICE = "cpu" if ON_CPU else "cuda"


def capability() -> tuple[int, int]:
    return (9, 0) if ON_CPU else torch.cuda.get_device_capability()


def _cpu(device: Any) -> Any:
    return "cpu" if str(device).startswith("cuda") else device


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _cpu(kwargs["device"])
        return function(*(_cpu(x) if isinstance(x, str | torch.device) else x for x in args), **kwargs)


class _Torch(ModuleType):
    """torch, except for the names that need a GPU."""

    device = staticmethod(lambda name, *index: torch.device(_cpu(name), *index))
    cuda = SimpleNamespace(
        synchronize=lambda *device: None,
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        is_available=lambda: True,
        device_count=lambda: 4,
        get_device_capability=lambda *device: capability(),
        empty_cache=lambda: None,
        is_current_stream_capturing=lambda: False,
        device=lambda *device: nullcontext(),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def adapt(module: ModuleType) -> None:
    if ON_CPU and hasattr(module, "torch"):
        module.torch = _Torch("torch")  # type: ignore[attr-defined]
        for value in vars(module).values():
            if getattr(value, "__unittest_skip__", False):
                value.__unittest_skip__ = False


@contextmanager
def importing() -> Iterator[None]:
    """While tests are imported, they query whether there is a GPU, and its capability."""
    with pytest.MonkeyPatch.context() as patch:
        if ON_CPU:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "get_device_capability", lambda *device: capability())
        with running():
            yield


def running() -> AbstractContextManager[Any]:
    return _OnCpu() if ON_CPU else nullcontext()
