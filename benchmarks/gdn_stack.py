"""A stack of 12 Gated Delta Net layers of Qwen3-Next at their true sizes, random weights, bf16 with fp32 states: prefill, and
decode in a CUDA graph. Three implementations run the same weights:

    host          transformers' layer on FLA's and causal-conv1d's kernels, or on its functions in torch without these packages
    integration   the same layer through gdn_cuda.integrations.transformers
    layers        its projections around gdn_prefill_layer and gdn_decode_layer

`python benchmarks/gdn_stack.py` takes about two minutes on a GPU. Without a GPU it runs small sizes, only to test itself.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import gdn_cuda
from gdn_cuda import integrations
from gdn_cuda.integrations import transformers as integration

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
if not ON_GPU:
    sys.modules["fla"] = None  # type: ignore[assignment]  # transformers would use it, and it needs a GPU
import transformers  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next as modeling  # noqa: E402

LAYERS, PREFILLS, BATCHES, STEPS, ROUNDS = (12, (8192, 1024), (1, 16, 64), 50, 7) if ON_GPU else (2, (70,), (2,), 2, 2)
SMALL = {"hidden_size": 64, "linear_num_key_heads": 1, "linear_num_value_heads": 2}
SMALL |= {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
CONFIG = transformers.Qwen3NextConfig(
    num_hidden_layers=LAYERS, layer_types=["linear_attention"] * LAYERS, **({} if ON_GPU else SMALL)
)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(modeling.Qwen3NextGatedDeltaNet(CONFIG, i) for i in range(LAYERS))
        self.norms = nn.ModuleList(nn.RMSNorm(CONFIG.hidden_size) for _ in range(LAYERS))

    def cache(self, batch: int) -> Any:
        return transformers.DynamicCache(config=CONFIG)

    def step(self, index: int, x: Tensor, cache: Any) -> Tensor:
        return self.layers[index](x, cache_params=cache)

    def forward(self, x: Tensor, cache: Any) -> Tensor:
        for index, norm in enumerate(self.norms):
            x = x + self.step(index, norm(x), cache)
        return x


class GdnCudaStack(Stack):
    def cache(self, batch: int) -> Any:
        layer = self.layers[0]
        states = (batch, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
        conv = torch.zeros(LAYERS, batch, layer.conv_dim, 3, device=DEVICE, dtype=torch.bfloat16)
        return conv, torch.zeros(LAYERS, *states, device=DEVICE)

    def step(self, index: int, x: Tensor, cache: Any) -> Tensor:
        layer = self.layers[index]
        function = gdn_cuda.gdn_decode_layer if x.shape[1] == 1 else gdn_cuda.gdn_prefill_layer
        inner = function(
            layer.in_proj_qkvz(x),
            layer.in_proj_ba(x),
            conv_weight=layer.conv1d.weight.squeeze(1),
            A_log=layer.A_log,
            dt_bias=layer.dt_bias,
            norm_weight=layer.norm.weight,
            norm_eps=layer.norm.variance_epsilon,
            conv_pool=cache[0][index],
            state_pool=cache[1][index],
            heads=(layer.num_k_heads, layer.num_v_heads),
            dk=layer.head_k_dim,
            dv=layer.head_v_dim,
        )
        return layer.out_proj(inner)


def milliseconds(run: Callable[[], Any], repeat: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(ROUNDS):
        if ON_GPU:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeat):
            run()
        if ON_GPU:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3 / repeat)
    return statistics.median(times)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, torch.bfloat16)


def prefill(stack: Stack, tokens: int) -> tuple[float, Tensor]:
    x = draw(1, tokens, CONFIG.hidden_size, seed=1)
    output = stack(x, stack.cache(1))
    return milliseconds(lambda: stack(x, stack.cache(1)), 3), output


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


def host() -> str:
    """The owner of the kernels that run without gdn_cuda."""
    found = []
    for package in ("fla", "causal_conv1d"):
        try:
            __import__(package)
            found.append(package)
        except Exception:
            found.append(f"torch in place of {package}")
    return ", ".join(found)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    stack, ours = (stack().to(DEVICE, torch.bfloat16).eval() for stack in (Stack, GdnCudaStack))
    ours.load_state_dict(stack.state_dict())
    cases: dict[str, Callable[[Stack], tuple[float, Tensor]]] = {}
    cases |= {f"prefill {tokens}": lambda stack, tokens=tokens: prefill(stack, tokens) for tokens in PREFILLS}
    cases |= {f"decode B={batch}": lambda stack, batch=batch: decode(stack, batch) for batch in BATCHES}
    heads = f"{CONFIG.linear_num_key_heads}/{CONFIG.linear_num_value_heads} heads of {CONFIG.linear_key_head_dim}"
    device = torch.cuda.get_device_name() if ON_GPU else "CPU"
    print(f"{LAYERS} layers, hidden {CONFIG.hidden_size}, {heads}, bf16, fp32 states, {device}; host: {host()}")
    print("milliseconds          host  integration            layers    outputs differ from the host's by")
    for name, run in cases.items():
        theirs, expected = run(stack)
        integration.install("qwen3_next")
        integrations.reset_calls()
        try:
            inside, found = run(stack)
        finally:
            integration.uninstall()
        declined = {name: count for name, count in integrations.calls().items() if set(count) != {"gdn_cuda"}}
        fused, found_fused = run(ours)
        ratios = f"{inside:8.3f} {theirs / inside:5.2f} x  {fused:8.3f} {theirs / fused:5.2f} x"
        print(f"{name:14} {theirs:10.3f}  {ratios}    {error(found, expected):.1e}, {error(found_fused, expected):.1e}")
        if declined:
            print(f"  the host's kernels ran: {declined}")


if __name__ == "__main__":
    main()
