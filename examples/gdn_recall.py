"""Trains a small hybrid of Gated Delta Net and attention on associative recall, with gdn_cuda and with a loop in plain torch:
the losses are one curve.

A sequence has 32 pairs of a key and a value, a pair in a token, and then keys alone, where the model has to give their values:
`python examples/gdn_recall.py`, a minute or two on two CPU cores. `--png FILE` plots it with matplotlib. With `--device cuda`
the model runs under bf16 autocast.
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

import gdn_cuda

KEYS, VALUES, PAIRS, QUERIES, BATCH = 64, 32, 32, 48, 16
WIDTH, HEADS, RATE = 64, 2, 4e-3


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, gate: Tensor, A_log: Tensor, dt_bias: Tensor
) -> Tensor:
    """Gates are raw and betas are logits, as projections give them."""
    gates = {"A_log": A_log, "dt_bias": dt_bias, "beta_is_logit": True}
    return gdn_cuda.chunked_forward(query, key, value, beta, gate, use_qk_l2norm=True, output_final_state=False, **gates)[0]


def loop_over_tokens(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, gate: Tensor, A_log: Tensor, dt_bias: Tensor
) -> Tensor:
    """The same in plain torch, as the recurrence is defined."""
    unit_query, unit_key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query.float(), key.float()))
    decay, step = (-A_log.exp() * F.softplus(gate + dt_bias)).exp(), beta.sigmoid()
    state, outputs = value.new_zeros(len(value), *value.shape[2:], key.shape[-1], dtype=torch.float32), []
    for t in range(value.shape[1]):
        k = unit_key[:, t, :, None]
        state = decay[:, t, :, None, None] * state
        error = value[:, t, :, :, None] - (state * k).sum(-1, keepdim=True)
        state = state + step[:, t, :, None, None] * error * k
        outputs.append((state * unit_query[:, t, :, None]).sum(-1) * key.shape[-1] ** -0.5)
    return torch.stack(outputs, 1).to(value.dtype)


Rule = Callable[..., Tensor]


class DeltaNet(nn.Module):
    def __init__(self, rule: Rule):
        super().__init__()
        self.rule = rule
        self.rows = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.gates = nn.Linear(WIDTH, 2 * HEADS, bias=False)
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(HEADS)), nn.Parameter(torch.full((HEADS,), -4.0))
        self.norm, self.out = nn.RMSNorm(WIDTH // HEADS), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (rows.unflatten(-1, (HEADS, -1)) for rows in self.rows(x).chunk(3, -1))
        beta, gate = self.gates(x).float().chunk(2, -1)
        return self.out(self.norm(self.rule(query, key, value, beta, gate, self.A_log, self.dt_bias)).flatten(-2))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (rows.unflatten(-1, (HEADS, -1)).transpose(1, 2) for rows in self.rows(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(-2))


class Model(nn.Module):
    def __init__(self, rule: Rule):
        super().__init__()
        torch.manual_seed(0)
        self.keys, self.values = nn.Embedding(KEYS, WIDTH), nn.Embedding(VALUES + 1, WIDTH)  # the last one: no value
        self.blocks = nn.ModuleList([DeltaNet(rule), Attention(), DeltaNet(rule)])
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(len(self.blocks) + 1))
        self.head = nn.Linear(WIDTH, VALUES)

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        x = self.keys(keys) + self.values(values)
        for norm, block in zip(self.norms, self.blocks, strict=False):
            x = x + block(norm(x))
        return self.head(self.norms[-1](x))


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(keys (BATCH, PAIRS + QUERIES), values of the pairs and then blanks, what belongs in the blanks)."""
    keys = torch.rand(BATCH, KEYS, generator=generator).argsort(-1)[:, :PAIRS]  # no key twice
    values = torch.randint(VALUES, (BATCH, PAIRS), generator=generator)
    asked = torch.randint(PAIRS, (BATCH, QUERIES), generator=generator)
    blanks = torch.full((BATCH, QUERIES), VALUES)
    return torch.cat([keys, keys.gather(1, asked)], 1), torch.cat([values, blanks], 1), values.gather(1, asked)


@dataclass
class Run:
    losses: list[float] = field(default_factory=list)
    correct: float = 0.0  # the share of right answers in the last ten batches
    seconds: float = 0.0


def lesson(model: nn.Module, keys: Tensor, values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and the share of right answers."""
    logits = model(keys, values)[:, -QUERIES:]
    loss = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())
    return loss, (logits.argmax(-1) == wanted).float().mean()


def train(
    model: nn.Module,
    steps: int,
    device: str = "cpu",
    after_step: Callable[[], None] = lambda: None,
    lesson: Callable[..., tuple[Tensor, Tensor]] = lesson,
    after_backward: Callable[[nn.Module, Tensor], None] = lambda model, results: None,
) -> Run:
    generator, run = torch.Generator().manual_seed(1), Run()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0, eps=1e-6)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=max(steps, 2))
    start, correct = time.perf_counter(), []
    for _ in range(steps):
        keys, values, wanted = (x.to(device) for x in draw(generator))
        kind = torch.device(device).type
        with torch.autocast(kind, torch.bfloat16, enabled=kind != "cpu"):
            loss, share = lesson(model, keys, values, wanted)
        optimizer.zero_grad()
        loss.backward()
        results = torch.stack([loss.detach(), share])
        after_backward(model, results)
        optimizer.step()
        schedule.step()
        run.losses.append(results[0].item())
        correct.append(results[1].item())
        after_step()
    run.seconds, run.correct = time.perf_counter() - start, sum(correct[-10:]) / len(correct[-10:])
    return run


def show(ours: Run, plain: Run, console: Console, names: tuple[str, str] = ("gdn_cuda", "plain torch")) -> None:
    table = Table("step", *names, "", box=None)
    steps, top = len(ours.losses), max(ours.losses)
    for step in [*range(0, steps, max(steps // 20, 1)), steps - 1]:
        mine, theirs = ours.losses[step], plain.losses[step]
        table.add_row(str(step + 1), f"{mine:.4f}", f"{theirs:.4f}", "█" * max(round(40 * mine / top), 1))
    console.print(table)
    for name, run in zip(names, (ours, plain), strict=True):
        console.print(f"{name}: {100 * run.correct:.1f} % of the queries are right at the end, {run.seconds:.1f} s")
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
    axes.set(xlabel="step", ylabel="cross-entropy", title="Gated Delta Net and attention on associative recall")
    axes.legend()
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0].replace("\n", " "))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--png", metavar="FILE", help="where to plot the losses")
    options = parser.parse_args(arguments)
    torch.set_num_threads(min(torch.get_num_threads(), 2))  # at these sizes more threads would only wait for each other
    console, runs = Console(), []
    columns = (TextColumn("{task.description:>11}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name, rule in (("gdn_cuda", gated_delta_rule), ("plain torch", loop_over_tokens)):
            task = progress.add_task(name, total=options.steps)
            model = Model(rule).to(options.device)
            runs.append(train(model, options.steps, options.device, lambda task=task: progress.advance(task)))
    show(runs[0], runs[1], console)
    if options.png:
        plot(runs[0], runs[1], options.png)
        console.print(f"wrote {options.png}")


if __name__ == "__main__":
    main()
