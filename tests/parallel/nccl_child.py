"""Run by tests: the process of one of two ranks, with NCCL on two GPUs. Errors larger than those of one GPU and runs with
different bits are an error; a process that waits for ever ends by an alarm.

    python nccl_child.py FILE RANK    # a path where no file is, in which the processes find each other
"""

from __future__ import annotations

import signal
import sys
from datetime import timedelta
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "gdn")]

import parts_on_gpu as parts
import torch
import torch.distributed as dist
from gloo_child import check_unequal_contexts
from parallel_cases import SPLITS

from gdn_cuda import parallel
from gdn_cuda.parallel.ranks import ProcessRanks

WORLD, PATIENCE = 2, 240  # processes, seconds


def check_a_tensor_on_the_cpu() -> None:
    """NCCL alone has no backend for it."""
    context = parallel.context(dist.group.WORLD, [20])
    try:
        parallel.unshard(torch.zeros(1, context.tokens, 2), context)
    except ValueError as error:
        assert str(error).endswith("a device for which the group has a backend, got one on cpu"), error
    else:
        raise AssertionError("expected an error, got none")


def main(file: str, rank: int) -> None:
    signal.alarm(PATIENCE)
    patience = timedelta(seconds=PATIENCE)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=WORLD, timeout=patience)
    assert dist.group.WORLD is not None
    ranks = ProcessRanks(dist.group.WORLD)
    for case in parts.CASES:
        call = parts.call_of(case, seed=0)
        for split in SPLITS:
            parts.check_errors(ranks, split, call)
            parts.check_bits(ranks, split, call)
    call = parts.call_of(parts.CASES[3], seed=0)
    for split in SPLITS:
        parts.check_layer(ranks, split, seed=0)
        for mode in ("doubling", "ring"):
            parts.check_errors(ranks, split, call, mode)
    for name in parts.MODULES:
        parts.check_module(ranks, SPLITS[0], name)
    check_unequal_contexts(dist.group.WORLD, rank, WORLD)
    check_a_tensor_on_the_cpu()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
