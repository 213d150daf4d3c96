"""12 Gated Delta Net layers of Qwen3-Next with random weights, for gdn_stack.py: transformers' own, and the same projections
around gdn_cuda's functions. Without a GPU sizes are small."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

LAYERS, ROUNDS = (12, 7) if ON_GPU else (2, 1)
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
        return self.layers[index](x, cache)  # by position: transformers 5.24 renamed `cache_params` to `cache`

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
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
        is_decode = cache is not None and x.shape[1] == 1
        function = gdn_cuda.gdn_decode_layer if is_decode else gdn_cuda.gdn_prefill_layer
        pools = {} if cache is None else {"conv_pool": cache[0][index], "state_pool": cache[1][index]}
        inner = function(
            layer.in_proj_qkvz(x),
            layer.in_proj_ba(x),
            conv_weight=layer.conv1d.weight.squeeze(1),
            A_log=layer.A_log,
            dt_bias=layer.dt_bias,
            norm_weight=layer.norm.weight,
            norm_eps=layer.norm.variance_epsilon,
            heads=(layer.num_k_heads, layer.num_v_heads),
            dk=layer.head_k_dim,
            dv=layer.head_v_dim,
            **pools,
        )
        return layer.out_proj(inner)


def two_stacks() -> tuple[Stack, GdnCudaStack]:
    """Transformers' layers and gdn_cuda's, with the same weights."""
    torch.manual_seed(0)
    stack, ours = (made().to(DEVICE, torch.bfloat16).eval() for made in (Stack, GdnCudaStack))
    ours.load_state_dict(stack.state_dict())
    return stack, ours


@contextmanager
def integrated() -> Iterator[None]:
    """Transformers' functions are gdn_cuda's; prints which calls they declined."""
    integration.install("qwen3_next")
    integrations.reset_calls()
    try:
        yield
    finally:
        integration.uninstall()
    if declined := {name: count for name, count in integrations.calls().items() if set(count) != {"gdn_cuda"}}:
        print(f"  the host's kernels ran: {declined}")


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


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def title() -> str:
    heads = f"{CONFIG.linear_num_key_heads}/{CONFIG.linear_num_value_heads} heads of {CONFIG.linear_key_head_dim}"
    device = torch.cuda.get_device_name() if ON_GPU else "CPU"
    return f"{LAYERS} layers, hidden {CONFIG.hidden_size}, {heads}, bf16, fp32 states, {device}; host: {_host()}"


def _host() -> str:
    """The owner of the kernels that run without gdn_cuda."""
    found = []
    for package in ("fla", "causal_conv1d"):
        try:
            __import__(package)
            found.append(package)
        except Exception:
            found.append(f"torch in place of {package}")
    return ", ".join(found)
