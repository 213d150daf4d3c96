"""Kimi Delta Attention's forward and backward with variants of gdn/kda_gradients, and the errors of its gradients.

    python benchmarks/kda_gradient_variants.py [HEADS×TOKENS...]

ms of a graph's replay with the L2 flushed, and µs of the kernel itself by torch's profiler. A variant is a constant of
KdaGradientsConfig, which this writes into the header, and restores. Relative RMS of gradients are against fp64 on the CPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import kda_peers_calls as calls
import torch
from backward_passes import passes
from kda_peers import with_grads
from kda_peers_inputs import Shape, error, inputs

from gdn_cuda.cli.bench_timing import Timer

DEFAULT = ("32×8192", "8×8192")
PLAN = Path(__file__).parents[1] / "include/gdn_cuda/kernels/gdn/kda_gradients/plan.cuh"
VARIANTS = {"kAhead": ("264", "0")}  # the first is the header's
NAMES = ("query", "key", "value", "gate", "beta", "A_log", "dt_bias", "state")
CHECKED = Shape(2, (150,))


def times(names: list[str]) -> None:
    timer = Timer(20)
    for name in names:
        heads, tokens = map(int, name.split("×"))
        x = with_grads(inputs(Shape(heads, (tokens,)), "init"))
        with torch.cuda.stream(timer.side):
            both = calls.own_training(x).call
            both()
            time = timer.graph_us(both) / 1000
        found = {kernel: us for kernel, (_, us) in passes(both).items() if "kda_gradients" in kernel}
        print(f"    {name}: forward + backward {time:.3f} ms, gradients {sum(found.values()):.0f} us", flush=True)
        del x, both
        torch.cuda.empty_cache()


def errors() -> None:
    for gates in ("init", "heavy"):
        x = with_grads(inputs(CHECKED, gates))
        exact = {key: y.double().cpu() if torch.is_tensor(y) and y.is_floating_point() else y for key, y in x.items()}
        exact = {key: y.cpu() if torch.is_tensor(y) else y for key, y in exact.items()}
        found, wanted = calls.own_training(x).call(), calls.own_training(exact).call()
        again = calls.own_training(x).call()
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True)), "bits differ from run to run"
        each = (f"{name} {1e3 * error(y.cpu(), z):.1f}" for name, y, z in zip(NAMES, found, wanted, strict=True))
        print(f"    errors / 1e-3, {gates}: {', '.join(each)}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        times(sys.argv[2:])
        return
    names = sys.argv[1:] or list(DEFAULT)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, init gates")
    errors()
    for constant, values in VARIANTS.items():
        before = PLAN.read_text()
        try:
            for value in values:
                changed, count = re.subn(rf"(static constexpr int {constant} = )\d+;", rf"\g<1>{value};", before)
                assert count == 1, f"kda_gradients: {PLAN} should have {constant} once, and has it {count} times"
                PLAN.write_text(changed)
                print(f"{constant} = {value}", flush=True)
                subprocess.run([sys.executable, __file__, "--child", *names], check=True)
        finally:
            PLAN.write_text(before)


if __name__ == "__main__":
    main()
