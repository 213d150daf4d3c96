"""`gdn_stack.py --train`: a training step of the stack, forward and backward without an optimizer, with its time, tokens per
second, peak memory above the weights, and how output and gradients of parameters differ from the host's. A host that cannot
run has its error for a row, and `layers` are then compared with `integration`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from gdn_stack_layers import CONFIG, ON_GPU, Stack, draw, error, integrated, milliseconds, title, two_stacks
from torch import Tensor

SIZES = ((1, 8192), (8, 1024)) if ON_GPU else ((1, 70),)  # sequences, tokens of each
REPEAT = 3 if ON_GPU else 1


class Step(NamedTuple):
    output: Tensor
    gradients: dict[str, Tensor]
    ms: float
    peak: int  # bytes that were allocated at once during a step, besides what was before; 0 on a CPU


def measure(stack: Stack, sequences: int, tokens: int) -> Step:
    x, grad = (draw(sequences, tokens, CONFIG.hidden_size, seed=seed) for seed in (1, 2))

    def step() -> Tensor:
        stack.zero_grad()
        output = stack(x)
        output.backward(grad)
        return output.detach()

    try:
        output = step()  # compiles kernels
        gradients = {name: p.grad.clone() for name, p in stack.named_parameters() if p.grad is not None}
        peak = _peak(stack, step)
        return Step(output, gradients, milliseconds(step, REPEAT), peak)
    finally:
        stack.zero_grad()


def _peak(stack: Stack, step: Callable[[], Tensor]) -> int:
    if not ON_GPU:
        return 0
    stack.zero_grad()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before


def row(name: str, found: Step, tokens: int, reference: tuple[str, Step] | None) -> str:
    text = f"  {name:12} {found.ms:9.3f} ms {tokens * 1e3 / found.ms:11,.0f} tokens/s"
    if found.peak:
        text += f" {found.peak / 2**20:8,.0f} MiB"
    if reference is None:
        return text
    other, expected = reference
    errors = {name: error(found.gradients[name], gradient) for name, gradient in expected.gradients.items()}
    whole = error(*(torch.cat([step.gradients[name].flatten() for name in errors]) for step in (found, expected)))
    worst = max(errors, key=errors.__getitem__)
    text += f"  {expected.ms / found.ms:5.2f} x {other}; output differs by {error(found.output, expected.output):.1e}, "
    return text + f"gradients by {whole:.1e}, at most {errors[worst]:.1e} ({worst})"


def main() -> None:
    stack, ours = two_stacks()
    print(title())
    for sequences, tokens in SIZES:
        print(f"training step of {sequences}×{tokens} tokens")
        reference: tuple[str, Step] | None = None
        for name, model in (("host", stack), ("integration", stack), ("layers", ours)):
            try:
                with integrated() if name == "integration" else nullcontext():
                    found = measure(model, sequences, tokens)
            except Exception as problem:
                if name != "host":
                    raise
                print(f"  {name:12} {type(problem).__name__}: {' '.join(str(problem).split())}")
                continue
            print(row(name, found, sequences * tokens, reference))
            reference = reference or (name, found)
