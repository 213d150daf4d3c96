"""One sequence on several GPUs, or processes: trains the model of gdn_recall.py with the tokens of each sequence split over
ranks, whose losses are those of one process, and then runs a layer on one long prompt.

`torchrun --nproc-per-node 2 examples/long_sequence.py`, with NCCL where each rank has a GPU and with gloo on a CPU. The prompt
has a million tokens on GPUs, and 8192 on a CPU, or as many as `--tokens` says.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial

import gdn_recall as recall
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

import gdn_cuda
from gdn_cuda import parallel


class AttentionOnRanks(nn.Module):
    """Every rank computes all tokens, of which it keeps its own: the model's only layer that is not on ranks."""

    def __init__(self, attention: nn.Module, context: parallel.Context):
        super().__init__()
        self.attention, self.context = attention, context

    def forward(self, x: Tensor) -> Tensor:
        return parallel.shard(self.attention(parallel.unshard(x, self.context)), self.context)


def rule(
    context: parallel.Context,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
) -> Tensor:
    gates = {"A_log": A_log, "dt_bias": dt_bias, "beta_is_logit": True}
    out, _ = parallel.chunked_forward(
        query, key, value, beta, gate, context=context, use_qk_l2norm=True, output_final_state=False, **gates
    )
    return out


def model_on_ranks(context: parallel.Context, device: str) -> nn.Module:
    model = recall.Model(partial(rule, context)).to(device)
    for i, block in enumerate(model.blocks):
        if isinstance(block, recall.Attention):
            model.blocks[i] = AttentionOnRanks(block, context)
    return model


def lesson(context: parallel.Context, model: nn.Module, keys: Tensor, values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's part of the loss, and of the share of right answers."""
    answers = F.pad(wanted, (recall.PAIRS, 0), value=-1)  # −1: nothing is asked
    keys, values, answers = (parallel.shard(x, context) for x in (keys, values, answers))
    logits = model(keys, values)
    loss = F.cross_entropy(logits.float().flatten(0, 1), answers.flatten(), ignore_index=-1, reduction="sum")
    return loss / wanted.numel(), (logits.argmax(-1) == answers).float().sum() / wanted.numel()


def sum_over_ranks(model: nn.Module, results: Tensor) -> None:
    """Each rank has what its own tokens contribute to gradients, losses and shares."""
    for x in (*(p.grad for p in model.parameters()), results):
        dist.all_reduce(x)


def train(steps: int, device: str, console: Console) -> None:
    context = parallel.context(dist.group.WORLD, lengths=[recall.PAIRS + recall.QUERIES])
    model = model_on_ranks(context, device)
    ours = recall.train(model, steps, device, lesson=partial(lesson, context), after_backward=sum_over_ranks)
    if dist.get_rank() == 0:
        alone = recall.train(recall.Model(recall.gated_delta_rule).to(device), steps, device)
        recall.show(ours, alone, console, (f"{dist.get_world_size()} ranks", "one process"))


@torch.no_grad()
def prefill(tokens: int, device: str, console: Console) -> None:
    """A layer of Qwen3-Next's sizes on GPUs, a small one on a CPU. Every rank makes the inputs of its own tokens."""
    on_gpu = torch.device(device).type == "cuda"
    hidden, heads, size = (2048, (16, 32), 128) if on_gpu else (64, (2, 4), 32)
    torch.manual_seed(0)
    like = {"device": device, "dtype": torch.bfloat16 if on_gpu else torch.float32}
    layer = gdn_cuda.nn.GatedDeltaNet(hidden, heads, size, size, **like)
    context = parallel.context(dist.group.WORLD, lengths=[tokens])
    x = torch.randn(1, context.tokens, hidden, **like)
    seconds = torch.empty(3, device=device, dtype=torch.float64)
    for i in range(-1, len(seconds)):  # the first one compiles kernels
        dist.barrier()
        start = time.perf_counter()
        y = layer(x, context=context)
        if on_gpu:
            torch.cuda.synchronize()
        seconds[max(i, 0)] = time.perf_counter() - start
    slowest = seconds.clone()
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    finite = y.isfinite().all().long()
    dist.all_reduce(finite, dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        console.print(f"{context.explain(heads[1], size, size)}\nand the last three inputs of the convolution before each rank")
        console.print(f"prefill of 1×{tokens}: {tokens / slowest.min().item():,.0f} tokens a second", highlight=False)
        console.print(f"all outputs are {'finite' if finite else 'not finite'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0].replace("\n", " "))
    parser.add_argument("--steps", type=int, default=100, help="of training")
    parser.add_argument("--tokens", type=int, help="of the prompt")
    options = parser.parse_args()
    rank, size = (int(os.environ.get(name, default)) for name, default in (("LOCAL_RANK", 0), ("WORLD_SIZE", 1)))
    on_gpus = torch.cuda.device_count() >= size
    device = f"cuda:{rank}" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(torch.get_num_threads() // size, 1))
    store = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if on_gpus else "gloo", **store)
    console = Console()
    train(options.steps, device, console)
    prefill(options.tokens or (2**20 if on_gpus else 8192), device, console)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
