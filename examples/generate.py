"""Generates with a Qwen3-Next or a Nemotron-H model of transformers, random weights from its configuration, without and with
gdn_cuda: time to the first token, tokens a second, how far the first logits of both are from fp64's, and in float32 whether the
tokens are the same. In bf16 they may differ: random weights make nearly equal logits, rounding chooses among them, and all
tokens after a different one differ.

`python examples/generate.py [--model nemotron_h]` uses a small model on a CPU, and layers of the true sizes of
Qwen3-Next-80B-A3B or Nemotron-H-8B on a GPU, where it decodes in a CUDA graph. Experts, which gdn_cuda does not change, are one
dense layer each. Without gdn_cuda, transformers runs FLA, mamba_ssm and causal-conv1d on a GPU where they are installed, and
otherwise its own functions in torch.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gdn_cuda import integrations
from gdn_cuda.integrations import transformers as integration

if not torch.cuda.is_available():
    sys.modules["fla"] = None  # type: ignore[assignment]  # transformers would use it, and it needs a GPU
import transformers

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
SMALL_DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
SMALL_MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16}


def qwen3_next(layers: int, small: bool) -> Any:
    """Three of four layers are Gated Delta Net."""
    sizes = SMALL | SMALL_DELTA_NET if small else {"intermediate_size": 5120, "vocab_size": 32768}
    config = transformers.Qwen3NextConfig(num_hidden_layers=layers, mlp_only_layers=list(range(layers)), **sizes)
    return transformers.Qwen3NextForCausalLM(config)


def nemotron_h(layers: int, small: bool) -> Any:
    """Two of four layers are Mamba-2, one is dense, and one attention."""
    sizes = SMALL | SMALL_MAMBA if small else {"vocab_size": 32768}
    kinds = ["linear_attention", "mlp", "linear_attention", "full_attention"] * (layers // 4)
    return transformers.NemotronHForCausalLM(transformers.NemotronHConfig(layers_block_type=kinds, **sizes))


MODELS: dict[str, Callable[[int, bool], Any]] = {"qwen3_next": qwen3_next, "nemotron_h": nemotron_h}


@dataclass
class Generated:
    tokens: Tensor  # (B, tokens)
    logits: Tensor  # of the first token
    first: float  # seconds to the first token
    rate: float  # tokens per second after the first, for the whole batch
    calls: dict[str, dict[str, int]]


class Generation:
    """Greedy generation with a cache of fixed size, so that all steps but the first make the same launches on the same
    memory."""

    def __init__(self, model: Any, prompt: Tensor, steps: int):
        self.model, self.length = model, prompt.shape[1] + steps
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=self.length)
        self.token, self.position = prompt, torch.zeros((), dtype=torch.long, device=prompt.device)

    def step(self) -> None:
        """Replaces the tokens by their next tokens."""
        positions = self.position + torch.arange(self.token.shape[1], device=self.token.device)
        seen = torch.arange(self.length, device=self.token.device) <= positions[:, None]
        masks = {"full_attention": seen[None, None], "linear_attention": None}
        options = {"position_ids": positions[None], "attention_mask": masks, "past_key_values": self.cache, "logits_to_keep": 1}
        self.logits = self.model(self.token, use_cache=True, **options).logits[:, -1]
        following = self.logits.argmax(-1, keepdim=True)
        self.position += self.token.shape[1]
        if self.token.shape == following.shape:
            self.token.copy_(following)
        else:
            self.token = following

    def captured(self) -> Callable[[], None]:
        """`step` as a CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


@torch.no_grad()
def generate(model: Any, prompt: Tensor, steps: int, graphs: bool) -> Generated:
    def now() -> float:
        if prompt.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    integrations.reset_calls()
    generation, began = Generation(model, prompt.clone(), steps), now()
    generation.step()
    first, tokens, logits = now() - began, [generation.token.clone()], generation.logits
    step = generation.step
    for i in range(1, steps):
        if i == 2:  # after a step that has loaded every kernel
            step = generation.captured() if graphs else step
            began = now()
        step()
        tokens.append(generation.token.clone())
    rate = (steps - 2) * prompt.shape[0] / (now() - began)
    return Generated(torch.cat(tokens, 1), logits, first, rate, integrations.calls("transformers"))


@torch.no_grad()
def exact_logits(model: Any, prompt: Tensor) -> Tensor | None:
    """The first logits of the model in fp64, whose recurrence, norms and softmax transformers computes in fp32 nevertheless;
    None where transformers runs FLA or mamba_ssm, which have no fp64."""
    if prompt.is_cuda and any(sys.modules.get(name) is not None for name in ("fla", "mamba_ssm")):
        return None
    generation = Generation(copy.deepcopy(model).double(), prompt.clone(), 1)
    generation.step()
    return generation.logits


def relative_error(logits: Tensor, exact: Tensor) -> float:
    return float((logits.double() - exact).norm() / exact.norm())


def best(runs: list[Generated]) -> Generated:
    """The best times of all runs but the first, which compiles."""
    last = runs[-1]
    return Generated(
        last.tokens, last.logits, min(run.first for run in runs[1:]), max(run.rate for run in runs[1:]), last.calls
    )


def arguments() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="Generates with and without gdn_cuda.")
    parser.add_argument("--model", choices=MODELS, default="qwen3_next")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=8192 if on_gpu else 70, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=256 if on_gpu else 24, help="to generate, at least 3")
    parser.add_argument("--layers", type=int, default=16 if on_gpu else 4, help="a multiple of 4")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16" if on_gpu else "float32")
    parser.add_argument("--no-graphs", action="store_true", help="on a GPU, launch every step's kernels one by one")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device):
        model = MODELS[given.model](given.layers, device == "cpu").to(getattr(torch, given.dtype)).eval()
    prompt = torch.randint(1, model.config.vocab_size, (given.batch, given.prompt), device=device)
    graphs = device == "cuda" and not given.no_graphs

    def runs() -> Generated:
        return best([generate(model, prompt, given.tokens, graphs) for _ in range(3)])

    without = runs()
    exact = exact_logits(model, prompt)
    integration.install(model)
    ours = runs()
    integration.uninstall()

    where = torch.cuda.get_device_name() if device == "cuda" else "CPU: plain torch on both sides, not what gdn_cuda is fast at"
    table = Table(
        "", "time to first token", "tokens a second", title=f"{given.batch} × {given.prompt} tokens, {given.dtype}, {where}"
    )
    for name, run in (("transformers", without), ("with gdn_cuda", ours)):
        table.add_row(name, f"{run.first * 1e3:.1f} ms", f"{run.rate:.1f}")
    console = Console()
    console.print(table)
    for name, count in sorted(ours.calls.items()):
        console.print(f"{name}: {', '.join(f'{calls} calls by {who}' for who, calls in count.items())}", highlight=False)
    if exact is not None:
        errors = (
            f"transformers {relative_error(without.logits, exact):.1e}, with gdn_cuda {relative_error(ours.logits, exact):.1e}"
        )
        console.print(f"first logits against fp64, relative: {errors}", highlight=False)
    if given.dtype == "float32":
        same = ours.tokens == without.tokens
        console.print(f"{int(same.sum())} of {same.numel()} tokens are the same", highlight=False)


if __name__ == "__main__":
    main()
