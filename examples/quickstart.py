"""A Qwen3-Next-shaped Gated Delta Net layer: prefill a prompt, then decode, on the GPU if there is one, else on the CPU.

Prints the device, the kernels that were compiled and how long that took, and the error against the recurrence in fp64; on a GPU
also the time of a step beside that of the same recurrence in plain torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import gdn_cuda
from gdn_cuda import _C
from gdn_cuda.reference import fused_decode, fused_gdn_gating

HK, HV, DK, DV, WIDTH = 16, 32, 128, 128, 2048
PROMPT, STEPS, SLOTS, SLOT = 96, 16, 4, 2


class GatedDeltaNet(nn.Module):
    """Projections around the two calls that a server makes, without the short convolution and the output gate."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = [HK * DK, HK * DK, HV * DV, HV, HV]
        self.projection = nn.Linear(WIDTH, sum(self.widths), bias=False)
        self.output = nn.Linear(HV * DV, WIDTH, bias=False)
        self.A_log = nn.Parameter(torch.rand(HV).mul(15).add(1).log())
        self.dt_bias = nn.Parameter(torch.rand(HV).sub(5))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        query, key, value, a, b = self.projection(x).split(self.widths, dim=-1)  # views: no copies
        return query.unflatten(-1, (HK, DK)), key.unflatten(-1, (HK, DK)), value.unflatten(-1, (HV, DV)), a, b

    def prefill(self, x: Tensor, pool: Tensor, slots: Tensor) -> Tensor:
        query, key, value, a, b = self.heads(x)
        beta, gate = gdn_cuda.fused_gdn_gating(self.A_log, self.dt_bias, a, b)
        out, _ = gdn_cuda.chunked_forward(query, key, value, beta, gate, pool, use_qk_l2norm=True, state_indices=slots)[:2]
        return self.output(out.flatten(-2))

    def decode(self, x: Tensor, pool: Tensor, slots: Tensor) -> Tensor:
        query, key, value, a, b = self.heads(x)
        out = gdn_cuda.fused_decode(query, key, value, a, b, self.A_log, self.dt_bias, pool, slots)
        return self.output(out.flatten(-2))


def literal(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as papers define it, token by token; the result has the heads of `value`."""
    query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (query, key))
    query, key = (x.repeat_interleave(HV // HK, dim=2) for x in (query, key))
    state, outputs = value.new_zeros(value.shape[0], HV, DV, DK), []
    for q, k, v, b, g in zip(*(x.unbind(1) for x in (query, key, value, beta, gate)), strict=True):
        state = g.exp()[..., None, None] * state
        correction = b[..., None] * (v - (state @ k[..., None])[..., 0])
        state = state + correction[..., None] * k[..., None, :]
        outputs.append((state @ q[..., None])[..., 0] * DK**-0.5)
    return torch.stack(outputs, 1), state


def relative_error(x: Tensor, reference: Tensor) -> float:
    return float((x.double() - reference).norm() / reference.norm())


def seconds(run: Callable[[], object], device: torch.device, repeat: int) -> float:
    """Time of one call, the best of five rounds."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    best = float("inf")
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(repeat):
            run()
        wait()
        best = min(best, (time.perf_counter() - start) / repeat)
    return best


@torch.no_grad()
def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = torch.cuda.get_device_name() if device.type == "cuda" else "this CPU"
    print(f"gdn_cuda {gdn_cuda.__version__}, torch {torch.__version__}: {HK}/{HV} heads of {DK} on {where}")

    torch.manual_seed(0)
    layer = GatedDeltaNet().to(device, torch.bfloat16)
    x = torch.randn(1, PROMPT + STEPS, WIDTH, device=device, dtype=torch.bfloat16)
    pool = torch.zeros(SLOTS, HV, DV, DK, device=device)
    slots = torch.tensor([SLOT], device=device, dtype=torch.int32)

    start = time.perf_counter()
    outputs = [layer.prefill(x[:, :PROMPT], pool, slots)]
    outputs += [layer.decode(x[:, t : t + 1], pool, slots) for t in range(PROMPT, PROMPT + STEPS)]
    print(f"prefill of {PROMPT} tokens and {STEPS} decode steps, first time: {time.perf_counter() - start:.2f} s")
    for event in _C.load_events():
        print(f"  {event['origin']} {event['kernel']} in {event['seconds']:.3f} s: {event['configuration']}")

    query, key, value, a, b = layer.heads(x)
    beta, gate = fused_gdn_gating(layer.A_log.double(), layer.dt_bias.double(), a.double(), b.double())
    exact, exact_state = literal(query.double(), key.double(), value.double(), beta, gate)
    exact = exact.flatten(-2) @ layer.output.weight.double().T
    print(
        f"relative error against fp64: outputs {relative_error(torch.cat(outputs, 1), exact):.1e} (bf16), "
        f"final state {relative_error(pool[SLOT : SLOT + 1], exact_state):.1e} (fp32, gates rounded to bf16 in prefill)"
    )

    if device.type == "cpu":
        print("CPU tensors ran gdn_cuda.reference, plain torch for tests and gradients: right, and slow. Kernels need a GPU.")
        return
    arguments = *(t[:, -1:] for t in layer.heads(x)), layer.A_log, layer.dt_bias, pool, slots
    ours = seconds(lambda: gdn_cuda.fused_decode(*arguments), device, 200)
    plain = seconds(lambda: fused_decode(*arguments), device, 20)
    print(f"one decode step of the recurrence: {ours * 1e6:.1f} µs a call, {plain * 1e6:.0f} µs in plain torch on the same GPU")


if __name__ == "__main__":
    main()
