"""The steps of Hyena's filters on the GPU; large pools, and a captured graph."""

from __future__ import annotations

import torch
from hyena_step_cases import fir_inputs, modal_inputs
from hyena_steps_on_device import *  # noqa: F403
from hyena_steps_on_device import Steps


def test_a_pool_of_more_than_2_31_values(on: Steps, seed: int) -> None:
    """Slots with a very large stride."""
    gap = 2**31 // 2 + 64
    for make in (fir_inputs, modal_inputs):
        x = make(seed, B=3, D=8, io=torch.bfloat16, state=torch.bfloat16, device="cuda")
        pool = "fir_state" if "u" in x else "state"
        memory = torch.empty(2 * gap + x[pool][0].numel(), dtype=torch.bfloat16, device="cuda")
        far = memory.as_strided(x[pool].shape, (gap, *x[pool].stride()[1:]))
        far.copy_(x[pool])
        on.check(x | {pool: far})


def test_a_captured_graph_steps(on: Steps, seed: int) -> None:
    for make in (fir_inputs, modal_inputs):
        x, eager = (make(seed, D=64, device="cuda") for _ in range(2))
        pool = "fir_state" if "u" in x else "state"
        out = torch.empty_like(x["u" if "u" in x else "x2"])
        on.step(**x, out=out)
        x[pool].copy_(eager[pool])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            on.step(**x, out=out)
        for _ in range(3):
            graph.replay()
            expected, _ = on.step(**eager)
            assert torch.equal(out, expected) and torch.equal(x[pool], eager[pool])
