"""gdn/kda_prepare and gdn/kda_own, one by one: Kimi Delta Attention as two launches, which tell whether one launch of both is a
good plan. Needs a Hopper.

    python benchmarks/kda_launches.py [--tokens 8192] [--heads 4 16 64]

µs by events over replays of a CUDA graph with ten launches, median of nine. Of kda_prepare the last column decides: the time of
an SM for a chunk of a head, above 3.5 the plan loses. Of kda_own: the time of a chunk. Records stay in L2 below some 40 MB:
57 KB for a chunk of a head.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

import gdn_cuda

CHUNK, RECORD, SCALED = 64, 82 * 1024, 4  # tokens, bytes, a flag
LAUNCHES, REPEATS = 10, 9
DEVICE = "cuda"
GATES = ("init", "bounded", "edge", "softplus", "heavy")


def gates(kind: str, T: int, heads: int, rng: torch.Generator) -> dict[str, Any]:
    """gate, and what makes it raw."""
    shape, options = (1, T, heads, 128), {"device": DEVICE}
    x = torch.randn(shape, generator=rng, **options)
    steps = torch.empty(heads, 128, **options).uniform_(math.log(1e-3), math.log(0.1), generator=rng).exp()
    none = {"A_log": None, "dt_bias": None, "lower_bound": None}
    if kind == "init":  # K3's form at initialisation: A_log 0, L -5, a bias that makes steps of 0.001 to 0.1
        bias = (steps / 5).logit()
        return {"gate": 0.1 * x.bfloat16(), "A_log": torch.zeros(heads, **options), "dt_bias": bias, "lower_bound": -5.0}
    if kind == "bounded":
        return {"gate": x.bfloat16(), "A_log": torch.zeros(heads, **options), "dt_bias": None, "lower_bound": -5.0}
    if kind == "edge":
        return {"gate": torch.full_like(x, -5.0), **none}
    if kind == "softplus":
        A_log = torch.empty(heads, **options).uniform_(1, 16, generator=rng).log()
        bias = steps + torch.log(-torch.expm1(-steps))
        return {"gate": 0.1 * x.bfloat16(), "A_log": A_log, "dt_bias": bias, "lower_bound": None}
    return {"gate": -(2.2 * x - 2).exp().clamp(max=2661.0), **none}


def call(kind: str, T: int, heads: int) -> tuple[Callable[..., None], dict[str, Tensor]]:
    """A function that launches kda_prepare, kda_own or both, and the tensors of the call."""
    rng = torch.Generator(DEVICE).manual_seed(T + heads)
    query, key, value = (torch.randn(1, T, heads, 128, generator=rng, device=DEVICE).bfloat16() for _ in range(3))
    beta = torch.rand(1, T, heads, generator=rng, device=DEVICE)
    gate = gates(kind, T, heads, rng)
    count = -(-T // CHUNK)
    records = torch.empty(heads, count, RECORD, dtype=torch.uint8, device=DEVICE)
    flags = torch.zeros(heads, count, dtype=torch.int32, device=DEVICE)
    out, state = torch.empty_like(value), torch.zeros(1, heads, 128, 128, device=DEVICE)
    last = torch.empty_like(state)

    def launch(prepares: bool, owns: bool) -> None:
        torch.ops.gdn_cuda.kda_chunks(
            query, key, value, gate["gate"], beta, state, None, None, gate["lower_bound"], True, gate["A_log"],
            gate["dt_bias"], False, False, False, prepares, owns, False, records, flags, last, out,
        )  # fmt: skip

    given = {"query": query, "key": key, "value": value, "beta": beta, "state": state, **gate}
    return launch, {**given, "flags": flags, "out": out, "last": last}


def microseconds(launch: Callable[[], None]) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        launch()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(LAUNCHES):
                launch()
        times = []
        for _ in range(REPEATS + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / LAUNCHES)
    return median(times[2:])


def errors(kind: str) -> tuple[float, float]:
    """Relative RMS errors of outputs and states of 500 tokens against the recurrence in fp64, which runs on the CPU."""
    launch, x = call(kind, 500, 2)
    launch(True, True)
    names = ("query", "key", "value", "state", "beta", "gate", "A_log", "dt_bias")
    cpu = {name: x[name].double().cpu() for name in names if x[name] is not None}
    expected, state = gdn_cuda.recurrent_forward(**cpu, is_qk_norm=True, lower_bound=x["lower_bound"])

    def rms(found: Tensor, wanted: Tensor) -> float:
        return ((found.double().cpu() - wanted).norm() / wanted.norm()).item()

    return rms(x["out"], expected), rms(x["last"], state)


def times(kind: str, heads: int, tokens: int, multiprocessors: int) -> tuple[str, ...]:
    """A row of the table; the last column: chunks whose decays are so slow that one pass forms all their scores."""
    launch, x = call(kind, tokens, heads)
    launch(True, True)
    prepare, own, both = (microseconds(partial(launch, *parts)) for parts in ((True, False), (False, True), (True, True)))
    chunks = -(-tokens // CHUNK)
    one_pass = ((x["flags"] & SCALED) > 0).float().mean().item()
    numbers = (prepare, own, both, own / chunks, prepare * multiprocessors / (chunks * heads))
    return (kind, str(heads), str(tokens), *(f"{each:.3f}" for each in numbers), f"{one_pass:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1024, 2048, 8192])
    parser.add_argument("--heads", type=int, nargs="*", default=[4, 16, 64])
    options = parser.parse_args()
    device = torch.cuda.get_device_properties(0)
    multiprocessors = device.multi_processor_count
    print(f"{device.name}, {multiprocessors} SMs, torch {torch.__version__}")
    for kind in GATES:
        output, state = errors(kind)
        print(f"errors, {kind:9} o {output:.2e}, S {state:.2e}")
    columns = ("gates", "heads", "tokens", "prepare", "own", "both", "a chunk of own", "an SM's chunk of a head", "one pass")
    print("\n" + " ".join(f"{name:>{max(len(name), 8)}}" for name in columns))
    for kind in GATES:
        for heads in options.heads:
            for tokens in options.tokens:
                row = times(kind, heads, tokens, multiprocessors)
                print(" ".join(f"{cell:>{max(len(name), 8)}}" for name, cell in zip(columns, row, strict=True)), flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
