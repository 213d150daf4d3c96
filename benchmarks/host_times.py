"""Host time of warm calls.

    python benchmarks/host_times.py [--rounds 9] [--json FILE]

To compare two commits, run it for both alternately on one machine (PYTHONPATH chooses the tree, if none is installed; the first
line names it), and compare ratios to torch.add of the same run: one host varies by a factor of 1.6 from minute to minute. A
figure is the minimum of the medians of all rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

import gdn_cuda
from gdn_cuda.cli.bench_environment import environment
from gdn_cuda.cli.bench_report import write
from gdn_cuda.cli.bench_timing import Timer

DEVICE_US = 10.0  # device time of a call, or less: a hundred of them then fit into the driver's queue
MODES = {"no_grad": torch.no_grad, "grad mode": torch.enable_grad}
REACH_US = {"chunked_forward": 10}  # 12 for other operators


def make_calls() -> dict[str, Callable[[], object]]:
    def bf16(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device="cuda")

    def complex64(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.complex64)

    query, key, value = bf16(1, 1, 16, 128), bf16(1, 1, 16, 128), bf16(1, 1, 32, 128)
    a, b, A_log, dt_bias = bf16(1, 1, 32), bf16(1, 1, 32), uniform(32), uniform(32)
    pool, out = torch.zeros(4, 32, 128, 128, device="cuda"), bf16(1, 1, 32, 128)
    step = (query, key, value, a, b, A_log, dt_bias, pool)
    slots = torch.zeros(1, dtype=torch.int32, device="cuda")
    chunk = (bf16(1, 64, 16, 128), bf16(1, 64, 16, 128), bf16(1, 64, 32, 128), uniform(1, 64, 32), -uniform(1, 64, 32))
    token = (query, key, value, pool[:1], uniform(1, 1, 32), -uniform(1, 1, 32))
    residues, points, poles = complex64(2, 32), complex64(128), complex64(32) - 2
    column, vector = uniform(4, 64), uniform(4, 64)
    x = torch.ones(16, device="cuda")
    return {
        "torch.add": lambda: torch.add(x, x, out=x),
        "fused_decode": lambda: gdn_cuda.fused_decode(*step, slots, out=out),
        "fused_decode, no slots": lambda: gdn_cuda.fused_decode(*step, out=out),
        "fused_decode, allocating": lambda: gdn_cuda.fused_decode(*step, slots),
        "recurrent_forward": lambda: gdn_cuda.recurrent_forward(*token, inference_mode=gdn_cuda.InferenceMode.DECODE, out=out),
        "chunked_forward": lambda: gdn_cuda.chunked_forward(*chunk),
        "cauchy_conj": lambda: gdn_cuda.cauchy_conj(residues, points, poles),
        "log_vandermonde": lambda: gdn_cuda.log_vandermonde(residues, poles, 128),
        "toeplitz_matvec": lambda: gdn_cuda.toeplitz_matvec(column, column, vector),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="a report as that of bench, for benchmarks/fill_pages.py")
    options = parser.parse_args()
    timer, rows = Timer(repeats=75), []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {gdn_cuda.__path__[0]}: host time of a call, us")
    for name, call in make_calls().items():
        operator, _, _ = name.partition(",")
        is_ours = hasattr(gdn_cuda, operator)
        row = name.replace(operator, f"`{operator}`", 1) if is_ours else name
        reach = {"reach_us": REACH_US.get(operator, 12)} if is_ours else {}
        for kind, mode in MODES.items():
            with mode():
                us = min(timer.host_us(call, DEVICE_US) for _ in range(options.rounds))
            rows.append({"shape": f"{row}, {kind}", "row": row, "kind": kind, "time_us": us} | reach)
        print(f"{name:26}" + "".join(f"{each['kind']} {each['time_us']:6.2f}   " for each in rows[-len(MODES) :]))
    if options.json:
        write([environment("host_times", cpu=False) | {"rows": rows}], options.json)


if __name__ == "__main__":
    main()
