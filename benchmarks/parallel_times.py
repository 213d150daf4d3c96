"""`gdn_cuda.parallel` on all GPUs of the machine beside the same tokens on one:
`python benchmarks/parallel_times.py [--tokens 131072] [--others] [--rows WORD...] [--profile] [--peers]`. A process for each
GPU, NCCL. Milliseconds of the slowest rank, replays of a CUDA graph and, in brackets, calls as Python makes them; efficiency:
one GPU's time by that and the number of GPUs. Without two GPUs it runs small sizes on a CPU, only to test itself."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

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


def steps(
    forward: Callable[..., Any], x: dict[str, Any], weights: Iterable[torch.Tensor] = ()
) -> dict[str, Callable[[], object]]:
    """Calls of `forward(**x)`, whose first result is the output, and the same with gradients of floating tensors."""
    leaves = {n: t.detach().requires_grad_() if t.is_floating_point() else t for n, t in x.items()}
    wanted = [*(t for t in leaves.values() if t.requires_grad), *weights]
    grad: list[torch.Tensor] = []

    def output(given: dict[str, Any]) -> torch.Tensor:
        found = forward(**given)
        return found if isinstance(found, torch.Tensor) else found[0]

    def alone() -> object:
        with torch.no_grad():
            return output(x)

    def step() -> object:
        out = output(leaves)
        if not grad:
            grad.append(torch.randn_like(out))
        return torch.autograd.grad(out, wanted, grad[0])

    return {"forward": alone, "forward + backward": step}


class Row(NamedTuple):
    """What is measured: `one` on all tokens, `several` on this rank's, with a context."""

    name: str
    lengths: list[int]
    x: dict[str, torch.Tensor]
    dim: dict[str, int]  # the dimension of tokens; tensors that are not listed have none
    one: Callable[..., Any]
    several: Callable[..., Any]
    weights: tuple[torch.Tensor, ...] = ()


def recurrence(heads: tuple[int, int], lengths: list[int], gates: str, **limits: int) -> Row:
    packed = len(lengths) > 1
    shape = Shape(*heads, tuple(lengths), gates=gates, packed=packed)
    x = {n: t for n, t in dict(prefill_work(shape, DEVICE).inputs).items() if n != "state"}
    offsets = {"cu_seqlens": x.pop("cu_seqlens")} if packed else {}
    one = partial(gdn_cuda.chunked_forward, output_final_state=False, **offsets, **limits)
    dim = dict.fromkeys(x, 0 if packed else 1)
    return Row(shape.name, lengths, x, dim, one, partial(parallel.chunked_forward, output_final_state=False, **limits))


def layer(tokens: int) -> Row:
    """Qwen3-Next's."""
    hidden, heads, d = (2048, (16, 32), 128) if ON_GPU else (64, (1, 2), 16)
    made = gdn_cuda.nn.GatedDeltaNet(hidden, heads=heads, head_k_dim=d, head_v_dim=d, device=DEVICE, dtype=torch.bfloat16)
    x = {"x": normal((1, tokens, hidden), torch.bfloat16)}
    return Row(f"1×{tokens} layer, hidden {hidden}", [tokens], x, {"x": 1}, made, made, tuple(made.parameters()))


def convolution(tokens: int) -> Row:
    channels = 8192 if ON_GPU else 16
    x = {"x": normal((1, channels, tokens), torch.bfloat16), "weight": normal((channels, 4), torch.bfloat16)}
    return Row(
        f"{channels}×{tokens} causal_conv1d, W = 4",
        [tokens],
        x,
        {"x": 2},
        partial(gdn_cuda.causal_conv1d, activation="silu"),
        partial(parallel.causal_conv1d, activation="silu"),
    )


def scan(tokens: int) -> Row:
    """As Mamba initialises it."""
    channels, states = (8192 if ON_GPU else 16), 16
    steps_of = torch.exp(torch.empty(channels, device=DEVICE).uniform_(math.log(0.001), math.log(0.1)))
    x = {
        "u": normal((1, channels, tokens), torch.bfloat16),
        "delta": 0.1 * normal((1, channels, tokens), torch.bfloat16),
        "A": -torch.arange(1.0, states + 1, device=DEVICE).repeat(channels, 1),
        "B": normal((1, states, tokens), torch.bfloat16),
        "C": normal((1, states, tokens), torch.bfloat16),
        "delta_bias": torch.log(torch.expm1(steps_of)),
    }
    return Row(
        f"{channels}×{tokens} selective_scan, N = {states}",
        [tokens],
        x,
        dict.fromkeys(("u", "delta", "B", "C"), 2),
        partial(gdn_cuda.selective_scan, delta_softplus=True),
        partial(parallel.selective_scan, delta_softplus=True),
    )


def mamba_2(tokens: int) -> Row:
    """The scan of Nemotron-H-8B, with Mamba-2's initial gates."""
    heads, P, groups, states = (128, 64, 8, 128) if ON_GPU else (2, 8, 1, 8)
    steps_of = torch.exp(torch.empty(heads, device=DEVICE).uniform_(math.log(0.001), math.log(0.1)))
    x = {
        "x": normal((1, tokens, heads, P), torch.bfloat16),
        "dt": 0.1 * normal((1, tokens, heads), torch.bfloat16),
        "A": -torch.empty(heads, device=DEVICE).uniform_(1, 16),
        "B": normal((1, tokens, groups, states), torch.bfloat16),
        "C": normal((1, tokens, groups, states), torch.bfloat16),
        "D": torch.ones(heads, device=DEVICE),
        "dt_bias": torch.log(torch.expm1(steps_of)),
    }
    return Row(
        f"{heads} of {P}×{tokens} ssd_scan, N = {states}",
        [tokens],
        x,
        dict.fromkeys(("x", "dt", "B", "C"), 1),
        partial(gdn_cuda.ssd_scan, dt_softplus=True),
        partial(parallel.ssd_scan, dt_softplus=True),
    )


def mamba_2_layer(tokens: int) -> Row:
    """Nemotron-H-8B's."""
    hidden, sizes = (4096, {"ngroups": 8}) if ON_GPU else (16, {"d_state": 8, "headdim": 8})
    made = gdn_cuda.nn.Mamba2(hidden, **sizes, device=DEVICE, dtype=torch.bfloat16)
    x = {"u": normal((1, tokens, hidden), torch.bfloat16)}
    return Row(f"1×{tokens} Mamba2, hidden {hidden}", [tokens], x, {"u": 1}, made, made, tuple(made.parameters()))


def cascade(tokens: int) -> Row:
    """Evo 2's long layer, whose filter of projections is short."""
    channels = 4096 if ON_GPU else 16
    made = gdn_cuda.nn.HyenaCascade(channels, hyena_filter_groups=channels // 16, device=DEVICE, dtype=torch.bfloat16)
    x = {"u": normal((1, tokens, 3 * channels), torch.bfloat16)}
    return Row(f"{channels}×{tokens} HyenaCascade, long", [tokens], x, {"u": 1}, made, made, tuple(made.parameters()))


def normal(sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(sizes, device=DEVICE, dtype=dtype)


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


def rows(options: argparse.Namespace) -> Iterator[Callable[[], Row]]:
    for tokens in options.tokens:
        for heads in options.heads:
            for gates in ("fast", "init", "mixed"):
                yield partial(recurrence, heads, [tokens], gates)
    if options.others:
        each = 16384 if ON_GPU else 10
        for gates in ("fast", "init", "mixed"):  # the border of two ranks is in the middle of a sequence
            limits = {} if options.workspace is None else {"workspace": int(options.workspace * 2**30)}
            yield partial(recurrence, options.heads[0], [each // 2, *[each] * 63, each // 2], gates, **limits)
        for row in (layer, mamba_2, mamba_2_layer):
            yield partial(row, 131072 if ON_GPU else 100)
        for row in (convolution, scan, cascade):
            yield partial(row, 262144 if ON_GPU else 100)


def run(rank: int, size: int, options: argparse.Namespace) -> None:
    if ON_GPU:
        torch.cuda.set_device(rank)
    where = f"tcp://localhost:{options.port}"
    dist.init_process_group(
        "nccl" if ON_GPU else "gloo", init_method=where, timeout=timedelta(seconds=120), world_size=size, rank=rank
    )
    if rank == 0:
        print(torch.cuda.get_device_name() if ON_GPU else "CPU", size, torch.__version__, flush=True)
    for row in rows(options):
        torch.manual_seed(0)
        found = row()
        if not options.rows or any(word in found.name for word in options.rows):
            measure(rank, size, found, options)
    dist.barrier()
    dist.destroy_process_group()


def profile(call: Callable[[], object], title: str) -> None:
    """Milliseconds of a call by kernel."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    print(title)
    for event in sorted(found.key_averages(), key=lambda e: -e.self_device_time_total)[:14]:
        print(f"  {event.self_device_time_total / 1e3:9.3f} ms {event.count:5} × {event.key[:110]}", flush=True)


def measure(rank: int, size: int, row: Row, options: argparse.Namespace) -> None:
    context = parallel.context(dist.group.WORLD, lengths=row.lengths)
    part = {n: parallel.shard(t, context, dim=row.dim[n]).contiguous() if n in row.dim else t for n, t in row.x.items()}
    several = steps(partial(row.several, context=context), part, row.weights)
    if options.peers and row.name.endswith("init gates") and len(row.lengths) == 1:
        for name, call in steps(flashqla(row.lengths[0], part["value"].shape[-2]), part).items():
            call()
            eager = min(seconds(call, True) for _ in range(3))
            if rank == 0:
                print(f"{row.name:40} {name:20} FlashQLA on {size} GPUs ({eager * 1e3:7.3f})", flush=True)
    alone = steps(row.one, row.x, row.weights)
    for name, call in several.items():
        single, single_eager = timed(alone[name], False)
        dist.barrier()
        found, eager = timed(call, True)
        if rank == 0:
            print(
                f"{row.name:40} {name:20} one {single * 1e3:7.3f} ({single_eager * 1e3:7.3f})  {size} GPUs "
                f"{found * 1e3:7.3f} ({eager * 1e3:7.3f})  efficiency {single / found / size:5.1%} "
                f"({single_eager / eager / size:5.1%})",
                flush=True,
            )
        if options.profile:
            if rank == 0:
                profile(alone[name], f"{name}, one GPU")
            dist.barrier()
            profile(call, f"{name}, rank {rank}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[131072] if ON_GPU else [200])
    parser.add_argument(
        "--heads", type=lambda text: tuple(map(int, text.split("/"))), nargs="*", default=[(16, 32)] if ON_GPU else [(1, 2)]
    )
    parser.add_argument("--others", action="store_true", help="packed sequences, a layer, a convolution, scans")
    parser.add_argument("--peers", action="store_true", help="FlashQLA too, where it is installed")
    parser.add_argument("--rows", nargs="*", help="only those whose names have one of these words")
    parser.add_argument("--workspace", type=float, help="GiB that the backward of packed sequences may use at a time")
    parser.add_argument("--profile", action="store_true", help="the time of every kernel too")
    parser.add_argument("--port", type=int, default=29511)
    options = parser.parse_args()
    for name in ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"):
        os.environ.setdefault(name, "1" if "DISABLE" in name else "0")
    size = torch.cuda.device_count() if ON_GPU else 2
    torch.multiprocessing.spawn(run, (size, options), nprocs=size)


if __name__ == "__main__":
    main()
