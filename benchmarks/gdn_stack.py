"""A stack of 12 Gated Delta Net layers of Qwen3-Next at their true sizes, random weights, bf16 with fp32 states: prefill, and
decode in a CUDA graph; with --train a training step. Three implementations run the same weights:

    host          transformers' layer on FLA's and causal-conv1d's kernels, or on its functions in torch without these packages
    integration   the same layer through gdn_cuda.integrations.transformers
    layers        its projections around gdn_prefill_layer and gdn_decode_layer

`python benchmarks/gdn_stack.py [--train]` takes about two minutes on a GPU. Without a GPU it runs small sizes, only to test
itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import gdn_stack_training
import torch
from gdn_stack_layers import CONFIG, ON_GPU, Stack, draw, error, integrated, milliseconds, title, two_stacks
from torch import Tensor

PREFILLS, BATCHES, REPEAT, STEPS = ((8192, 1024), (1, 16, 64), 3, 50) if ON_GPU else ((70,), (2,), 1, 1)


def prefill(stack: Stack, tokens: int) -> tuple[float, Tensor]:
    x = draw(1, tokens, CONFIG.hidden_size, seed=1)
    output = stack(x, stack.cache(1))
    return milliseconds(lambda: stack(x, stack.cache(1)), REPEAT), output


def decode(stack: Stack, batch: int) -> tuple[float, Tensor]:
    """Steps after a prompt of 64 tokens; the output is the first step's."""
    cache, x = stack.cache(batch), draw(batch, 1, CONFIG.hidden_size, seed=3)
    stack(draw(batch, 64, CONFIG.hidden_size, seed=2), cache)
    first = stack(x, cache).clone()
    for _ in range(2):
        stack(x, cache)
    if not ON_GPU:
        return milliseconds(lambda: stack(x, cache), STEPS), first
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stack(x, cache)
    graph.replay()
    return milliseconds(graph.replay, STEPS), first


@torch.no_grad()
def main() -> None:
    stack, ours = two_stacks()
    cases: dict[str, Callable[[Stack], tuple[float, Tensor]]] = {}
    cases |= {f"prefill {tokens}": lambda stack, tokens=tokens: prefill(stack, tokens) for tokens in PREFILLS}
    cases |= {f"decode B={batch}": lambda stack, batch=batch: decode(stack, batch) for batch in BATCHES}
    print(title())
    print("milliseconds          host  integration            layers    outputs differ from the host's by")
    for name, run in cases.items():
        theirs, expected = run(stack)
        with integrated():
            inside, found = run(stack)
        fused, found_fused = run(ours)
        ratios = f"{inside:8.3f} {theirs / inside:5.2f} x  {fused:8.3f} {theirs / fused:5.2f} x"
        print(f"{name:14} {theirs:10.3f}  {ratios}    {error(found, expected):.1e}, {error(found_fused, expected):.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="a training step in place of prefill and decode")
    (gdn_stack_training.main if parser.parse_args().train else main)()
