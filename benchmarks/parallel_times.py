"""`parallel.chunked_forward` on all GPUs of the machine beside `chunked_forward` of the same tokens on one:
`python benchmarks/parallel_times.py [--tokens 131072] [--peers]`. A process for each GPU, NCCL. Milliseconds of the slowest
rank, replays of a CUDA graph and, in brackets, calls as Python makes them; efficiency: one GPU's time by that and the number of
GPUs. Without two GPUs it runs small sizes on a CPU, only to test itself."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.gdn.measure_prefill import Shape, prefill_work

ON_GPU = torch.cuda.device_count() > 1
DEVICE, REPEAT = ("cuda", 5) if ON_GPU else ("cpu", 1)


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def seconds(call: Callable[[], object], everybody: bool) -> float:
    """The slowest rank's time for a call, where many follow one another."""
    if everybody:
        dist.barrier()
    synchronize()
    start = time.perf_counter()
    for _ in range(REPEAT):
        call()
    synchronize()
    found = torch.tensor([(time.perf_counter() - start) / REPEAT], device=DEVICE)
    if everybody:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    if not ON_GPU:
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL has threads of its own
        call()
    return graph.replay


def timed(call: Callable[[], object], everybody: bool) -> tuple[float, float]:
    call()
    call()
    eager = min(seconds(call, everybody) for _ in range(3))
    replay = graphed(call)
    replay()
    return min(seconds(replay, everybody) for _ in range(3)), eager


def calls(x: dict[str, Any], forward: Callable[..., Any]) -> dict[str, Callable[[], object]]:
    leaves = {name: t.detach().requires_grad_() for name, t in x.items()}
    grad = torch.randn_like(x["value"])

    def step() -> object:
        return torch.autograd.grad(forward(**leaves)[0], list(leaves.values()), grad)

    return {"forward": lambda: forward(**x), "forward + backward": step}


def flashqla(tokens: int, heads: int) -> Callable[..., Any]:
    """FlashQLA between GPUs, with its split within each."""
    from flash_qla import chunk_gated_delta_rule
    from flash_qla.ops.gated_delta_rule.chunk.cp import build_cp_context

    offsets = torch.tensor([0, tokens], dtype=torch.int32)
    context = build_cp_context(
        offsets.cuda(),
        enable_inter=True,
        enable_intra=True,
        group=dist.group.WORLD,
        num_v_heads=heads,
        chunk_size=64,
        cu_seqlens_cpu=offsets,
        is_train=True,
    )

    def forward(query: Any, key: Any, value: Any, beta: Any, gate: Any) -> Any:
        return chunk_gated_delta_rule(q=query, k=key, v=value, g=gate, beta=beta, cp_context=context)

    return forward


def run(rank: int, size: int, options: argparse.Namespace) -> None:
    if ON_GPU:
        torch.cuda.set_device(rank)
    where = f"tcp://localhost:{options.port}"
    dist.init_process_group(
        "nccl" if ON_GPU else "gloo", init_method=where, timeout=timedelta(seconds=120), world_size=size, rank=rank
    )
    if rank == 0:
        print(torch.cuda.get_device_name() if ON_GPU else "CPU", size, torch.__version__, flush=True)
    for heads in options.heads:
        for tokens in options.tokens:
            for gates in ("fast", "init", "mixed"):
                shape = Shape(*heads, (tokens,), gates=gates)
                torch.manual_seed(0)
                x = {n: t for n, t in dict(prefill_work(shape, DEVICE).inputs).items() if n != "state"}
                context = parallel.context(dist.group.WORLD, lengths=[tokens])
                part = {n: parallel.shard(t, context, dim=1).contiguous() for n, t in x.items()}

                def ours(context: Any = context, **given: Any) -> Any:
                    return parallel.chunked_forward(**given, context=context, output_final_state=False)

                def one(**given: Any) -> Any:
                    return gdn_cuda.chunked_forward(**given, output_final_state=False)

                several = calls(part, ours)
                if options.peers and gates == "init":
                    theirs = calls(part, flashqla(tokens, heads[1]))
                    for name, call in theirs.items():
                        call()
                        eager = min(seconds(call, True) for _ in range(3))
                        if rank == 0:
                            print(f"{shape.name:32} {name:20} FlashQLA on {size} GPUs ({eager * 1e3:7.3f})", flush=True)
                alone = calls(x, one)
                for name, call in several.items():
                    single, single_eager = timed(alone[name], False)
                    dist.barrier()
                    found, eager = timed(call, True)
                    if rank == 0:
                        print(
                            f"{shape.name:32} {name:20} one {single * 1e3:7.3f} ({single_eager * 1e3:7.3f})  {size} GPUs "
                            f"{found * 1e3:7.3f} ({eager * 1e3:7.3f})  efficiency {single / found / size:5.1%} "
                            f"({single_eager / eager / size:5.1%})",
                            flush=True,
                        )
                del several, alone, part, x
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[131072] if ON_GPU else [200])
    parser.add_argument(
        "--heads", type=lambda text: tuple(map(int, text.split("/"))), nargs="*", default=[(16, 32)] if ON_GPU else [(1, 2)]
    )
    parser.add_argument("--peers", action="store_true", help="FlashQLA too, where it is installed")
    parser.add_argument("--port", type=int, default=29511)
    options = parser.parse_args()
    for name in ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"):
        os.environ.setdefault(name, "1" if "DISABLE" in name else "0")
    size = torch.cuda.device_count() if ON_GPU else 2
    torch.multiprocessing.spawn(run, (size, options), nprocs=size)


if __name__ == "__main__":
    main()
