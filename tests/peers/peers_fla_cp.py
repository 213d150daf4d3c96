"""FLA's tests/context_parallel/test_cp_gdn.py and test_cp_conv.py, with the contexts, rule and convolution of
`gdn_cuda.compat.fla` in the processes that they start. What they compare with is the same function in one process."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import peers_cpu
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

EXCLUDED: dict[str, str] = {}
ONE_OF: dict[str, int] = {}


def prepare() -> None:
    """Nothing is installed: processes get the functions by name."""


def adapt(module: ModuleType) -> None:
    module.mp = SimpleNamespace(start_processes=partial(_start, module.__file__))  # type: ignore[attr-defined]


def _start(file: str, worker: Callable[..., None], args: tuple[Any, ...], nprocs: int, **how: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_run, (file, worker.__name__, args, f"{folder}/found"), nprocs, **how)


def _run(rank: int, file: str, worker: str, args: tuple[Any, ...], rendezvous: str) -> None:
    from gdn_cuda.compat import fla

    if peers_cpu.ON_CPU:
        torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with peers_cpu.importing():
        spec.loader.exec_module(module)
    peers_cpu.adapt(module)
    for name in ("build_cp_context", "chunk_gated_delta_rule", "causal_conv1d"):
        if hasattr(module, name):
            setattr(module, name, getattr(fla, name))
    module.init_distributed = partial(_init_process_group, rendezvous)  # type: ignore[attr-defined]
    with peers_cpu.running():
        getattr(module, worker)(rank, *args)


def _init_process_group(rendezvous: str, rank: int, world_size: int) -> None:
    """Without a port, which other workers of pytest would take, too."""
    os.environ["LOCAL_RANK"] = str(rank)
    backend = "gloo" if peers_cpu.ON_CPU else "nccl"
    if not peers_cpu.ON_CPU:
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
