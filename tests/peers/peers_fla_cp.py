"""FLA's tests/context_parallel/test_cp_gdn.py, test_cp_kda.py and test_cp_conv.py, with the contexts, rules and convolution of
`gdn_cuda.compat.fla` in the processes that they start. What they compare with is the same function in one process, and for
Kimi Delta Attention FLA's recurrence in torch."""

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
import torch.nn.functional as F

EXCLUDED: dict[str, str] = {}
ONE_OF: dict[str, int] = {}


def prepare() -> None:
    """Nothing is installed: processes get the functions by name."""


def adapt(module: ModuleType) -> None:
    module.mp = SimpleNamespace(start_processes=partial(_start, module.__file__))  # type: ignore[attr-defined]


def _start(file: str, worker: Callable[..., None], args: tuple[Any, ...], nprocs: int, **how: Any) -> None:
    if peers_cpu.ON_CPU and worker.__name__ == "run_cp_kda_test_worker":
        args = _shorter(*args)
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_run, (file, worker.__name__, args, f"{folder}/found"), nprocs, **how)


def _shorter(world: int, test: str, tokens: int, heads: int, dim: int, lengths: list[int], *more: Any) -> tuple[Any, ...]:
    """On a CPU, a 20th of each length: autograd keeps 28 GB of 10240 tokens of the recurrence."""
    return world, test, tokens // 20, heads, dim, [each // 20 for each in lengths], *more


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
    for name in ("build_cp_context", "chunk_gated_delta_rule", "chunk_kda", "causal_conv1d"):
        if hasattr(module, name):
            setattr(module, name, getattr(fla, name))
    if hasattr(module, "naive_recurrent_kda"):
        module.F = SimpleNamespace(normalize=_in_fp32, logsigmoid=F.logsigmoid)  # type: ignore[attr-defined]
    module.init_distributed = partial(_init_process_group, rendezvous)  # type: ignore[attr-defined]
    with peers_cpu.running():
        getattr(module, worker)(rank, *args)


def _in_fp32(x: torch.Tensor, **how: Any) -> torch.Tensor:
    """F.normalize of references. In bf16 its gradients of q would differ from fp64's by 0.9 %, where tests accept 0.8 %; ours
    differ by 0.2 %."""
    return F.normalize(x.float(), **how)


def _init_process_group(rendezvous: str, rank: int, world_size: int) -> None:
    """Without a port, which other workers of pytest would take, too."""
    os.environ["LOCAL_RANK"] = str(rank)
    backend = "gloo" if peers_cpu.ON_CPU else "nccl"
    if not peers_cpu.ON_CPU:
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
