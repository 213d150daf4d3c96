"""Times of the backward of Gated Delta Net beside FlashQLA, whose kernels compile for minutes: a process for each shape
compiles, all at once, and when all have, they take turns on the GPU.

    python benchmarks/backward_beside.py [SHAPE...]

Graph replays with the L2 flushed, as in `gdn-cuda bench`, of init gates; three rounds.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import torch

from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.gdn.measure_prefill import PLAIN, Shape
from gdn_cuda.gdn.measure_training import training_peers, training_work

SHAPES = PLAIN | {"8×1024 16/32": Shape(16, 32, 8 * (1024,))}
DEFAULT = ("1×8192 16/32", "1×32768 16/32", "8×4096 16/32", "8×1024 16/32", "1×8192 8/16", "1×8192 4/8")
ROUNDS = 3


def take_turns(name: str) -> None:
    """Compiles, prints a line, and for each line on standard input another one with both times."""
    timer = Timer(20)
    with torch.cuda.stream(timer.side):  # a graph captures there, and the backward runs in forward's stream
        work = training_work(replace(SHAPES[name], gates="init"), "cuda")
        calls = [work.call, training_peers()["FlashQLA"](work.inputs).call]
        for call in calls:
            call()
    torch.cuda.synchronize()
    print("ready", flush=True)
    while sys.stdin.readline():
        ours, other = (timer.graph_us(call) for call in calls)
        print(f"{name}: {ours:.0f}, FlashQLA {other:.0f}: {other / ours:.2f}", flush=True)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; µs", flush=True)
    command = [sys.executable, __file__, "--shape"]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([*command, name], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        for name in sys.argv[1:] or DEFAULT
    ]

    def line_of(each: subprocess.Popen[str]) -> str:
        assert each.stdout is not None
        while line := each.stdout.readline():  # the compiler prints as well
            if line.startswith("ready") or "FlashQLA " in line:
                return line
        raise RuntimeError(f"{each.args}: ended with {each.wait()}")

    for each in started:
        line_of(each)
    for _ in range(ROUNDS):
        for each in started:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
            print(line_of(each), end="", flush=True)
    for each in started:
        each.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--shape"]:
        take_turns(sys.argv[2])
    else:
        main()
