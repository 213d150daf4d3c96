"""Trains a small Mamba on selective copying, with gdn_cuda's scan and with a loop in plain torch: the losses are one curve.

A sequence has a few tokens to remember among noise, at random places, and ends in as many blanks, where the model has to give
the tokens in their order: `python examples/mamba_copying.py`, a minute on two CPU cores. `--png FILE` plots it with matplotlib.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from gdn_cuda.nn import Mamba

NOISE, BLANK, KINDS = 0, 1, 8  # tokens to remember are 2 … KINDS + 1
REMEMBERED, LENGTH, BATCH = 4, 20, 64
WIDTH, STATES, LAYERS, RATE = 32, 8, 2, 1e-2


def loop_over_tokens(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, delta_bias: Tensor, **_: object
) -> Tensor:
    """`gdn_cuda.selective_scan` in plain torch, as a Mamba block calls it."""
    delta = F.softplus(delta + delta_bias[:, None])
    state, outputs = u.new_zeros(*u.shape[:2], A.shape[1]), []
    for t in range(u.shape[2]):
        step = delta[:, :, t, None]
        state = torch.exp(step * A) * state + step * B[:, None, :, t] * u[:, :, t, None]
        outputs.append((state * C[:, None, :, t]).sum(-1))
    return (torch.stack(outputs, -1) + D[:, None] * u) * F.silu(z)


class PlainMamba(Mamba):
    scan = staticmethod(loop_over_tokens)


class Model(nn.Module):
    def __init__(self, block: Callable[..., Mamba]):
        super().__init__()
        self.embedding = nn.Embedding(KINDS + 2, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(LAYERS + 1))
        self.blocks = nn.ModuleList(block(WIDTH, d_state=STATES) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, KINDS + 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for norm, block in zip(self.norms, self.blocks, strict=False):
            x = x + block(norm(x))
        return self.head(self.norms[-1](x))


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(sequences (BATCH, LENGTH + REMEMBERED), what belongs in their blanks)."""
    remembered = torch.randint(2, KINDS + 2, (BATCH, REMEMBERED), generator=generator)
    places = torch.rand(BATCH, LENGTH, generator=generator).argsort(-1)[:, :REMEMBERED].sort(-1).values
    noise = torch.full((BATCH, LENGTH), NOISE).scatter_(1, places, remembered)
    return torch.cat([noise, torch.full((BATCH, REMEMBERED), BLANK)], 1), remembered


@dataclass
class Run:
    losses: list[float] = field(default_factory=list)
    correct: float = 0.0  # of the tokens in the last ten batches
    seconds: float = 0.0


def train(block: Callable[..., Mamba], steps: int, device: str = "cpu", after_step: Callable[[], None] = lambda: None) -> Run:
    torch.manual_seed(0)
    model, generator, run = Model(block).to(device), torch.Generator().manual_seed(1), Run()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=max(steps, 2))
    start, correct = time.perf_counter(), []
    for _ in range(steps):
        tokens, wanted = (x.to(device) for x in draw(generator))
        logits = model(tokens)[:, -REMEMBERED:]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        run.losses.append(loss.item())
        correct.append((logits.argmax(-1) == wanted).float().mean().item())
        after_step()
    run.seconds, run.correct = time.perf_counter() - start, sum(correct[-10:]) / len(correct[-10:])
    return run


def show(ours: Run, plain: Run, console: Console) -> None:
    table = Table("step", "gdn_cuda", "plain torch", "", box=None)
    steps, top = len(ours.losses), max(ours.losses)
    for step in [*range(0, steps, max(steps // 20, 1)), steps - 1]:
        mine, theirs = ours.losses[step], plain.losses[step]
        table.add_row(str(step + 1), f"{mine:.4f}", f"{theirs:.4f}", "█" * max(round(40 * mine / top), 1))
    console.print(table)
    for name, run in (("gdn_cuda", ours), ("plain torch", plain)):
        console.print(f"{name}: {100 * run.correct:.1f} % of the tokens are right at the end, {run.seconds:.1f} s")
    console.print(f"largest difference of the two losses: {difference(ours, plain):.1e}")


def difference(ours: Run, plain: Run) -> float:
    return max(abs(a - b) for a, b in zip(ours.losses, plain.losses, strict=True))


def plot(ours: Run, plain: Run, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(ours.losses, label="gdn_cuda", color="#76b900", linewidth=3)
    axes.plot(plain.losses, label="plain torch", color="black", linestyle="--", linewidth=1)
    axes.set(xlabel="step", ylabel="cross-entropy", title="Mamba on selective copying")
    axes.legend()
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--png", metavar="FILE", help="where to plot the losses")
    options = parser.parse_args(arguments)
    torch.set_num_threads(min(torch.get_num_threads(), 2))  # at these sizes more threads would only wait for each other
    console, runs = Console(), []
    columns = (TextColumn("{task.description:>11}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name, block in (("gdn_cuda", Mamba), ("plain torch", PlainMamba)):
            task = progress.add_task(name, total=options.steps)
            runs.append(train(block, options.steps, options.device, lambda task=task: progress.advance(task)))
    show(runs[0], runs[1], console)
    if options.png:
        plot(runs[0], runs[1], options.png)
        console.print(f"wrote {options.png}")


if __name__ == "__main__":
    main()
