"""Run by tests: four processes, three of them forks of the first, with gloo, in groups of four, three and two. What differs
from one process is an error; a process that waits for ever ends by an alarm.

    python gloo_child.py FILE    # a path where no file is, in which the processes find each other
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "gdn")]

import torch
import torch.distributed as dist
from fla_cases_on_ranks import LAYOUTS, as_of_fla, check_fla
from layer_cases_on_ranks import (
    check_convolution,
    check_layer,
    check_tokens,
    convolutions,
    convolved,
    drawn,
    layer_in_one_process,
    layers,
)
from module_cases_on_ranks import check_module, module_in_one_process, modules
from oracles import divide
from parallel_cases import (
    SPLITS,
    cases,
    channel_cases,
    channels_in_one_process,
    check,
    check_broadcast,
    check_channels,
    in_one_process,
    modes,
)
from scan_cases_on_ranks import check_scan, scanned, scans
from ssd_cases_on_ranks import check_ssd, ssd_scanned, ssd_scans
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from gdn_cuda import parallel
from gdn_cuda.parallel.ranks import ProcessRanks, Ranks

WORLD, PATIENCE = 4, 280  # processes, seconds


def message_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return str(error)
    raise AssertionError("expected an error, got none")


def check_unequal_contexts(group: Any, rank: int, world: int) -> None:
    """Every rank says what it got, and what one of the others did; nobody waits for a rank whose arguments are refused."""
    said = message_of(lambda: parallel.context(group, [10, 5 + (rank == world - 1)]))
    assert "lengths=[10, 5]" in said and "lengths=[10, 6]" in said and f"rank {rank} " in said, said
    said = message_of(lambda: parallel.context(group, [20], layout="zigzag" if rank else "contiguous"))
    assert "fragments=" in said, said
    said = message_of(lambda: parallel.context(group, [-1 if rank == 0 else 20]))
    assert "parallel.context: lengths: expected one integer or more, none negative, got -1" in said, said


def check_contexts_as_keys(world: int) -> None:
    made = [parallel.context(dist.group.WORLD, [20, 30]) for _ in range(2)]
    assert made[0] == made[1] and len({*made, parallel.context(dist.group.WORLD, [30, 20])}) == 2
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("dp", "cp"))
    assert parallel.context(mesh["cp"], [20, 30]).fragments == made[0].fragments
    said = message_of(lambda: parallel.context(mesh, [20]))
    assert said == "parallel.context: group: expected a DeviceMesh of one dimension, mesh['cp'], got one of 2", said


def check_a_device_without_backend() -> None:
    context = parallel.context(dist.group.WORLD, [20])
    x = torch.zeros(1, context.tokens, 2, 8, device="meta")
    said = message_of(lambda: parallel.unshard(x, context))
    assert said.endswith("expected a tensor on a device for which the group has a backend, got one on meta"), said
    said = message_of(lambda: parallel.chunked_forward(x, x, x, None, None, context=context))
    assert said.startswith("parallel.chunked_forward: query: expected a tensor on a device"), said


def check_recomputation(group: Any) -> None:
    """Both activation checkpoints, and the one that compiled code takes in one graph, have the bits of a plain call."""
    context = parallel.context(group, [70, 30], fragments=[[(0, 40)], [(40, 100)]])
    x = {name: parallel.shard(drawn(1, 100, 2, 8, seed=i), context) for i, name in enumerate(("query", "key", "value"))}
    x["key"] = torch.nn.functional.normalize(x["key"], dim=-1)

    def plain(*rows: Tensor) -> tuple[Tensor, Tensor]:
        out, last = parallel.chunked_forward(*rows, None, None, context=context)
        assert last is not None
        return out.sin(), last

    def again(*rows: Tensor) -> Any:
        return checkpoint(plain, *rows, use_reentrant=False)

    def run(function: Callable[..., Any]) -> list[Tensor]:
        leaves = [y.clone().requires_grad_() for y in x.values()]
        out, last = function(*leaves)
        (out.sum() + last.square().sum()).backward()
        return [out.detach(), last.detach(), *(y.grad for y in leaves if y.grad is not None)]

    wanted = run(plain)
    compiled = torch.compile(again, fullgraph=True, backend="aot_eager")
    for function in (again, partial(checkpoint, plain, use_reentrant=True), compiled):
        assert all(torch.equal(*pair) for pair in zip(run(function), wanted, strict=True)), function


def check_a_rank_that_raises(group: Any, rank: int) -> None:
    """The others wait for as long as the group waits, and no longer."""
    context = parallel.context(group, [20])
    x = torch.zeros(1, context.tokens + (rank == 0), 2, 8)
    said = message_of(lambda: parallel.chunked_forward(x, x, x, None, None, context=context))
    assert ("rank 0 of 2" in said) == (rank == 0), said


def some_channel_cases() -> Iterator[Any]:
    """test_channel_gates.py has all."""
    return islice(channel_cases(), 0, None, 3)


def check_all(ranks: Ranks) -> None:
    """All cases on four ranks, and every second on three and on two."""
    some = slice(None) if ranks.size == WORLD else slice(ranks.size % 2, None, 2)
    for split, case, *mode in [*cases(), *modes()][some]:
        check(ranks, split, case, *mode)
    for split in SPLITS:
        check_broadcast(ranks, split)
        for dim in (0, 1, 2):
            check_tokens(ranks, split, 70, dim)
        check_tokens(ranks, split, 64 * ranks.size, 1)
        check_tokens(ranks, split, 0, 1)
    checks: dict[Callable[..., None], Iterator[Any]] = {
        check_channels: some_channel_cases(),
        check_convolution: convolutions(),
        check_layer: layers(),
        check_scan: scans(),
        check_ssd: ssd_scans(),
        check_module: modules(),
    }
    for function, every in checks.items():
        for each in [*every][some]:
            function(ranks, *each)


def oracles() -> Iterator[Callable[[], Any]]:
    """Each once."""
    calls: dict[Any, None] = dict.fromkeys((in_one_process, case) for _, case in cases())
    calls |= dict.fromkeys((channels_in_one_process, case) for _, case, _ in some_channel_cases())
    cases_by_function: dict[Any, Iterator[Any]] = {
        convolved: convolutions(),
        layer_in_one_process: layers(),
        scanned: scans(),
        ssd_scanned: ssd_scans(),
        module_in_one_process: modules(),
    }
    for function, every in cases_by_function.items():
        calls |= dict.fromkeys((function, *each[1:]) for each in every)
    return (partial(function, *key) for function, *key in calls)


def main(file: str) -> None:
    torch.set_num_threads(1)
    others, rank = [], 0
    for each in range(1, WORLD):  # before there are threads
        if (other := os.fork()) == 0:
            others, rank = [], each
            break
        others.append(other)
    signal.alarm(PATIENCE)
    patience = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD, timeout=patience)
    divide(oracles())
    for size in (4, 3, 2):
        group = dist.new_group(list(range(size)), timeout=patience)
        if rank < size:
            check_all(ProcessRanks(group))
            check_unequal_contexts(group, rank, size)
            for layout in LAYOUTS:
                check_fla(group, rank, size, layout, as_of_fla)
        dist.barrier()
    check_contexts_as_keys(WORLD)
    check_a_device_without_backend()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=3))
    if rank < 2:
        check_recomputation(dist.new_group([0, 1], use_local_synchronization=True))
        check_a_rank_that_raises(group, rank)
    dist.barrier()
    dist.destroy_process_group()
    ended = [os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) for other in others]
    sys.exit(any(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
