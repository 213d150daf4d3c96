"""Run by tests: two processes with gloo on a CPU, the second a fork of the first, or the one of a rank with NCCL on two GPUs. A
gradient that differs from that of one process is an error; a process that waits for ever ends by an alarm.

    python fsdp_child.py FILE cpu|cuda [RANK]    # a path where no file is, in which the processes find each other
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from gdn_cuda.nn import GatedDeltaNet

WORLD, PATIENCE = 2, 60  # processes, seconds
POLICIES = {
    torch.float32: MixedPrecisionPolicy(),
    torch.bfloat16: MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}
HIDDEN, HEADS = 24, (1, 3)  # three heads are two on one process, and one on the other


def two_layers() -> nn.Sequential:
    """The same values in every process and on every device."""
    torch.manual_seed(0)
    return nn.Sequential(*(GatedDeltaNet(HIDDEN, HEADS, 16, 8, norm_eps=1e-3, conv_bias=True) for _ in range(2)))


def loss(model: nn.Module, rank: int) -> Tensor:
    """Every process has tokens of its own."""
    x = torch.randn(2, 70, HIDDEN, generator=torch.Generator().manual_seed(rank))
    like = next(model.parameters())
    return (model(x.to(like)).float() - x.to(like.device)).square().sum()


def in_one_process(device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """FSDP averages the gradients over processes, here in fp32."""
    model = two_layers().to(device, dtype)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = [torch.autograd.grad(loss(model, rank), parameters) for rank in range(WORLD)]
    return {name: torch.stack([g.float() for g in each]).mean(0) for name, *each in zip(names, *found, strict=True)}


def sharded(model: nn.Sequential, mesh: DeviceMesh, policy: MixedPrecisionPolicy, reshard: bool) -> nn.Sequential:
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return model


def check_gradients(mesh: DeviceMesh) -> None:
    for dtype, reshard in product(POLICIES, (True, False)):
        model = sharded(two_layers().to(mesh.device_type), mesh, POLICIES[dtype], reshard)
        loss(model, dist.get_rank()).backward()
        expected = in_one_process(mesh.device_type, dtype)
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor) and parameter.dtype == torch.float32, name
            found, wanted = parameter.grad.full_tensor(), expected[name]
            error = (found - wanted).norm() / wanted.norm()
            assert error < 1e-5, f"{name}, {dtype}, reshard_after_forward={reshard}: {error}"


def check_initial_values(mesh: DeviceMesh) -> None:
    """Of a layer that was made on meta, and sharded before it had values."""
    with torch.device("meta"):
        model = two_layers()
    sharded(model, mesh, MixedPrecisionPolicy(), True).to_empty(device=mesh.device_type)
    for layer in model:
        for parameter in layer.parameters():
            nn.init.constant_(parameter, torch.nan)
        layer.reset_recurrence()
        rate, dt = layer.A_log.full_tensor().exp(), nn.functional.softplus(layer.dt_bias.full_tensor())
        assert ((rate > 0) & (rate < 16.001)).all() and ((dt > 0.000999) & (dt < 0.1001)).all()
        assert all(parameter._no_weight_decay for parameter in (layer.A_log, layer.dt_bias))


def main(file: str, device: str, alone: str | None = None) -> None:
    torch.set_num_threads(1)
    other = os.fork() if alone is None else 0  # before there are threads
    signal.alarm(PATIENCE)
    rank = int(alone) if alone is not None else 0 if other else 1
    patience = timedelta(seconds=PATIENCE)
    # Autograd starts a thread for each device at the first backward. Tracing DTensors without a GPU fakes eight, and once two
    # of their threads aborted the process as they started.
    torch.ones((), requires_grad=True).backward()
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=WORLD, timeout=patience)
    mesh = init_device_mesh(device, (WORLD,))
    check_gradients(mesh)
    check_initial_values(mesh)
    dist.barrier()
    dist.destroy_process_group()
    if other:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) != 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
