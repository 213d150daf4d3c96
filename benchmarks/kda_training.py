"""Kimi Delta Attention's forward and backward, with the passes of both one by one, and its prefill on every kernel.

    python benchmarks/kda_training.py [HEADS×TOKENS...]

ms of a graph's replay with the L2 flushed; passes as benchmarks/backward_passes.py has them, in µs. Gates *init*, heads of 128;
the last lines are prefill in one launch (gdn/kda_mma: as heads of 256 take it, or GDN_PREFILL=mma).
"""

from __future__ import annotations

import sys
from functools import partial

import kda_peers_calls as calls
import torch
from backward_passes import passes
from kda_peers import with_grads
from kda_peers_inputs import Shape, inputs

import gdn_cuda
from gdn_cuda.cli.bench_timing import Timer

DEFAULT = ("32×8192", "32×32768", "8×8192")


def longer_keys(heads: int, tokens: int, channels: int) -> dict[str, object]:
    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16)

    rows = {name: normal(1, tokens, heads, channels) for name in ("query", "key", "value", "gate")}
    dt_bias = torch.full((heads, channels), -4.0, device="cuda")
    gates = {"A_log": torch.zeros(heads, device="cuda"), "dt_bias": dt_bias, "lower_bound": -5.0}
    return rows | gates | {"beta": normal(1, tokens, heads), "beta_is_logit": True, "use_qk_l2norm": True}


def main() -> None:
    timer = Timer(20)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, init gates")
    for name in sys.argv[1:] or DEFAULT:
        heads, tokens = map(int, name.split("×"))
        x = with_grads(inputs(Shape(heads, (tokens,)), "init"))
        with torch.cuda.stream(timer.side):
            forward, both = calls.own(x).call, calls.own_training(x).call
            both()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            both()
            peak = (torch.cuda.max_memory_allocated() - before) / 2**20
            times = [timer.graph_us(call) / 1000 for call in (forward, both)]
        print(f"\n{name}: prefill {times[0]:.3f} ms, forward + backward {times[1]:.3f} ms, {peak:.0f} MiB above the inputs")
        for kernel, (start, duration) in passes(both).items():
            print(f"    {kernel:45} at {start:7.1f}: {duration:7.1f}")
        del x, forward, both
        torch.cuda.empty_cache()
    for heads, tokens, channels in ((32, 8192, 128), (32, 8192, 256), (8, 8192, 256)):
        x = longer_keys(heads, tokens, channels)
        with torch.no_grad(), torch.cuda.stream(timer.side):
            time = timer.graph_us(partial(gdn_cuda.chunked_forward, **x)) / 1000
        print(f"prefill {heads} heads of {channels}, 1×{tokens}: {time:.3f} ms")


if __name__ == "__main__":
    main()
