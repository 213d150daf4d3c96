"""What a rank computes before others can go on: the state after its part, and the part's summary, beside its forward; and the
gradient of the state before its part, beside its backward. Replays of a CUDA graph, microseconds, and the kernels of 65536
tokens. Needs a GPU."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import gdn_cuda
from gdn_cuda.gdn.measure_prefill import Shape, prefill_work
from gdn_cuda.gdn.training import _given


def microseconds(call: Callable[[], object], repeat: int = 11) -> float:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return median(times)


def kernels(call: Callable[[], object]) -> str:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found: dict[str, float] = defaultdict(float)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name.split("<")[0].split("::")[-1].split("(")[0]] += event.device_time
    return ", ".join(f"{name} {time:.0f}" for name, time in found.items())


def backward_of(x: dict[str, Any]) -> Callable[[bool], object]:
    """The backward, or the gradient of the state alone."""
    operator = torch.ops.gdn_cuda.gated_delta_rule_backward
    names = [argument.name for argument in operator.default._schema.arguments]
    forward = torch.ops.gdn_cuda.gated_delta_rule
    given = _given(x)
    *_, checkpoints = forward(*(given[argument.name] for argument in forward.default._schema.arguments))
    own = {"grad_out": torch.randn_like(x["value"]), "grad_final_state": None, "checkpoints": checkpoints}

    def call(only_state: bool) -> object:
        every = given | own | {"only_value_and_state": False, "only_state": only_state}
        return operator(*(every[name] for name in names))

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[8192, 32768, 65536, 524288])
    tokens_of = parser.parse_args().tokens
    print(torch.cuda.get_device_name(), torch.__version__)
    print(f"{'part':34} {'state':>9} {'summary':>9} {'forward':>9} {'gradient':>9} {'backward':>9}")
    for key_heads, value_heads in ((16, 32), (4, 8)):
        for tokens in tokens_of:
            for gates in ("fast", "init", "mixed"):
                shape = Shape(key_heads, value_heads, (tokens,), gates=gates)
                x = dict(prefill_work(shape, "cuda").inputs)
                part = {name: t for name, t in x.items() if name not in ("query", "state")}
                state = microseconds(lambda part=part: gdn_cuda.chunked_summary(**part, transition=False))
                summary = microseconds(lambda part=part: gdn_cuda.chunked_summary(**part))
                forward = microseconds(lambda x=x: gdn_cuda.chunked_forward(**x))
                backward = backward_of(x)
                times = [microseconds(lambda alone=alone, backward=backward: backward(alone)) for alone in (True, False)]
                print(f"{shape.name:34} {state:9.1f} {summary:9.1f} {forward:9.1f} {times[0]:9.1f} {times[1]:9.1f}", flush=True)
                if tokens == 65536:
                    print("    " + kernels(lambda part=part: gdn_cuda.chunked_summary(**part)))
                    print("    " + kernels(lambda backward=backward: backward(True)))


if __name__ == "__main__":
    main()
